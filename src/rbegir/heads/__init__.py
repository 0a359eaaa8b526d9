"""RBE layers on other networks than CLSM: any encoder, documents, words, and the next model's queries."""
