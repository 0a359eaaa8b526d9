"""Reading an index from end to end: every byte against its checksum, then whether the parts agree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rbegir.encode.binarizer.store import is_binarizer
from rbegir.encode.sentence.reference import BINARIZER, is_reference, read_reference
from rbegir.errors import CorruptError, FileError
from rbegir.index.format import File, Kind
from rbegir.index.manifest import MODEL, NAME, Manifest, read_manifest
from rbegir.index.snapshot import Snapshot


def damage(directory: Path) -> Iterator[FileError]:
    """Everything that is wrong with an index, file by file; what is wrong with one does not hide another.

    Without a readable manifest there is nothing to compare with, so that is raised.
    """
    manifest = read_manifest(directory)
    yield from File(directory / NAME, Kind.MANIFEST).damage()
    if manifest.has_model:
        yield from model_damage(directory / MODEL)
    try:
        whole = Snapshot.open(directory)
    except FileError:
        yield from _one_by_one(directory, manifest)
    else:
        yield from whole.damage()


def _one_by_one(directory: Path, manifest: Manifest) -> Iterator[FileError]:
    """The segments of a state that does not open as a whole, each as if it were alone."""
    for entry in manifest.segments:
        try:
            alone = Snapshot(directory, replace(manifest, segments=(entry,)))
        except FileError as error:
            yield error
        except FileNotFoundError as error:
            yield CorruptError(f"{error.filename} is missing, but the manifest names it")
        else:
            yield from alone.damage()


def model_damage(directory: Path) -> Iterator[FileError]:
    """What is wrong with the model, the Binarizer or the reference to an encoder that is stored along."""
    from rbegir.encode.binarizer.estimator import Binarizer
    from rbegir.encode.clsm.model import Model

    try:
        if is_reference(directory):
            read_reference(directory)
            if (directory / BINARIZER).is_dir():
                Binarizer.load(directory / BINARIZER)
        elif is_binarizer(directory):
            Binarizer.load(directory)
        else:
            Model.load(directory).verify()
    except FileError as error:
        yield error
