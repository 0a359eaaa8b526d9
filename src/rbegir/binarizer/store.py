"""A fitted Binarizer on disk: `config.json` and `model.safetensors`, by the rules of a model's checkpoint.

    format, version       "rbegir-binarizer", 2; version 1, without the tensor `along`, is read too
    binarizer             the constructor's arguments and what fitting decided (dims, n)
    weights               bytes and crc32c of model.safetensors, tensors: the crc32c of each
    fingerprint           32 hex digits of SHA-256 over `binarizer` and the tensors' checksums
    crc32c                of all that precedes

Every byte is checked at loading: the tensors are a few megabytes. Replacing follows
`rbegir.model.checkpoint`: at every moment the directory holds the old Binarizer or the new one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rbegir._native import _core
from rbegir.binarizer.vectors import Floats
from rbegir.errors import CorruptError, FileError, VersionError
from rbegir.model.checkpoint import CONFIG, NEW, WEIGHTS, _fingerprint, _replace, _with_sum
from rbegir.model.tensorfile import TensorFile, header

FORMAT, VERSION = "rbegir-binarizer", 2
REPAIR = "copy the binarizer again, or fit it anew"
MAX_CONFIG = 1 << 20


class Stored(NamedTuple):
    """What a directory holds."""

    settings: dict[str, Any]
    tensors: dict[str, Floats]
    fingerprint: str


def fingerprint(settings: Mapping[str, Any], tensors: Mapping[str, Floats]) -> str:
    """The name of the space that the codes live in: a hash of the settings and of every weight."""
    return _fingerprint(dict(settings), {name: _core.crc32c(array) for name, array in tensors.items()})


def write(path: str | os.PathLike[str], settings: Mapping[str, Any], tensors: Mapping[str, Floats]) -> str:
    """Write into the directory `path`, replacing what is there; returns the fingerprint."""
    ordered = {name: np.ascontiguousarray(tensors[name], "<f4") for name in sorted(tensors)}
    sums = {name: _core.crc32c(array) for name, array in ordered.items()}
    print_ = _fingerprint(dict(settings), sums)
    head = header({name: a.shape for name, a in ordered.items()}, {"format": FORMAT, "fingerprint": print_})
    whole = _core.crc32c(head)
    for array in ordered.values():
        whole = _core.crc32c(array, whole)
    size = len(head) + sum(array.nbytes for array in ordered.values())
    body = {
        "format": FORMAT,
        "version": VERSION,
        "binarizer": dict(settings),
        "weights": {"bytes": size, "crc32c": whole, "tensors": sums},
        "fingerprint": print_,
    }
    _replace(Path(path), _with_sum(body), [head, *ordered.values()])
    return print_


def read(path: str | os.PathLike[str]) -> Stored:
    """Settings and tensors, every byte checked."""
    directory = Path(path)
    if not (directory / CONFIG).is_file() or not (directory / WEIGHTS).is_file():
        raise FileError(f"no binarizer at {directory}", hint="pass the directory that Binarizer.save wrote")
    file = TensorFile(directory / WEIGHTS)
    bodies = [_body(directory / name) for name in (CONFIG, CONFIG + NEW) if (directory / name).is_file()]
    for body in bodies:
        if body["fingerprint"] == file.metadata.get("fingerprint"):
            break
    else:
        raise CorruptError(f"{CONFIG} and {WEIGHTS} in {directory} do not belong together", hint=REPAIR)
    if file.size != body["weights"]["bytes"] or _core.crc32c(file.data) != body["weights"]["crc32c"]:
        raise CorruptError(f"{directory / WEIGHTS} does not match its checksum", hint=REPAIR)
    tensors = {name: file.array(name) for name in file.spans}
    return Stored(body["binarizer"], tensors, body["fingerprint"])


def is_binarizer(directory: Path) -> bool:
    """Whether a directory holds a Binarizer (and not a model): by the format that its config names."""
    try:
        body = json.loads((directory / CONFIG).read_bytes()[:MAX_CONFIG])
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and body.get("format") == FORMAT


def _body(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    try:
        body = json.loads(text)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise FileError(
                f"{path} is not the config of a binarizer",
                hint="pass the directory that Binarizer.save wrote",
            )
        if body.get("version") not in (1, VERSION):
            raise VersionError(
                f"{path} is of format version {body.get('version')!r}, this rbegir reads version {VERSION}",
                hint="upgrade rbegir, or fit the binarizer anew",
            )
        sound = _with_sum({key: value for key, value in body.items() if key != "crc32c"}) == text
        sound = sound and body["fingerprint"] == _fingerprint(body["binarizer"], body["weights"]["tensors"])
        sound = sound and isinstance(body["weights"]["bytes"], int)
    except FileError:
        raise
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} is not what was written", hint=REPAIR) from error
    if not sound:
        raise CorruptError(f"{path} is not what was written", hint=REPAIR)
    return body
