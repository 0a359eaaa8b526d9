"""Encoders of sentence-transformers as encoders of an index.

encoder  texts → codes, by an RBE head or by a Binarizer fitted on the vectors
head     RBE layers as the last module of a SentenceTransformer, trained with it
"""
