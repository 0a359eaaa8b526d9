"""A fitted Binarizer on disk: the directory of `rbegir.encode.directory`, as for a model.

`config.json` holds the constructor's arguments and what fitting decided (dims, n) as `binarizer`. Every byte
is checked at loading: the tensors are a few megabytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rbegir._native import _core
from rbegir.encode import directory
from rbegir.encode.binarizer.vectors import Floats
from rbegir.encode.directory import DirectoryKind, write_pair

REPAIR = "copy the binarizer again, or fit it anew"
KIND = DirectoryKind(
    format="rbegir-binarizer",
    version=2,  # version 1 has no tensor `along`
    older=(1,),
    noun="binarizer",
    article="a binarizer",
    weights=frozenset({"bytes", "crc32c", "tensors"}),
    find="pass the directory that Binarizer.save wrote",
    renew="fit the binarizer anew",
    repair=REPAIR,
)


def fingerprint(settings: Mapping[str, Any], tensors: Mapping[str, Floats]) -> str:
    """The name of the space that the codes live in: a hash of the settings and of every weight."""
    return directory.fingerprint(settings, {name: _core.crc32c(array) for name, array in tensors.items()})


def write(path: str | os.PathLike[str], settings: Mapping[str, Any], tensors: Mapping[str, Floats]) -> str:
    """Write into the directory `path`, replacing what is there; returns the fingerprint."""
    whole = {name: np.ascontiguousarray(array, "<f4") for name, array in tensors.items()}
    return write_pair(Path(path), KIND, settings, whole)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Settings and tensors, every byte checked."""
    return directory.read_checked(Path(path), KIND)


def is_binarizer(path: Path) -> bool:
    """Whether a directory holds a Binarizer (and not a model)."""
    return directory.is_kind(path, KIND)
