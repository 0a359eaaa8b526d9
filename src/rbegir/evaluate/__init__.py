"""How good a model is: sample groups, ROC AUC, recall over a corpus, human labels, baselines.

pairs ─ groups (1 positive + 10 negatives) ─ scores ─ log loss, ROC AUC
pairs + corpus ─ exact search ─ recall@k
labels ─ scores ─ ROC AUC, nDCG
             └─ all with bootstrap intervals by query
"""
