"""Streamed reading of files: Parquet, CSV, TSV, JSON lines and plain lines, optionally compressed.

path ─ source (one class per format) ─ blocks of raw columns ─ rows.Stream ─ checked RecordBatches

pairs                      the three kinds of files: clicked pairs, labels, texts to search
rows                       the checks: bad rows are left out and counted
source                     the formats by suffix, and plain lines
delimited, jsonl, parquet  the other formats; parquet also cuts texts into chunks for a cluster
vectors                    files of vectors: .npy, .fvecs, .bvecs, and columns of Parquet files
split                      train, validation and test by a hash of the keyword
tokenizer                  texts → words → tri-letter grams
sample                     the data shipped with the package
"""
