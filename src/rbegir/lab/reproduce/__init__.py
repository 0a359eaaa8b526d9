"""The paper's tables on real data, ours beside theirs, from one command.

    dataset ─ split by title ─┬─ rows: models to train, each named once, used by several tables
                              ├─ runs: one row, one seed → one small JSON file, kept, so that a job resumes
                              └─ tables: figures of the runs beside those of the paper ─ report

| module       | concept                                                                      |
|--------------|------------------------------------------------------------------------------|
| paper        | the figures printed in the paper, by table                                   |
| dataset      | pairs, titles and labels from a folder or the shipped sample, and the split  |
| rows         | every model of every table: its shape and its training                       |
| testbed      | all measurements of a model: accuracy, selection, corpus sizes, top five     |
| equal_bytes  | other quantisers of the float model's vectors, at about as many bytes        |
| runs         | one run, from training to its file                                           |
| results      | figures by row and seed, and when a difference is more than noise            |
| tables       | runs → tables                                                                |
| report       | tables → a page of Markdown (report.md.j2) and pictures                      |
| job          | all runs, in one process or several: from a request to results and report    |
"""
