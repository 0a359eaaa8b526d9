"""The durable index: a directory of immutable files and one manifest that names them.

store        Index: create, open, build, add, delete, search, verify
generations  several indexes of different models, searched as one

search       query (one search), maxsim (items), join (every keyword is a query) ─ filter, where ─ tenant ─
             snapshot
read         snapshot (one state) ─ segment ─ columns, keys (ids → positions)
change       writer (lock, add, delete, compact) ─ manifest (the commit)
create       creation (built aside, renamed when complete) ─ manifest (which encoder fits)
open         location (a directory on this or another file system, and its copy in the cache)
train        mine (negatives among the hits of an index)
on disk      format: sections, a checksum for every byte, mapped files
damaged      snapshot.damage finds it ─ salvage copies the rest ─ wreck reads damaged files
exchange     import and export: FAISS, NumPy, Parquet, datasets
"""
