"""Where an index lies: on a mounted file system, or behind a URL from which it is copied.

    a path, file://…            read in place
    http://, https://           any web server; one that sends ranges can continue an interrupted copy
    s3://, gs://, hdfs:// …     as pyarrow.fs knows them, or fsspec where that is installed

Remote files are copied to a cache directory (RBEGIR_CACHE) and mapped from there. A copy is checked against
its own checksums and the stamp in the manifest, and only then renamed into place, so a file with its final
name is complete. Opening the index again copies only what is new.

    RBEGIR_CACHE/<address>/            segments and deletes that the shards of a cluster search
    RBEGIR_CACHE/<address>/<model>/    an index: MANIFEST, model/, and the segments and deletes of that state

`<address>` is a hash of the whole URL but for the user and password, `<model>` one of the fingerprint in the
manifest and of all configs of the model, which hold the checksums of its weights. Processes share these
directories: a stamp identifies one content, a model never changes, and whoever copies an index to open it
holds a lock until it is open.

A copy grows as `.segment-00000000.rbs.1a2b3c4d.part`, named after its stamp and locked by the process that
writes it. A process that finds it locked waits, and then finds the file complete. A process that finds it
unlocked continues where the last one was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import Request, urlopen

import pyarrow as pa
from pyarrow import fs

from rbegir._native._core import crc32c
from rbegir.base import disk
from rbegir.encode.directory import CONFIG, MAX_CONFIG, WEIGHTS
from rbegir.encode.encoder import BINARIZER
from rbegir.encode.encoder import NAME as REFERENCE
from rbegir.encode.reranker import FOLDER as RERANKER
from rbegir.errors import CorruptError, FileError, InputError
from rbegir.index.format import MANIFEST_LIMIT, File, FileKind, Stamp, file_problem, map_file
from rbegir.index.manifest import DELETES_NAME, MODEL, NAME, SEGMENT_NAME, Manifest, read_manifest

CHUNK = 1 << 22  # bytes copied at a time
TIMEOUT_S = 60  # for each response of a web server
FILE_NAME = re.compile(f"{SEGMENT_NAME.pattern}|{DELETES_NAME.pattern}")
LOCK = ".lock"
MODEL_CONFIGS = [  # in the order in which they are written: the last one completes the model
    f"{MODEL}/{name}" for name in (f"{BINARIZER}/{CONFIG}", f"{RERANKER}/{CONFIG}", CONFIG, REFERENCE)
]
FAILURES = (OSError, HTTPException, pa.ArrowException)
COPY_HINT = "check access to it and free space in the cache directory (RBEGIR_CACHE); copying can be resumed"


WEB = "web"  # the file system of http:// and https://


@dataclass(frozen=True)
class Location:
    """An index directory; `filesystem` is None if it is on a mounted file system."""

    root: str  # an absolute path, a path inside the file system, or the URL of a directory on the web
    name: str  # for messages, without credentials
    address: str  # what names the copies: without user and password, with the query of a URL
    filesystem: Any = None

    @classmethod
    def of(cls, where: str | Path, filesystem: Any = None) -> Location:
        """A path, a URL, or a path inside a given pyarrow FileSystem."""
        if filesystem is not None:
            if not isinstance(filesystem, fs.FileSystem):
                raise InputError(
                    f"filesystem must be a pyarrow.fs.FileSystem, got {type(filesystem).__name__}",
                    hint="wrap an fsspec one: pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(f))",
                )
            name = f"{filesystem.type_name}:{where}"
            return cls(str(where), name, name, filesystem)
        text = str(where)
        try:
            parts = urlsplit(text)
        except ValueError as error:
            raise InputError(
                f"the URL of the index cannot be understood: {error}",
                hint="write for example https://host/ads.rbe",
            ) from None
        if "://" not in text or parts.scheme == "file":
            path = str(Path(unquote(parts.path) if parts.scheme == "file" else text).absolute())
            return cls(path, path, path)
        name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        address = f"{name}?{parts.query}" if parts.query else name
        if parts.scheme in ("http", "https"):
            return cls(text, name, address, WEB)
        try:
            found, root = _file_system(text)
        except (*FAILURES, ImportError, ValueError) as error:
            raise InputError(
                f"{name} cannot be opened as a file system: {_reason(error)}",
                hint="use a path, https://, s3://, gs:// or hdfs://; for others install fsspec",
            ) from error
        return cls(root, name, address, found)

    @property
    def is_local(self) -> bool:
        return self.filesystem is None

    @property
    def path(self) -> Path:
        """The directory on this machine: the index itself, or the copies."""
        if self.is_local:
            return Path(self.root)
        return cache_directory() / _digest(self.address.encode())

    def manifest(self) -> Manifest:
        """The current state of the index."""
        return read_manifest(self.path) if self.is_local else self._state()[1]

    def fetch(self, files: Mapping[str, tuple[FileKind, Stamp]], folder: Path | None = None) -> Path:
        """Copy what is missing of these files to a directory of the copies, and return it."""
        folder = folder or self.path
        for name, (kind, stamp) in files.items():
            if not self.is_local and not _is_there(folder / name, kind, stamp):
                problem = partial(file_problem, kind=kind, stamp=stamp)
                self._copy(folder, name, stamp.bytes, f"{stamp.check:08x}", problem)
        return folder

    def model(self, manifest: Manifest) -> Path:
        """Copy what is missing of the model of a state, and return its directory."""
        return (self.path if self.is_local else self._with_model(manifest)) / MODEL

    @contextmanager
    def copied(self) -> Iterator[Path]:
        """Copy what is missing of the current state; its directory stays as it is while the block runs."""
        if self.is_local:
            yield self.path
            return
        with disk.explained("write to", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = disk.open_locked(self.path / LOCK, wait=True)
        with open(lock, "rb"):
            while True:
                content, manifest = self._state()
                try:
                    folder = self._with_model(manifest)
                    self._reuse(manifest.files, folder)
                    self.fetch(manifest.files, folder)
                    break
                except FileError:  # the state may have been replaced meanwhile
                    if self._state()[0] == content:
                        raise
            self._write(folder / NAME, content)
            for old in self.path.rglob("*"):
                kind, stamp = manifest.files.get(old.name, (None, None))
                if FILE_NAME.fullmatch(old.name) and not (kind and stamp and _is_there(old, kind, stamp)):
                    old.unlink(missing_ok=True)
            yield folder

    def _with_model(self, manifest: Manifest) -> Path:
        """Copy what is missing of the model of a state, and return the directory of that state."""
        denied: dict[str, str] = {}  # what S3 answers for absent files to those who may not list them
        names = MODEL_CONFIGS if manifest.has_model else []
        found = {name: self._read(name, MAX_CONFIG, denied) for name in names}
        configs = {name: config for name, config in found.items() if config is not None}
        needed = f"{MODEL}/{RERANKER}/{CONFIG}" if configs else f"{MODEL}/{CONFIG}"
        if needed in denied and (not configs or _was_reranked(configs.get(f"{MODEL}/{CONFIG}", b""))):
            raise FileError(
                f"cannot read {needed} from {self.name}: {denied[needed]}",
                hint="allow reading all files of the index",
            )
        if configs and self._state()[1].fingerprint != manifest.fingerprint:
            raise FileError(
                f"{self.name} was replaced by an index of another model", hint="open the index again"
            )
        folder = self.path / _digest(repr((manifest.fingerprint, configs)).encode())
        for name, config in configs.items():
            self._fetch_model(folder, name, config)
        return folder

    def _state(self) -> tuple[bytes, Manifest]:
        """The manifest, as bytes and parsed."""
        content = self._read(NAME, MANIFEST_LIMIT + (1 << 16))  # with header, table and footer
        if content is None:
            raise FileError(
                f"{self.name} is not an rbegir index: it has no MANIFEST", hint="check the address"
            )
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / NAME).write_bytes(content)
            return content, read_manifest(Path(folder))

    def _fetch_model(self, folder: Path, name: str, config: bytes) -> None:
        """Write a config, after the weights that it names, if any."""
        if (folder / name).is_file() and (folder / name).read_bytes() == config:
            return
        if name.endswith(CONFIG):
            try:
                weights = json.loads(config)["weights"]
                size, check = int(weights["bytes"]), int(weights["crc32c"])
            except (ValueError, TypeError, KeyError) as error:
                raise CorruptError(
                    f"{self.name}/{name} cannot be understood", hint="restore the index from a copy"
                ) from error
            file = name.removesuffix(CONFIG) + WEIGHTS
            self._copy(folder, file, size, f"{check:08x}", partial(_weights_problem, check=check))
        self._write(folder / name, config)

    def _reuse(self, files: Mapping[str, tuple[FileKind, Stamp]], folder: Path) -> None:
        """Link what other directories of the copies have of these files."""
        for name, (kind, stamp) in files.items():
            same = [path for path in self.path.rglob(name) if _is_there(path, kind, stamp)]
            if same and folder / name not in same:
                folder.mkdir(exist_ok=True)
                (folder / name).unlink(missing_ok=True)
                disk.link(same[0], folder / name)

    def _copy(self, folder: Path, name: str, size: int, tag: str, problem: Callable[[Path], str]) -> None:
        """Copy a file, or the rest of it, and rename it into place if `problem` finds nothing wrong."""
        final = folder / name
        part = final.with_name(f".{final.name}.{tag}.part")
        with disk.explained("write to", self.path):
            final.parent.mkdir(parents=True, exist_ok=True)
            with open(disk.open_locked(part, wait=True), "r+b", buffering=0) as file:
                descriptor = file.fileno()
                if not problem(final):  # another process was faster
                    part.unlink()
                    return
                continued = os.fstat(descriptor).st_size > 0
                self._append(name, descriptor, size)
                if (found := problem(part)) and continued:  # perhaps it began as a copy of another file
                    os.ftruncate(descriptor, 0)
                    self._append(name, descriptor, size)
                    found = problem(part)
                if found:
                    part.unlink()
                    raise CorruptError(
                        f"the copy of {self.name}/{name} is damaged: {found}",
                        hint="check the original with `rbegir index verify`",
                    )
                disk.replace(part, final)

    def _append(self, name: str, descriptor: int, size: int) -> None:
        """Copy the rest of a file of `size` bytes. A lost connection is renewed as long as bytes arrive."""
        most, lost = -1, "it is shorter than the index says"
        while (have := os.fstat(descriptor).st_size) < size:
            if have <= most:
                raise FileError(f"cannot copy {name} from {self.name}: {lost}", hint=COPY_HINT)
            most = have
            try:
                source, start = self._open(name, have)
                with closing(source):
                    os.ftruncate(descriptor, start)
                    os.lseek(descriptor, start, os.SEEK_SET)
                    while chunk := source.read(CHUNK):
                        disk.write(descriptor, chunk)
            except FAILURES as error:
                lost = _reason(error)

    def _open(self, name: str, start: int = 0) -> tuple[Any, int]:
        """Stream a file from `start`, or from 0 if a server has no ranges; also returns where it starts."""
        if self.filesystem != WEB:
            source = self.filesystem.open_input_file(f"{self.root}/{name}")
            source.seek(start)
            return source, start
        parts = urlsplit(self.root)
        address = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{quote(name)}"))
        request = Request(address, headers={"Range": f"bytes={start}-"} if start else {})
        try:
            response = urlopen(request, timeout=TIMEOUT_S)
        except HTTPError as error:
            error.close()
            if error.code in (404, 410):
                raise FileNotFoundError(f"there is no {name}") from error
            kind = PermissionError if error.code == 403 else OSError
            raise kind(f"the server answered {error.code}") from error
        return response, start if response.status == 206 else 0

    def _read(self, name: str, most: int, denied: dict[str, str] | None = None) -> bytes | None:
        """The bytes of a small file; None if it is absent, or refused and `denied` takes the reason."""
        try:
            source, _ = self._open(name)
            with closing(source):
                content = b""
                while len(content) <= most and (chunk := source.read(CHUNK)):
                    content += chunk
        except FileNotFoundError:
            return None
        except FAILURES as error:
            if denied is not None and (isinstance(error, PermissionError) or "_DENIED" in str(error)):
                denied[name] = _reason(error)
                return None
            raise FileError(
                f"cannot read {name} from {self.name}: {_reason(error)}", hint="check access to it"
            ) from error
        if len(content) > most:
            raise CorruptError(f"{self.name}/{name} has more than {most} bytes", hint="check the address")
        return content

    def _write(self, path: Path, content: bytes) -> None:
        with disk.explained("write to", self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with disk.staged(path) as staged:
                staged.write_bytes(content)


def cache_directory() -> Path:
    """Where copies are kept: RBEGIR_CACHE, or the user's cache."""
    chosen = os.environ.get("RBEGIR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "rbegir"


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path inside it."""
    try:
        return fs.FileSystem.from_uri(url)  # type: ignore[no-any-return]
    except pa.ArrowInvalid as error:
        if "Unrecognized filesystem type" not in str(error):
            raise
        import fsspec

        found, root = fsspec.core.url_to_fs(url)
        return fs.PyFileSystem(fs.FSSpecHandler(found)), root


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=10).hexdigest()


def _is_there(path: Path, kind: FileKind, stamp: Stamp) -> bool:
    try:
        return File(path, kind).stamp == stamp
    except (FileNotFoundError, FileError):
        return False


def _was_reranked(config: bytes) -> bool:
    """Whether a reranker was fitted when the model of this config was trained."""
    try:
        training = json.loads(config)["training"]
        return bool(training["rerank"] and training["guide"])
    except (ValueError, TypeError, KeyError):  # of a Binarizer, for example
        return False


def _weights_problem(path: Path, check: int) -> str:
    """The problem with the weights of a model, or an empty text."""
    try:
        return "" if crc32c(map_file(path)) == check else "it does not match its checksum"
    except FileNotFoundError:
        return "it is missing"


def _reason(error: BaseException) -> str:
    """The first line of an error from another library, shortened for a message."""
    text = str(getattr(error, "reason", None) or error) or type(error).__name__
    return text.splitlines()[0][:200]
