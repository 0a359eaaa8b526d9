"""Splitting pairs into train, validation and test by a fixed hash of the keyword.

A random split by pair flatters every figure: other pairs of a validation keyword would be in training. So a
keyword belongs to one part with all of its pairs, and its text alone decides which:

    position = first 8 bytes of BLAKE2b(keyword), as a little-endian integer / 2⁶⁴  ∈ [0, 1)
    position < valid → validation;  < valid + test → test;  else training

A keyword falls into the same part in every file, sample and run, so figures stay comparable.
"""

import hashlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rbegir.base import disk
from rbegir.errors import FileError, InputError
from rbegir.read.pairs import PairStream

VALID_SHARE = 0.02


def hash_position(text: str) -> float:
    """The position of a text in [0, 1)."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / 2**53  # 53 bits are exact, and never round up to 1


def positions(texts: Iterable[str]) -> npt.NDArray[np.float64]:
    return np.fromiter(map(hash_position, texts), dtype=np.float64)


def split_by_keyword(
    pairs: PairStream, out: str | Path, *, valid: float = VALID_SHARE, test: float = 0.0
) -> dict[str, int]:
    """Write train.parquet, valid.parquet and, if test > 0, test.parquet to `out`; returns the pairs in each.

    Pairs are streamed; the files get their names only when all of them are complete.
    """
    if not (0 < valid < 1 and 0 <= test < 1 and valid + test < 1):
        raise InputError(
            f"valid and test must be shares that leave some for training, got {valid} and {test}"
        )
    out = Path(out)
    limits = {"valid": valid, **({"test": valid + test} if test else {}), "train": 1.0}  # ascending
    counts: dict[str, int] = {name: 0 for name in ("train", "valid", "test") if name in limits}
    try:
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stages, ExitStack() as files:  # all files are complete before one is renamed
            paths = [stages.enter_context(disk.staged(out / f"{name}.parquet")) for name in limits]
            opened = (pq.ParquetWriter(path, pairs.schema, compression="zstd") for path in paths)
            writers = [files.enter_context(writer) for writer in opened]
            for batch in pairs:
                encoded = batch.column("keyword").dictionary_encode()  # each text is hashed once per batch
                places = positions(encoded.dictionary.to_pylist())
                part = np.searchsorted([*limits.values()], places, side="right")
                for i, (name, writer) in enumerate(zip(limits, writers, strict=True)):
                    chosen = batch.filter(pa.array(part[encoded.indices.to_numpy()] == i))
                    if chosen.num_rows:
                        writer.write_batch(chosen)
                        counts[name] += chosen.num_rows
    except OSError as error:
        raise FileError(f"cannot write the split under {out}: {error.strerror or error}") from None
    return counts
