"""RBE layers on other networks than CLSM: any encoder, documents, words, and the next model's queries.

    layers                        RBE for any vector
    sentence, encoder, reference  behind a sentence-transformers model: trained, in an index, found again
    bag ─ cbow, hashing           words (word2vec's CBOW) and documents (semantic hashing)
    upgrade, against, generations a new model for stored codes: trained, its loss, searched beside the old
    docstrings                    documents to try it on

Each ends in an encoder that an index can be made with.
"""
