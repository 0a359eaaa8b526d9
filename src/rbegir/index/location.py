"""Where an index lies: on a mounted file system, or behind a URL from which it is copied.

    a path, file://…            read in place
    http://, https://           any web server; one that sends ranges can continue an interrupted copy
    s3://, gs://, hdfs:// …     as pyarrow.fs knows them, or fsspec where that is installed

Remote files are copied to a cache directory (RBEGIR_CACHE) and mapped from there. A copy is checked against
its own checksums and the stamp in the manifest, and only then renamed into place, so a file with its final
name is complete. Files are immutable and a stamp identifies one content, so processes share the directory,
and opening the index again copies only what is new.

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
from collections.abc import Callable, Mapping
from contextlib import closing
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
from rbegir.errors import CorruptError, FileError, InputError
from rbegir.index.format import MANIFEST_LIMIT, File, FileKind, Stamp, file_problem, map_file
from rbegir.index.manifest import DELETES_NAME, MODEL, NAME, SEGMENT_NAME, Manifest, read_manifest

CHUNK = 1 << 22  # bytes copied at a time
TIMEOUT_S = 60  # for each response of a web server
FILE_NAME = re.compile(f"{SEGMENT_NAME.pattern}|{DELETES_NAME.pattern}")
FAILURES = (OSError, HTTPException, pa.ArrowException)
COPY_HINT = "check access to it and free space in the cache directory (RBEGIR_CACHE); copying can be resumed"


WEB = "web"  # the file system of http:// and https://


@dataclass(frozen=True)
class Location:
    """An index directory; `filesystem` is None if it is on a mounted file system."""

    root: str  # an absolute path, a path inside the file system, or the URL of a directory on the web
    name: str  # for messages, without credentials
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
            return cls(str(where), f"{filesystem.type_name}:{where}", filesystem)
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
            return cls(path, path)
        name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme in ("http", "https"):
            return cls(text, name, WEB)
        try:
            found, root = _file_system(text)
        except (*FAILURES, ImportError, ValueError) as error:
            raise InputError(
                f"{name} cannot be opened as a file system: {_reason(error)}",
                hint="use a path, https://, s3://, gs:// or hdfs://; for others install fsspec",
            ) from error
        return cls(root, name, found)

    @property
    def is_local(self) -> bool:
        return self.filesystem is None

    @property
    def path(self) -> Path:
        """The directory on this machine: the index itself, or the copies."""
        if self.is_local:
            return Path(self.root)
        return cache_directory() / hashlib.blake2b(self.name.encode(), digest_size=10).hexdigest()

    def manifest(self) -> Manifest:
        """The current state of the index."""
        return read_manifest(self.path) if self.is_local else self._state()[1]

    def fetch(self, files: Mapping[str, tuple[FileKind, Stamp]]) -> Path:
        """Copy what is missing of these files, and return the directory that holds them."""
        for name, (kind, stamp) in files.items():
            if not self.is_local and not _is_there(self.path / name, kind, stamp):
                problem = partial(file_problem, kind=kind, stamp=stamp)
                self._copy(name, stamp.bytes, f"{stamp.check:08x}", problem)
        return self.path

    def model(self) -> Path:
        """Copy what is missing of the stored model, and return its directory."""
        if not self.is_local:
            self._fetch_model(f"{MODEL}/{BINARIZER}", CONFIG)
            self._fetch_model(MODEL, CONFIG)
            self._fetch_model(MODEL, REFERENCE)
        return self.path / MODEL

    def copy(self) -> Path:
        """Copy what is missing of the current state of the index, and return its directory."""
        if self.is_local:
            return self.path
        while True:
            content, manifest = self._state()
            try:
                self.fetch(manifest.files)
                if manifest.has_model:
                    self.model()
                break
            except FileError:  # the state may have been replaced meanwhile
                if self._state()[0] == content:
                    raise
        self._write(NAME, content)
        for old in self.path.iterdir():
            if FILE_NAME.fullmatch(old.name) and old.name not in manifest.files:
                old.unlink(missing_ok=True)
        return self.path

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

    def _fetch_model(self, folder: str, config_name: str) -> None:
        """Copy a config and its weights. The config comes last, so where it exists the weights do too."""
        config = self._read(f"{folder}/{config_name}", MAX_CONFIG)
        here = self.path / folder / config_name
        if config is None or (here.is_file() and here.read_bytes() == config):
            return
        if config_name == CONFIG:
            try:
                weights = json.loads(config)["weights"]
                size, check = int(weights["bytes"]), int(weights["crc32c"])
            except (ValueError, TypeError, KeyError) as error:
                raise CorruptError(
                    f"{self.name}/{folder}/{config_name} cannot be understood",
                    hint="restore the index from a copy",
                ) from error
            self._copy(f"{folder}/{WEIGHTS}", size, f"{check:08x}", partial(_weights_problem, check=check))
        self._write(f"{folder}/{config_name}", config)

    def _copy(self, name: str, size: int, tag: str, problem: Callable[[Path], str]) -> None:
        """Copy a file, or the rest of it, and rename it into place if `problem` finds nothing wrong."""
        final = self.path / name
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
            raise OSError(f"the server answered {error.code}") from error
        return response, start if response.status == 206 else 0

    def _read(self, name: str, most: int) -> bytes | None:
        """The bytes of a small file, or None if it does not exist."""
        try:
            source, _ = self._open(name)
            with closing(source):
                content = b""
                while len(content) <= most and (chunk := source.read(CHUNK)):
                    content += chunk
        except FileNotFoundError:
            return None
        except FAILURES as error:
            raise FileError(
                f"cannot read {name} from {self.name}: {_reason(error)}", hint="check access to it"
            ) from error
        if len(content) > most:
            raise CorruptError(f"{self.name}/{name} has more than {most} bytes", hint="check the address")
        return content

    def _write(self, name: str, content: bytes) -> None:
        with disk.explained("write to", self.path):
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            with disk.staged(self.path / name) as staged:
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


def _is_there(path: Path, kind: FileKind, stamp: Stamp) -> bool:
    try:
        return File(path, kind).stamp == stamp
    except (FileNotFoundError, FileError):
        return False


def _weights_problem(path: Path, check: int) -> str:
    """What is wrong with the weights of a model; an empty text if nothing is."""
    try:
        return "" if crc32c(map_file(path)) == check else "it does not match its checksum"
    except FileNotFoundError:
        return "it is missing"


def _reason(error: BaseException) -> str:
    """The first line of an error from another library, shortened for a message."""
    text = str(getattr(error, "reason", None) or error) or type(error).__name__
    return text.splitlines()[0][:200]
