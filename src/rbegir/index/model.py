"""The encoder of an index: the codes it makes, whether it belongs to the index, and loading it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rbegir.base.arguments import VECTORS_HINT
from rbegir.base.checks import whole_number
from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_PLANES, check_dimension
from rbegir.encode.encoder import Encoder, check_encoder, load_encoder, takes_vectors
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.manifest import ID_TYPES, Manifest


def first_manifest(
    model: Encoder | None,
    n: int | None = None,
    keyword_planes: int | None = None,
    query_planes: int | None = None,
    id_type: str | None = None,
) -> Manifest:
    """The manifest of an empty index for the codes of a model, or for codes of the given shape."""
    if id_type is not None and id_type not in ID_TYPES:
        raise InputError(f"id_type must be one of {', '.join(ID_TYPES)}, got {id_type!r}")
    fingerprint = ""
    if model is not None:
        check_encoder(model)
        for name, given in (("n", n), ("keyword_planes", keyword_planes), ("query_planes", query_planes)):
            if given is not None and given != getattr(model, name):
                raise MismatchError(f"{name} is {given}, the model has {getattr(model, name)}")
        n, keyword_planes, query_planes = model.n, model.keyword_planes, model.query_planes
        fingerprint = model.fingerprint
    if n is None or keyword_planes is None:
        raise InputError("an index needs a model, or n and keyword_planes", hint="Index.create(path, model)")
    check_dimension(n)
    query_planes = query_planes or 0
    if keyword_planes == 0 and model is not None:
        raise MismatchError(
            "a model with float keywords has no codes to store", hint="use a preset with planes"
        )
    keyword_planes = whole_number("keyword_planes", keyword_planes, 1, MAX_KEYWORD_PLANES)
    query_planes = whole_number("query_planes", query_planes, 0, MAX_PLANES)
    return Manifest(int(n), keyword_planes, query_planes, fingerprint, id_type=id_type)


def check_match(model: Encoder, manifest: Manifest) -> None:
    """Raise MismatchError if the model's queries cannot be compared with the codes of the index."""
    reads = manifest.fingerprint in getattr(model, "reads", ())  # a later model, trained on these codes
    for name in ("n",) if reads else ("n", "keyword_planes", "fingerprint"):
        ours, theirs = getattr(manifest, name), getattr(model, name)
        if ours != theirs:
            raise MismatchError(
                f"the model does not belong to this index: its {name} is {theirs!r}, the index has {ours!r}",
                hint="use the model that the index was built with, or build a new index",
            )


def check_adds(model: Encoder, manifest: Manifest) -> None:
    """Raise if texts cannot be added with this model: it takes vectors, or makes other keyword codes."""
    if takes_vectors(model):
        raise InputError("a Binarizer encodes vectors, not texts", hint=VECTORS_HINT)
    if manifest.fingerprint not in getattr(model, "same_keywords", (model.fingerprint,)):
        raise MismatchError(
            "the model searches this index, but its keywords get codes of another generation",
            hint="add to an index of the model's own, and search both with rbegir.Generations",
        )


def check_vectors(queries: Any) -> Any:
    """Raise InputError for texts where vectors are expected; the Binarizer checks everything else."""
    if isinstance(queries, (list, tuple)) and any(isinstance(query, str) for query in queries):
        raise InputError(
            "an index made with a Binarizer is searched with vectors, got a text",
            hint="encode the text with the encoder whose vectors it holds",
        )
    return queries


def load_stored(directory: Path, manifest: Manifest) -> Encoder:
    """Load the encoder stored inside an index."""
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
