"""The file that an index keeps instead of its encoder: where the encoder is, and its fingerprint.

    model/encoder.json     format, version, kind, reference (a path or a name), fingerprint, crc32c of these
    model/binarizer/       the Binarizer of an encoder that makes vectors, if it has one

Written and read without any package of encoders, so that opening an index for its codes needs none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rbegir._native import _core
from rbegir.base import disk
from rbegir.errors import CorruptError, VersionError

FORMAT, VERSION, KIND = "rbegir-encoder", 1, "sentence-transformers"
NAME, BINARIZER = "encoder.json", "binarizer"
NEEDED = (  # of `needing`: message and hint where the package is missing
    "encoders of sentence-transformers need that package, release 6 or later",
    "pip install 'rbegir[sentence-transformers]'",
)
MAX_BYTES = 1 << 16


def is_reference(directory: Path) -> bool:
    """Whether a directory holds a reference to an encoder, and not a model."""
    return (directory / NAME).is_file()


def write_reference(directory: Path, reference: str, fingerprint: str) -> None:
    """Write the file; it is durable on return."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "kind": KIND,
        "reference": reference,
        "fingerprint": fingerprint,
    }
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
