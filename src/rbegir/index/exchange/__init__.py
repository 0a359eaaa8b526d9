"""Import from and export to the files and objects of other libraries.

files       Parquet files, Hugging Face datasets and NumPy files of codes or float vectors
faiss       FAISS indexes, and IndexRBE, a class with the interface of a flat FAISS index
transfer    what they share: keywords in bulk, out of an index or into a new one
"""
