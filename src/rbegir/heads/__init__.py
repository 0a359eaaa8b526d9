"""RBE layers on other networks than the paper's: any encoder, documents, words, and the next model's queries."""
