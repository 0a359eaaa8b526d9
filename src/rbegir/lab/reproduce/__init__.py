"""The paper's tables on real data, ours beside theirs, from one command.

    dataset ─ split by title ─┬─ rows: models to train, each named once, used by several tables
                              ├─ a run: one row, one seed → one small JSON file, kept; a killed job goes on
                              └─ tables: figures of the runs beside those of the paper ─ report, plots

| file           | concept                                                                       |
|----------------|-------------------------------------------------------------------------------|
| paper.py       | the figures printed in the paper, by table                                    |
| dataset.py     | pairs, titles and labels from a folder, the shipped sample, and the split     |
| rows.py        | every model of every table: its shape and its training                        |
| testbed.py     | what a model is measured on, tokenised once                                   |
| studies.py     | measurements beyond accuracy: selection, corpus sizes, top five               |
| quantisers.py  | what others make of the float model's vectors in as many bytes                |
| lexical.py     | BM25 over the same titles                                                     |
| runs.py        | one run, from training to its file                                            |
| schedule.py    | all runs, several processes at once, within a limit of time                   |
| results.py     | figures over seeds, and when a difference is more than noise                  |
| tables.py      | runs → tables: accuracy_tables.py, system_tables.py, made with maker.py       |
| report.py      | tables → Markdown, with remarks.py · plots.py → pictures                      |
| job.py         | all of it: from a request to results and report                               |
"""
