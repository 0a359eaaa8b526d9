"""The contract of an encoder: texts in, codes out, and a fingerprint that names the space of the codes.

A `Model`, a `Binarizer`, a `SentenceEncoder` or any class with these attributes is an encoder. Two optional
attributes say what it takes besides lists of str:

    takes_vectors = True    float vectors [count, dims] instead of texts (a Binarizer)
    takes_arrow = True      pyarrow string arrays as well as lists, so that texts are not copied (a Model)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rbegir.base.disk import refuse_link
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.store import is_binarizer
from rbegir.encode.sentence.reference import BINARIZER, is_reference, read_reference
from rbegir.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

ENCODE_ROWS = 1 << 16  # texts encoded at a time


class Encoder(Protocol):
    """A model or any other fitted encoder. Codes can be compared if their fingerprints are equal."""

    @property
    def n(self) -> int: ...
    @property
    def query_planes(self) -> int: ...  # 0: the encoder decides
    @property
    def keyword_planes(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def encode_queries(self, texts: list[str]) -> Codes: ...
    def encode_keywords(self, texts: list[str]) -> Codes: ...


@runtime_checkable
class Savable(Protocol):
    """An encoder that can be stored inside an index, so that the index can be searched by text."""

    def save(self, directory: Path) -> None: ...


def check_encoder(model: object) -> None:
    """Raise InputError if an object lacks part of the contract."""
    wanted = ("n", "query_planes", "keyword_planes", "fingerprint", "encode_queries", "encode_keywords")
    missing = [name for name in wanted if not hasattr(model, name)]
    if missing:
        raise InputError(
            f"model must be a Model or an encoder, got {type(model).__name__} without {', '.join(missing)}",
            hint="load one with rbegir.Model.load(path)",
        )


def takes_vectors(model: Encoder) -> bool:
    """Whether the encoder takes float vectors instead of texts, as a Binarizer does."""
    return bool(getattr(model, "takes_vectors", False))


def encode_keywords(model: Encoder, texts: pa.Array) -> Codes:
    """The codes of one or more texts, encoded in blocks so that memory stays bounded."""
    arrow = getattr(model, "takes_arrow", False)
    blocks = (texts.slice(start, ENCODE_ROWS) for start in range(0, len(texts), ENCODE_ROWS))
    return Codes.concat([model.encode_keywords(block if arrow else block.to_pylist()) for block in blocks])


def load_encoder(directory: Path, *, threads: int | None = None) -> Encoder:
    """Load the model, the Binarizer or the reference to a sentence encoder that a directory holds."""
    if is_binarizer(directory):
        from rbegir.encode.binarizer.binarizer import Binarizer

        return Binarizer.load(directory)
    if is_reference(directory):
        from rbegir.encode.sentence.encoder import load_reference

        return load_reference(directory)
    from rbegir.encode.clsm.model import Model

    return Model.load(directory, threads=threads)


def verify_encoder(directory: Path) -> None:
    """Check every byte of a stored encoder; raises FileError.

    Of a sentence encoder only the reference to it is stored and checked.
    """
    from rbegir.encode.binarizer.binarizer import Binarizer
    from rbegir.encode.clsm.model import Model

    if is_reference(directory):
        read_reference(directory)
        if (directory / BINARIZER).is_dir():
            Binarizer.load(refuse_link(directory / BINARIZER))
    elif is_binarizer(directory):
        Binarizer.load(directory)
    else:
        Model.load(directory).verify()
