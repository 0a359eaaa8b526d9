"""Small tables in every format, and what is read from them."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.read import delimited, source

Rows = list[dict[str, object]]


def write_tsv(path: Path, rows: Rows) -> None:
    names = list(rows[0])
    lines = ["\t".join(names), *("\t".join(str(row[n]) for n in names) for row in rows)]
    path.write_bytes("".join(line + "\n" for line in lines).encode())


def write_csv(path: Path, rows: Rows) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(out.getvalue().encode())


def write_jsonl(path: Path, rows: Rows) -> None:
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "tsv": write_tsv,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


@contextlib.contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Text formats are read in blocks of this many bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (source, delimited):
            patch.setattr(module, "BLOCK_BYTES", size)
        yield


def pairs_of(stream: object) -> list[tuple[str, str]]:
    return [
        (row["query"], row["keyword"])
        for batch in stream  # type: ignore[attr-defined]
        for row in batch.to_pylist()
    ]


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
