"""Codes that come from elsewhere become an index at one stroke, or not at all.

The index is filled in a hidden sibling directory and renamed at the end: whatever fails on the way, bad
input in the last row or a full disk, leaves nothing behind, and files are written to a hidden sibling
likewise.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from rbegir.base import disk
from rbegir.encode.encoder import Encoder
from rbegir.errors import FileError, InputError
from rbegir.index.exchange.export import Keywords, by_text
from rbegir.index.store import Index


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], *, replace: bool = False) -> Iterator[Path]:
    """A hidden sibling, to be a file or a directory; it becomes `path` when the block ends well."""
    target = Path(path).absolute()
    if target.exists() and not replace:
        raise FileError(f"{target} exists already", hint="choose another path")
    if not target.parent.is_dir():
        raise FileError(f"there is no directory {target.parent} to write to")
    stage = target.with_name(f".{target.name}.new-{os.getpid()}")
    _remove(stage)
    try:
        yield stage
        disk.replace(stage, target)
    except OSError as error:
        raise FileError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        _remove(stage)


def land(
    path: str | os.PathLike[str],
    batches: Iterable[Keywords],
    encoder: Encoder | None = None,
    *,
    shape: tuple[int, int] | None = None,
) -> Index:
    """A new index of these keywords; `shape` is (n, planes) where there is no encoder to say it."""
    with staged(path) as stage:
        n, planes = shape or (None, None)
        count = 0
        with Index.create(stage, encoder, n=n, keyword_planes=planes) as index:
            for batch in batches:
                for part in by_text(batch):
                    index.add_codes(part.codes, part.ids, part.attributes or None, texts=part.texts)
                count += len(batch)
        if not count:
            raise InputError("there is nothing to import: no rows", hint="check the source")
    return Index.open(Path(path), model=encoder)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
