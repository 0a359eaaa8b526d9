"""Vectors as the commands take them: which files hold them, and the Binarizer that encodes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rbegir.cli.options import bar, option
from rbegir.errors import InputError

if TYPE_CHECKING:
    from rbegir.encode.binarizer.binarizer import Binarizer
    from rbegir.read.vectors import VectorStream

SUFFIXES = (".npy", ".fvecs", ".bvecs")
VectorColumn = Annotated[
    str | None,
    option("Column of a Parquet file that holds vectors; they are encoded, not the texts.", metavar="COLUMN"),
]


def are_vectors(path: Path, vector_column: str | None) -> bool:
    """Whether a file is to be read as vectors."""
    return vector_column is not None or path.suffix.lower() in SUFFIXES


def vector_encoder(
    sources: Sequence[Path], stream: VectorStream, n: int | None, planes: int | None, metric: str | None
) -> Binarizer:
    """The Binarizer in the directory before the file, or else one that is fitted to the vectors."""
    from rbegir.encode.binarizer.binarizer import SAMPLE_VALUES, Binarizer

    if len(sources) == 2:
        if n is not None or planes is not None or metric is not None:
            raise InputError(
                "--n, --keyword-planes and --metric are for a Binarizer that is fitted",
                hint="leave them out: the one given has its own",
            )
        return Binarizer.load(sources[0])
    binarizer = Binarizer(stream.dims, n, keyword_planes=planes or 2, metric=metric or "cosine")
    with bar("fitting codes") as show:
        return binarizer.fit(stream.some(SAMPLE_VALUES // stream.dims), notify=show)
