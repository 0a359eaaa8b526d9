"""How good a model is: sample groups, ROC AUC, recall over a corpus, human labels.

    groups      one positive and 10 random negatives per pair ─┐
    evaluator   pairs that people judged                        ├─ scorers ─ metrics (log loss, ROC AUC,
    retrieval   the right keywords among all texts: recall@k   ─┘            intervals by resampling queries)

`evaluator` runs all of it and holds the result.
"""
