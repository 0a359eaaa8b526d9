"""Streamed reading of the files people have: Parquet, CSV, TSV, JSONL and plain lines.

    file ─ source (one module a format) ─ blocks ─ rows.Checker (bad rows out, counted) ─ RecordBatches

Nothing here knows what a query or a keyword is: `rbegir.read.pairs` says that, `texts` reads what is to
be searched.
"""
