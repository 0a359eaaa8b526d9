"""What an index asks of a model: texts in, codes out, and a name for the space they live in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rbegir.base.arguments import VECTORS_HINT
from rbegir.codes.planes import Codes
from rbegir.encode.binarizer.store import is_binarizer
from rbegir.encode.sentence.reference import is_reference
from rbegir.errors import FileError, InputError, MismatchError

if TYPE_CHECKING:
    from rbegir.index.manifest import Manifest


class Encoder(Protocol):
    """A model, or any fitted encoder. Codes of one fingerprint can be compared, others cannot."""

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
    """An encoder that can be stored with the index, so that the index answers texts on its own."""

    def save(self, directory: Path) -> None: ...


def check_encoder(model: object) -> None:
    """Refuse what cannot encode."""
    wanted = ("n", "query_planes", "keyword_planes", "fingerprint", "encode_queries", "encode_keywords")
    missing = [name for name in wanted if not hasattr(model, name)]
    if missing:
        raise InputError(
            f"model must be a Model or an encoder, got {type(model).__name__} without {', '.join(missing)}",
            hint="load one with rbegir.Model.load(path)",
        )


def check_match(model: Encoder, manifest: Manifest) -> None:
    """Refuse a model whose queries do not search the codes of the index."""
    reads = manifest.fingerprint in getattr(model, "reads", ())  # a later model, trained on codes of ours
    for name in ("n",) if reads else ("n", "keyword_planes", "fingerprint"):
        ours, theirs = getattr(manifest, name), getattr(model, name)
        if ours != theirs:
            raise MismatchError(
                f"the model does not belong to this index: its {name} is {theirs!r}, the index has {ours!r}",
                hint="use the model that the index was built with, or build a new index",
            )


def takes_vectors(model: Encoder) -> bool:
    """Whether it is a Binarizer: float vectors, not texts, are encoded."""
    return bool(getattr(model, "takes_vectors", False))


def check_vectors(asked: Any) -> Any:
    """Refuse texts where vectors are asked with; the rest the Binarizer checks."""
    if isinstance(asked, (list, tuple)) and any(isinstance(query, str) for query in asked):
        raise InputError(
            "an index made with a Binarizer is searched with vectors, got a text",
            hint="encode the text with the encoder whose vectors it holds",
        )
    return asked


def check_adds(model: Encoder, manifest: Manifest) -> None:
    """Refuse to add texts with a model that takes none, or that shares only its queries with the index."""
    if takes_vectors(model):
        raise InputError("a Binarizer makes codes of vectors, not of texts", hint=VECTORS_HINT)
    if manifest.fingerprint not in getattr(model, "same_keywords", (model.fingerprint,)):
        raise MismatchError(
            "the model searches this index, but its keywords get codes of another generation",
            hint="add to an index of the model's own, and search both with rbegir.Generations",
        )


def load_stored(directory: Path, manifest: Manifest) -> Encoder:
    """The model inside an index directory."""
    if not manifest.has_model:
        raise FileError(
            f"no model is stored in {directory.parent}, so texts cannot be encoded",
            hint="open it with Index.open(path, model=…), or use add_codes and search_codes",
        )
    if not directory.is_dir():
        raise FileError(
            f"the model of {directory.parent} is gone: there is no {directory}",
            hint="copy the model that the index was built with there",
        )
    model = load_encoder(directory)
    check_match(model, manifest)
    return model


def load_encoder(directory: Path, *, threads: int | None = None) -> Encoder:
    """The model, the Binarizer or the other encoder that is stored in a directory."""
    if is_binarizer(directory):
        from rbegir.encode.binarizer.estimator import Binarizer

        return Binarizer.load(directory)
    if is_reference(directory):
        from rbegir.encode.sentence.encoder import load_reference

        return load_reference(directory)
    from rbegir.encode.clsm.model import Model

    return Model.load(directory, threads=threads)
