"""A stored encoder: a directory of `config.json` and `model.safetensors`, which are replaced together.

Models and Binarizers are stored this way; a `DirectoryKind` says what differs between them. The config:

    format, version       of this kind of directory
    model | binarizer     the settings
    weights               bytes and crc32c of model.safetensors; tensors: the crc32c of each tensor;
                          for a model also header_crc32c, of what precedes the data
    fingerprint           32 hex digits of SHA-256 over the settings and the tensors' checksums
    …                     anything else the writer adds
    crc32c                of everything above

*Replacing.* Two files cannot be renamed atomically, so the header of the weights carries the fingerprint, and
the order is: write both as `*.new` and sync them, rename the weights, rename the config. Between the two
renames the config of the weights is `config.json.new`, and readers look there if the fingerprints differ. At
every moment, even after a crash, the directory holds one complete pair: the old or the new.

*Weights* are a file of tensors in the layout of the `safetensors` package, mapped into memory:

    8 bytes      length of the header, little-endian
    header       JSON: name → {"dtype": "F32" or "I8", "shape": […], "data_offsets": [first, last]}, and
                 optionally "__metadata__": string → string; padded with spaces to a multiple of 64 bytes
    data         the tensors end to end without gaps; offsets count from here

They are read here, not by the package, so that searching does not depend on it and every number in the
header is checked against the size of the file before it is used. If the file is cut short while it is mapped,
missing pages read as zeros (`rbegir.base.mapping`), and whoever read them calls `check_intact` before using
what was read. A tensor that is kept for longer than that is copied, except the gram tables of a model.
"""

import hashlib
import json
import math
import mmap
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.base import disk, mapping
from rbegir.errors import CorruptError, FileError, InputError, VersionError

CONFIG, WEIGHTS, NEW = "config.json", "model.safetensors", ".new"
MAX_CONFIG = MAX_HEADER = 1 << 24
ALIGNMENT = 64
REPAIR = "copy the model again, or train it again"

Array = npt.NDArray[np.float32]
DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "I8": np.dtype("i1")}


@dataclass(frozen=True)
class DirectoryKind:
    """The format and the wording of messages of one kind of directory."""

    format: str
    version: int
    noun: str  # "model": also the name of the settings in the config
    article: str  # "an rbegir model"
    older: tuple[int, ...] = ()  # earlier versions that can be read
    weights: frozenset[str] = frozenset({"bytes", "crc32c", "tensors"})  # the keys of `weights`
    find: str = "pass the directory that training wrote"  # hint: which directory to pass
    renew: str = "train the model again"  # hint: how to get a version that can be read, besides upgrading
    repair: str = REPAIR  # hint: what to do about damage


class Span(NamedTuple):
    """The shape of a tensor, its byte range in the file, and its type."""

    shape: tuple[int, ...]
    start: int
    stop: int
    dtype: np.dtype[Any] = DTYPES["F32"]


def header(tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """Everything before the data: the length and the header, for tensors in their order."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in tensors.items():
        start, end = end, end + array.nbytes
        dtype = "I8" if array.dtype == np.int8 else "F32"
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


class TensorFile:
    """A mapped file of tensors; `spans` lists them. `check_intact` says whether to believe what was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(disk.open_regular(path), "rb") as file:
                status = os.fstat(file.fileno())
                self.size, self.inode = status.st_size, (status.st_dev, status.st_ino)
                if self.size < 8:
                    raise CorruptError(f"{path} has only {self.size} bytes", hint=REPAIR)
                self.data = mapping.Mapping(file.fileno(), self.size, access=mmap.ACCESS_READ)
                self.data.protect()
        except OSError as error:
            raise FileError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:  # it has fewer bytes by now
            raise CorruptError(f"{path} was truncated while it was being opened", hint=REPAIR) from error
        self.data_start = 8 + int.from_bytes(self.data[:8], "little")
        if self.data_start > min(self.size, MAX_HEADER):
            raise self.corrupt(f"names a header of {self.data_start - 8} bytes")
        self.metadata, self.spans = self._parse()

    def corrupt(self, what: str) -> CorruptError:
        if self.data.broken:  # which explains whatever was found
            what = "was truncated while it was being read, or the disk cannot read it"
        return CorruptError(f"{self.path} {what}", hint=REPAIR)

    def array(self, name: str) -> npt.NDArray[Any]:
        """A tensor as a read-only view of the mapped file."""
        mapping.arm()
        span = self.spans[name]
        count = (span.stop - span.start) // span.dtype.itemsize
        if count == 0:
            return np.zeros(span.shape, dtype=span.dtype)
        flat = np.frombuffer(self.data, dtype=span.dtype, count=count, offset=span.start)
        return flat.reshape(span.shape)

    def checksum(self, stop: int | None = None) -> int:
        """The CRC-32C of all bytes, or of those before `stop`."""
        mapping.arm()
        return _core.crc32c(memoryview(self.data)[:stop])

    def check_intact(self) -> None:
        """Refuse what was read if a page of it was missing."""
        if self.data.broken:
            raise self.corrupt("")

    def _parse(self) -> tuple[dict[str, str], dict[str, Span]]:
        try:
            text = self.data[8 : self.data_start].decode()
            entries = json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self.corrupt("has a header that is not JSON") from error
        if not isinstance(entries, dict):
            raise self.corrupt("has a header that is no JSON object")
        metadata = entries.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise self.corrupt("has metadata that are not strings")
        spans = {name: self._span(name, entry) for name, entry in entries.items()}
        end = self.data_start
        for name, span in sorted(spans.items(), key=lambda item: item[1][1:3]):
            if span.start != end:
                raise self.corrupt(f"has a gap or an overlap before tensor {name!r}")
            end = span.stop
        if end != self.size:
            raise self.corrupt(f"should have {end} bytes, but has {self.size}")
        return metadata, spans

    def _span(self, name: str, entry: Any) -> Span:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self.corrupt(f"describes tensor {name!r} wrongly")
        shape, offsets = entry["shape"], entry["data_offsets"]
        dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None:
            known = " and ".join(DTYPES)
            raise self.corrupt(f"holds tensor {name!r} as {entry['dtype']!r}; a model has only {known}")
        if not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
            raise self.corrupt(f"describes tensor {name!r} wrongly")
        start, stop = (self.data_start + offset for offset in offsets)
        if stop > self.size:
            raise self.corrupt(f"was cut: it has {self.size} bytes, and tensor {name!r} ends at byte {stop}")
        if start > stop or stop - start != dtype.itemsize * math.prod(shape) or start % dtype.itemsize:
            raise self.corrupt(f"places tensor {name!r} {shape} at bytes {offsets}, which cannot be")
        return Span(tuple(shape), start, stop, dtype)


class Pair(NamedTuple):
    """A config and the weights that belong to it."""

    weights: TensorFile
    body: dict[str, Any]
    text: bytes  # the config as it was written


def fingerprint(settings: Mapping[str, Any], sums: Mapping[str, int]) -> str:
    """The fingerprint of the codes' space: a hash of the settings and of every tensor's checksum."""
    text = json.dumps([settings, sorted(sums.items())], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def seal(body: Mapping[str, Any]) -> bytes:
    """The bytes of config.json: `body`, followed by its checksum."""
    try:
        plain = json.loads(_dump(body))
    except (TypeError, ValueError) as error:
        raise InputError(f"extra must be plain JSON: {error}") from error
    return _dump({**plain, "crc32c": _core.crc32c(_dump(plain))})


def write_pair(
    directory: Path,
    kind: DirectoryKind,
    settings: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any]],
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Store settings and tensors, replacing existing ones; returns the fingerprint."""
    ordered = {
        name: np.ascontiguousarray(tensors[name])
        for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    }
    sums = {name: _core.crc32c(array) for name, array in ordered.items()}
    name = fingerprint(settings, sums)
    head = header(ordered, {"format": kind.format, "fingerprint": name})
    whole = head_sum = _core.crc32c(head)
    for array in ordered.values():
        whole = _core.crc32c(array, whole)
    size = len(head) + sum(array.nbytes for array in ordered.values())
    weights = {"bytes": size, "crc32c": whole, "header_crc32c": head_sum, "tensors": sums}
    body = {
        "format": kind.format,
        "version": kind.version,
        kind.noun: settings,
        "weights": {key: value for key, value in weights.items() if key in kind.weights},
        "fingerprint": name,
        **(extra or {}),
    }
    replace(directory, kind, seal(body), [head, *ordered.values()])
    return name


def read_pair(directory: Path, kind: DirectoryKind) -> Pair:
    """Read the config and open its weights, even while another process replaces both; no tensor is read."""
    if not directory.is_dir():
        raise FileError(f"no {kind.noun} at {directory}", hint=kind.find)
    for _ in range(3):
        configs = [directory / name for name in (CONFIG, CONFIG + NEW) if (directory / name).is_file()]
        if not configs:
            raise FileError(f"{directory} holds no {kind.noun}: {CONFIG} is missing", hint=kind.find)
        body, text = _read_config(configs[0], kind)
        if not (directory / WEIGHTS).is_file():
            raise FileError(f"{directory} holds no {kind.noun}: {WEIGHTS} is missing", hint=kind.repair)
        weights = TensorFile(directory / WEIGHTS)
        made_for = weights.metadata.get("fingerprint")
        if body["fingerprint"] != made_for:
            with suppress(FileError):  # it was renamed just now, or a crash left only a part of it
                body, text = _read_config(configs[-1], kind)
        if body["fingerprint"] == made_for:
            return Pair(weights, body, text)
    raise CorruptError(f"{CONFIG} and {WEIGHTS} in {directory} do not belong together", hint=kind.repair)


def read_checked(directory: Path, kind: DirectoryKind) -> tuple[dict[str, Any], dict[str, Array]]:
    """The settings and copies of all tensors of a directory of a few megabytes, every byte checked."""
    file, body, _ = read_pair(directory, kind)
    if file.size != body["weights"]["bytes"] or file.checksum() != body["weights"]["crc32c"]:
        raise CorruptError(f"{directory / WEIGHTS} does not match its checksum", hint=kind.repair)
    tensors = {name: file.array(name).copy() for name in file.spans}
    file.check_intact()
    return dict(body[kind.noun]), tensors


def replace(directory: Path, kind: DirectoryKind, config: bytes, weights: list[Any] | TensorFile) -> None:
    """Replace both files in the order explained above; an open file is hard-linked if possible."""
    new_weights, new_config = directory / (WEIGHTS + NEW), directory / (CONFIG + NEW)
    with disk.explained(f"write a {kind.noun} to", directory):
        directory.mkdir(parents=True, exist_ok=True)
        if new_config.exists() and not new_weights.exists():  # a crash between the two renames: finish them
            disk.rename(new_config, directory / CONFIG)
        try:
            if not isinstance(weights, TensorFile):
                disk.write_file(new_weights, *(memoryview(part).cast("B") for part in weights))
            elif not _link(weights, new_weights):
                weights.checksum()  # reads every page: a write would report a missing one as a bad address
                disk.write_file(new_weights, memoryview(weights.data).cast("B"))
                weights.check_intact()
            disk.write_file(new_config, config)
            disk.sync_directory(directory)
        except (OSError, CorruptError):  # such as a full disk: what was there stays as it is
            new_config.unlink(missing_ok=True)
            new_weights.unlink(missing_ok=True)
            raise
        disk.rename(new_weights, directory / WEIGHTS)
        disk.rename(new_config, directory / CONFIG)
        disk.sync_directory(directory)


def is_kind(directory: Path, kind: DirectoryKind) -> bool:
    """Whether a directory is of this kind, by the format that its config names."""
    try:
        body = json.loads(disk.read_small(directory / CONFIG, MAX_CONFIG))
    except (FileError, ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("format") == kind.format


def _read_config(path: Path, kind: DirectoryKind) -> tuple[dict[str, Any], bytes]:
    """Read a config file and check that it is exactly what was written."""
    text = disk.read_small(path, MAX_CONFIG)
    try:
        body = json.loads(text)
        if not isinstance(body, dict) or body.get("format") != kind.format:
            raise FileError(f"{path} is not the config of {kind.article}", hint=kind.find)
        if body.get("version") not in (kind.version, *kind.older):
            raise VersionError(
                f"{path} is of format version {body.get('version')!r}, "
                f"this rbegir reads version {kind.version}",
                hint=f"upgrade rbegir, or {kind.renew}",
            )
        weights = body["weights"]
        same = seal({key: value for key, value in body.items() if key != "crc32c"}) == text
        if not same or set(weights) != kind.weights:
            raise ValueError("not what was written")
        if body["fingerprint"] != fingerprint(body[kind.noun], weights["tensors"]):
            raise ValueError("not what was written")
    except FileError:
        raise
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} is not what was written", hint=kind.repair) from error
    return body, text


def _dump(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, indent=2, allow_nan=False).encode() + b"\n"


def _link(weights: TensorFile, target: Path) -> bool:
    """Hard-link the open file to `target`; False if that fails, or if another file has its path by now."""
    with suppress(OSError):
        target.unlink(missing_ok=True)
        os.link(weights.path, target)
        status = target.stat()
        if (status.st_dev, status.st_ino) == weights.inode:
            return True
        target.unlink()
    return False


def _naturals(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)
