"""Doors to other libraries: FAISS, NumPy, Parquet, Hugging Face datasets, and the shape of ann-benchmarks."""
