"""The contract of an encoder: texts in, codes out, and a fingerprint that names the space of the codes.

A `Model`, a `Binarizer`, a `SentenceEncoder` or any class with these attributes is an encoder. Optional ones:

    takes_vectors = True    takes float vectors [count, dims] instead of texts (a Binarizer)
    takes_arrow = True      takes pyarrow string arrays too, so that texts are not copied (a Model)
    encode_rows             texts per call of encode_keywords; progress moves after each (a SentenceEncoder)
    key_scores(values)      turns order keys into scores that are not the cosines of codes (a Binarizer)
    expected                what was measured of its codes when it was fitted (a Binarizer)
    binarizer               the encoder that has these two instead, if any (a SentenceEncoder)
    vectors(texts, "query") the vectors of queries that this encoder encodes (a SentenceEncoder)
    reranker                orders the best hits of a text again (a Model, a SentenceEncoder)

*In an index* a model or a Binarizer is stored whole. Of a SentenceEncoder, which may be gigabytes, the index
keeps where it is and its fingerprint; neither writing nor reading that needs any package of encoders:

    model/encoder.json     format, version, kind, reference (a path or a name), fingerprint, crc32c of these
    model/binarizer/       the Binarizer of an encoder that makes vectors, if it has one
    model/rerank/          the weights of words, if it has learned any
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from rbegir._native import _core
from rbegir.base import disk
from rbegir.codes.planes import Codes
from rbegir.codes.score import KeyScores, cosines
from rbegir.encode.binarizer.binarizer import KIND as BINARIZER_KIND
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.clsm.model import Model
from rbegir.encode.directory import CONFIG, MAX_CONFIG, is_kind
from rbegir.encode.reranker import FOLDER as RERANKER
from rbegir.encode.reranker import Reranker
from rbegir.encode.reranker import read as read_reranker
from rbegir.errors import CorruptError, FileError, InputError, VersionError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

ENCODE_ROWS = 1 << 16  # texts encoded at a time
FORMAT, VERSION, KIND = "rbegir-encoder", 1, "sentence-transformers"
NAME, BINARIZER = "encoder.json", "binarizer"
NEEDED = (  # of `needing`: message and hint where the package is missing
    "encoders of sentence-transformers need that package, release 6 or later",
    "pip install 'rbegir[sentence-transformers]'",
)
MAX_BYTES = 1 << 16  # of encoder.json

Progress: TypeAlias = Callable[[int, int], None]  # (done, total)


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
    def encode_queries(self, texts: Any) -> Codes: ...  # a list of texts; vectors, where it takes those
    def encode_keywords(self, texts: Any) -> Codes: ...


@runtime_checkable
class Savable(Protocol):
    """An encoder that can be stored inside an index, so that the index can be searched by text."""

    def save(self, directory: Path) -> None: ...


def check_encoder(model: object) -> None:
    """Raise InputError if an object lacks part of the contract."""
    wanted = ("n", "query_planes", "keyword_planes", "fingerprint", "encode_queries", "encode_keywords")
    missing = [name for name in wanted if not hasattr(model, name)]
    if missing == ["fingerprint"]:
        raise InputError(
            f"model must be fitted, got {type(model).__name__} without fingerprint",
            hint="call its fit first, for example with the vectors or texts to store",
        )
    if missing:
        raise InputError(
            f"model must be a Model or an encoder, got {type(model).__name__} without {', '.join(missing)}",
            hint="load one with rbegir.Model.load(path)",
        )


def takes_vectors(model: Encoder) -> bool:
    """Whether the encoder takes float vectors instead of texts, as a Binarizer does."""
    return bool(getattr(model, "takes_vectors", False))


def key_scores(model: Encoder | None, values: npt.NDArray[np.int16]) -> KeyScores:
    """The function from order keys of queries [Q, n] to scores: the model's own, or the cosines of codes."""
    made: KeyScores = getattr(getattr(model, "binarizer", None) or model, "key_scores", cosines)(values)
    return made


def as_queries(model: Encoder | None, codes: Codes) -> npt.NDArray[np.int16]:
    """Stored keywords as queries: the integers [count, n] to search with.

    A Binarizer's code of a keyword stands for a vector, which has a finer code as a query. Other codes are
    searched as they are.
    """
    maker = decoder(model)
    if maker is not None:
        codes = maker.encode_queries(maker.inverse_transform(codes))
    return codes.values()


def decoder(model: Encoder | None) -> Binarizer | None:
    """The Binarizer that can turn the codes of an encoder back into vectors, if it has one."""
    maker = getattr(model, "binarizer", None) or model
    return maker if isinstance(maker, Binarizer) else None


def expected(model: Encoder | None) -> dict[str, Any] | None:
    """The recall and error that an encoder expects of its codes, if it has measured any."""
    return getattr(getattr(model, "binarizer", None) or model, "expected", None)


def load_scorer(directory: Path) -> Encoder | None:
    """The stored encoder as far as `key_scores` needs it: a Binarizer, or None where scores are cosines."""
    for place in (directory, directory / BINARIZER):
        if is_kind(place, BINARIZER_KIND):
            return Binarizer.load(disk.refuse_link(place))
    return None


def encode_keywords(model: Encoder, texts: pa.Array, progress: Progress | None = None) -> Codes:
    """The codes of one or more texts, encoded in blocks so that memory stays bounded.

    `progress` is called with (texts encoded, all texts).
    """
    arrow = getattr(model, "takes_arrow", False)
    rows = getattr(model, "encode_rows", ENCODE_ROWS)
    parts = []
    for start in range(0, len(texts), rows):
        block = texts.slice(start, rows)
        parts.append(model.encode_keywords(block if arrow else block.to_pylist()))
        if progress is not None:
            progress(start + len(block), len(texts))
    return Codes.concat(parts)


def encode_vectors(model: Encoder, vectors: Any, progress: Progress | None = None) -> Codes:
    """The codes of vectors [count, dims], by an encoder that takes them."""
    if isinstance(model, Binarizer):
        return model.encode_keywords(vectors, notify=progress)
    return model.encode_keywords(vectors)


def load_encoder(directory: Path, *, threads: int | None = None) -> Encoder:
    """Load the model, the Binarizer or the reference to a sentence encoder that a directory holds."""
    if is_kind(directory, BINARIZER_KIND):
        return Binarizer.load(directory)
    if is_reference(directory):
        from rbegir.encode.sentence.encoder import load_reference

        return load_reference(directory)
    return Model.load(directory, threads=threads)


def load_reranker(directory: Path) -> Reranker | None:
    """The reranker of the stored encoder; a sentence encoder is not loaded for it."""
    if not (directory / RERANKER).is_dir():
        return None
    if is_reference(directory):
        return read_reranker(directory, read_reference(directory)["fingerprint"], None)
    return getattr(load_encoder(directory), "reranker", None)


def verify_encoder(directory: Path) -> None:
    """Check every byte of a stored encoder, or of the reference to a sentence encoder; raises FileError."""
    if is_reference(directory):
        if (directory / BINARIZER).is_dir():
            Binarizer.load(disk.refuse_link(directory / BINARIZER))
        load_reranker(directory)
    elif is_kind(directory, BINARIZER_KIND):
        Binarizer.load(directory)
    else:
        Model.load(directory).verify()


def stored_name(directory: Path) -> list[bytes]:
    """Names what a directory holds: also the reranker, which a fingerprint does not cover."""
    found = []
    for name in (CONFIG, NAME, f"{RERANKER}/{CONFIG}"):
        with suppress(FileError):
            found.append(disk.read_small(directory / name, MAX_CONFIG))
    return found


def is_reference(directory: Path) -> bool:
    """Whether a directory holds a reference to an encoder, and not a model."""
    return (directory / NAME).is_file()


def write_reference(directory: Path, reference: str, fingerprint: str) -> None:
    """Write the file; it is durable on return."""
    body = {"format": FORMAT, "version": VERSION, "kind": KIND}
    body |= {"reference": reference, "fingerprint": fingerprint}
    directory.mkdir(parents=True, exist_ok=True)
    disk.write_file(directory / NAME, json.dumps({**body, "crc32c": _sum(body)}, indent=1).encode())


def read_reference(directory: Path) -> dict[str, str]:
    """The `reference` and the `fingerprint` in the file."""
    path = directory / NAME
    try:
        body = json.loads(disk.read_small(path, MAX_BYTES))
        check = body.pop("crc32c")
        if body["format"] != FORMAT or _sum(body) != check:
            raise ValueError("not what was written")
        known = (body["version"], body["kind"]) == (VERSION, KIND)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"{path} is not what was written", hint="restore the index from a copy") from error
    if not known:
        raise VersionError(
            f"{path} refers to an encoder of kind {body['kind']!r}, version {body['version']!r}, "
            "which this rbegir does not know",
            hint="upgrade rbegir",
        )
    return {name: str(body[name]) for name in ("reference", "fingerprint")}


def _sum(body: dict[str, Any]) -> int:
    return _core.crc32c(json.dumps(body, sort_keys=True).encode())
