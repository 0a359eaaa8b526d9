"""A model on disk: a directory with `config.json` and `model.safetensors`. No pickle, nothing that executes.

`config.json`, which a person can read:

    format, version       "rbegir-model", 1
    model                 the fields of ModelConfig
    weights               bytes and crc32c of the file model.safetensors, header_crc32c of what precedes its
                          data, tensors: the crc32c of each
    fingerprint           32 hex digits of SHA-256 over `model` and the tensors' checksums: what an index
                          remembers
    …                     whatever the trainer adds
    crc32c                of all that precedes

*Checking.* `read` checks every byte. `Checkpoint`, which searching uses, checks all of config.json, the
size and the header at once and each tensor at its first use, so that the keyword tower's 200 MB are never
touched by a process that encodes only queries; a flipped byte cannot go unnoticed in anything that is used.
`verify` checks the rest on demand.

*Replacing.* Two files cannot be renamed at once, so the header of the weights carries the fingerprint, and
the order is: write both as `*.new` and sync them, rename the weights, rename the config. Between the two
renames the config that belongs to the weights is `config.json.new`, and readers look there when
fingerprints differ. At every moment, killed or not, the directory holds a whole model: the old one or the
new one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from rbegir._native import _core
from rbegir.errors import CorruptError, FileError, InputError, VersionError
from rbegir.model.presets import ModelConfig
from rbegir.model.shapes import tensor_shapes
from rbegir.model.tensorfile import REPAIR, Array, TensorFile, header

FORMAT, VERSION = "rbegir-model", 1
CONFIG, WEIGHTS, NEW = "config.json", "model.safetensors", ".new"
RESERVED = ("format", "version", "model", "weights", "fingerprint", "crc32c")
MAX_CONFIG = 1 << 24


def write(
    path: str | os.PathLike[str],
    config: ModelConfig,
    tensors: Mapping[str, Array],
    extra: Mapping[str, Any] | None = None,
) -> str:
    """Write a model into the directory `path`, replacing one that is there; returns its fingerprint."""
    shapes = tensor_shapes(config)
    _check_tensors(shapes, tensors)
    taken = sorted(set(extra or {}) & set(RESERVED))
    if taken:
        raise InputError(f"extra must not use the names {', '.join(taken)}")
    ordered = {name: np.ascontiguousarray(tensors[name]) for name in sorted(shapes)}
    sums = {name: _core.crc32c(array) for name, array in ordered.items()}
    fingerprint = _fingerprint(config.to_dict(), sums)
    head = header({name: shapes[name] for name in ordered}, {"format": FORMAT, "fingerprint": fingerprint})
    whole = head_sum = _core.crc32c(head)
    for array in ordered.values():
        whole = _core.crc32c(array, whole)
    size = len(head) + sum(array.nbytes for array in ordered.values())
    weights = {"bytes": size, "crc32c": whole, "header_crc32c": head_sum, "tensors": sums}
    body = {"format": FORMAT, "version": VERSION, "model": config.to_dict(), "weights": weights}
    text = _with_sum({**body, "fingerprint": fingerprint, **(extra or {})})
    _replace(Path(path), text, [head, *ordered.values()])
    return fingerprint


def read(path: str | os.PathLike[str]) -> tuple[ModelConfig, dict[str, Array], dict[str, Any]]:
    """Configuration, memory-mapped tensors and the trainer's additions, every byte checked."""
    checkpoint = Checkpoint(path)
    checkpoint.verify()
    return checkpoint.config, {name: checkpoint.tensor(name) for name in checkpoint.shapes}, checkpoint.extra


class Checkpoint:
    """A model on disk, open. Tensors are mapped and checked as they are asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise FileError(f"no model at {self.path}", hint="pass the directory that training wrote")
        self.file, body, self.config_text = self._open_pair()
        self.config = _model_config(body["model"], self.path / CONFIG)
        self.fingerprint: str = body["fingerprint"]
        self.extra = {key: value for key, value in body.items() if key not in RESERVED}
        self.shapes = tensor_shapes(self.config)
        self._weights: dict[str, Any] = body["weights"]
        self._checked: set[str] = set()
        self._check_header()

    def tensor(self, name: str) -> Array:
        """A tensor, a view of the mapped file; its checksum is verified the first time."""
        array = self.file.array(name)
        if name not in self._checked:
            if _core.crc32c(array) != self._weights["tensors"][name]:
                raise self.file.corrupt(f"does not match its checksum in tensor {name!r}")
            self._checked.add(name)
        return array

    def verify(self) -> None:
        """Check every byte of the weights now."""
        if _core.crc32c(self.file.data) != self._weights["crc32c"]:
            for name in self.shapes:
                self.tensor(name)
            raise self.file.corrupt("does not match its checksum")
        self._checked.update(self.shapes)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """The same model in another directory: a hard link of the weights where that works, else a copy."""
        _replace(Path(directory), self.config_text, self.file)

    def _open_pair(self) -> tuple[TensorFile, dict[str, Any], bytes]:
        """Weights and the config that belongs to them, even while another process replaces both."""
        for _ in range(3):
            configs = [self.path / name for name in (CONFIG, CONFIG + NEW) if (self.path / name).is_file()]
            if not configs:
                raise FileError(f"{self.path} holds no model: {CONFIG} is missing")
            bodies = [_read_config(config) for config in configs]
            if not (self.path / WEIGHTS).is_file():
                raise FileError(f"{self.path} holds no model: {WEIGHTS} is missing", hint=REPAIR)
            weights = TensorFile(self.path / WEIGHTS)
            for body, text in bodies:
                if body["fingerprint"] == weights.metadata.get("fingerprint"):
                    return weights, body, text
        raise CorruptError(f"{CONFIG} and {WEIGHTS} in {self.path} do not belong together", hint=REPAIR)

    def _check_header(self) -> None:
        weights, spans = self._weights, self.file.spans
        if self.file.size != weights["bytes"]:
            raise self.file.corrupt(f"should have {weights['bytes']} bytes, but has {self.file.size}")
        if _core.crc32c(self.file.data[: self.file.data_start]) != weights["header_crc32c"]:
            raise self.file.corrupt("does not match its checksum in the header")
        for name, shape in self.shapes.items():
            if name not in spans:
                raise self.file.corrupt(f"lacks tensor {name!r}")
            if spans[name].shape != shape:
                raise self.file.corrupt(
                    f"holds tensor {name!r} as {list(spans[name].shape)}, its config asks for {list(shape)}"
                )
        surplus = sorted(set(spans) - set(self.shapes))
        if surplus:
            raise self.file.corrupt(f"holds tensor {surplus[0]!r}, of which its config knows nothing")
        if set(weights["tensors"]) != set(self.shapes):
            raise CorruptError(f"{self.path / CONFIG} lists other tensors than {WEIGHTS}", hint=REPAIR)


def _fingerprint(model: dict[str, Any], sums: Mapping[str, int]) -> str:
    text = json.dumps([model, sorted(sums.items())], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _check_tensors(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Array]) -> None:
    for names, what in ((set(shapes) - set(tensors), "lack"), (set(tensors) - set(shapes), "must not hold")):
        if names:
            raise InputError(f"tensors {what} {', '.join(sorted(names))}")
    for name, shape in shapes.items():
        array = tensors[name]
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != shape:
            came = (
                f"{array.dtype} {list(array.shape)}"
                if isinstance(array, np.ndarray)
                else type(array).__name__
            )
            raise InputError(f"tensor {name!r} must be float32 {list(shape)}, got {came}")
        if not np.isfinite(array).all():
            raise InputError(
                f"tensor {name!r} holds NaN or infinity", hint="training diverged: lower the rate"
            )


def _dump(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, indent=2, allow_nan=False).encode() + b"\n"


def _with_sum(body: Mapping[str, Any]) -> bytes:
    """The bytes of config.json: `body` and, last, its checksum."""
    try:
        plain = json.loads(_dump(body))
    except (TypeError, ValueError) as error:
        raise InputError(f"extra must be plain JSON: {error}") from error
    return _dump({**plain, "crc32c": _core.crc32c(_dump(plain))})


def _read_config(path: Path) -> tuple[dict[str, Any], bytes]:
    """The content of a config file, once it is sure to be what was written."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_CONFIG)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    try:
        body = json.loads(text)
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise FileError(f"{path} is not the config of an rbegir model", hint="pass a model's directory")
        if body.get("version") != VERSION:
            raise VersionError(
                f"{path} is of format version {body.get('version')!r}, this rbegir reads version {VERSION}",
                hint="upgrade rbegir, or train the model anew",
            )
        whole = _with_sum({key: value for key, value in body.items() if key != "crc32c"}) == text
        weights = body["weights"]
        sound = whole and set(weights) == {"bytes", "crc32c", "header_crc32c", "tensors"}
        sound = sound and body["fingerprint"] == _fingerprint(body["model"], weights["tensors"])
    except FileError:
        raise
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"{path} is not what was written", hint=REPAIR) from error
    if not sound:
        raise CorruptError(f"{path} is not what was written", hint=REPAIR)
    return body, text


def _model_config(data: Any, path: Path) -> ModelConfig:
    """ModelConfig refuses wrong values; wrong types, which only a forged file can hold, are refused here."""
    defaults = ModelConfig().to_dict()
    if not isinstance(data, dict) or set(data) != {field.name for field in fields(ModelConfig)}:
        raise CorruptError(f"{path} does not hold the settings of a model", hint=REPAIR)
    for name, value in data.items():
        members = value if isinstance(value, list) else []
        if type(value) is not type(defaults[name]) or not all(type(member) is int for member in members):
            raise CorruptError(f"{path} sets {name} to {value!r}", hint=REPAIR)
    try:
        return ModelConfig.from_dict(data)
    except InputError as error:
        raise CorruptError(f"{path}: {error.message}", hint=REPAIR) from error


def _replace(directory: Path, config: bytes, weights: list[Any] | TensorFile) -> None:
    """Put both files in place, in the order that the docstring explains."""
    new_weights, new_config = directory / (WEIGHTS + NEW), directory / (CONFIG + NEW)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if new_config.exists() and not new_weights.exists():  # killed between the two renames: finish them
            os.replace(new_config, directory / CONFIG)
        try:
            if not isinstance(weights, TensorFile):
                _write_synced(new_weights, weights)
            elif not _link(weights, new_weights):
                _write_synced(new_weights, [weights.data])
            _write_synced(new_config, [config])
            _sync(directory)
        except OSError:  # a full disk: the model that was there stays as it is
            new_config.unlink(missing_ok=True)
            new_weights.unlink(missing_ok=True)
            raise
        os.replace(new_weights, directory / WEIGHTS)
        os.replace(new_config, directory / CONFIG)
        _sync(directory)
    except OSError as error:
        raise FileError(f"cannot write a model to {directory}: {error.strerror}") from error


def _link(weights: TensorFile, target: Path) -> bool:
    """Whether `target` is now a hard link of the file that is open (its path may be another file by now)."""
    with suppress(OSError):
        target.unlink(missing_ok=True)
        os.link(weights.path, target)
        status = target.stat()
        if (status.st_dev, status.st_ino) == weights.inode:
            return True
        target.unlink()
    return False


def _write_synced(path: Path, parts: list[Any]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(memoryview(part).cast("B"))
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
