"""An empty index: which codes it takes, and its first manifest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rbegir.base.checks import whole_number
from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_PLANES, check_dimension
from rbegir.encode.encoder import Encoder, Savable, check_encoder
from rbegir.errors import InputError, MismatchError
from rbegir.index.manifest import ID_TYPES, MODEL, Manifest, commit, prepare


def first_manifest(
    model: Encoder | None,
    n: int | None,
    keyword_planes: int | None,
    query_planes: int | None,
    id_type: str | None,
) -> Manifest:
    """The state of a new index for the codes of a model, or of codes of the given shape."""
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


def make(directory: Path, manifest: Manifest, model: Encoder | None) -> None:
    """An empty index in an empty directory, with the model inside if it can be saved."""
    if isinstance(model, Savable):
        model.save(directory / MODEL)
        manifest = replace(manifest, has_model=True)
    prepare(directory, manifest)
    commit(directory)
