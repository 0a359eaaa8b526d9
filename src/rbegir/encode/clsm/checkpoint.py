"""A model on disk: the directory of `rbegir.encode.directory` with the tensors of a ModelConfig. No pickle.

`config.json` holds the fields of ModelConfig as `model`, and whatever the trainer adds. Its fingerprint is
what an index remembers.

*Gram tables* are most of a model. They are stored as bytes with a scale for each of the three parts of a row,
`{tower}.conv.scale` [V, 3]: a quarter of the size. A scale has 16 significant bits, so that its product with
a byte is exact and a table that is read and written again stays the same. Models of version 1, and those
written with `whole`, have float32 tables.

*Checking.* `read` checks every byte. `Checkpoint`, which searching uses, checks config.json, the size and the
header at once and each tensor at its first use: a process that encodes only queries never reads the keyword
tower. `verify` checks the rest on demand.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.encode.clsm.presets import ModelConfig, tensor_shapes
from rbegir.encode.directory import CONFIG, WEIGHTS, Array, DirectoryKind, read_pair, replace, write_pair
from rbegir.errors import CorruptError, InputError, describe

__all__ = ["CONFIG", "WEIGHTS", "Checkpoint", "read", "write"]

KIND = DirectoryKind(
    format="rbegir-model",
    version=2,  # version 1 has no tables of bytes
    older=(1,),
    noun="model",
    article="an rbegir model",
    weights=frozenset({"bytes", "crc32c", "header_crc32c", "tensors"}),
)
TABLE = ".conv.weight"  # how the names of gram tables end
RESERVED = ("format", "version", "model", "weights", "fingerprint", "crc32c")


def write(
    path: str | os.PathLike[str],
    config: ModelConfig,
    tensors: Mapping[str, Array],
    extra: Mapping[str, Any] | None = None,
    *,
    whole: bool = True,
) -> str:
    """Write a model, replacing one that is there; returns its fingerprint. `whole`: float32 gram tables."""
    _check_tensors(tensor_shapes(config), tensors)
    taken = sorted(set(extra or {}) & set(RESERVED))
    if taken:
        raise InputError(f"extra must not use the names {', '.join(taken)}")
    stored: dict[str, npt.NDArray[Any]] = dict(tensors)
    for name in () if whole else tuple(tensors):
        if name.endswith(TABLE):
            stored[name], stored[scale_of(name)] = to_bytes(tensors[name])
    kind = dataclasses.replace(KIND, version=1) if whole else KIND
    return write_pair(Path(path), kind, config.to_dict(), stored, extra)


def scale_of(table: str) -> str:
    """The name of the scales of a gram table."""
    return f"{table.removesuffix(TABLE)}.conv.scale"


def to_bytes(table: Array) -> tuple[npt.NDArray[np.int8], Array]:
    """A gram table [V, 3c] as bytes, and the scales [V, 3] of its parts."""
    parts = table.reshape(len(table), 3, -1)
    scale = np.abs(parts).max(axis=2) / np.float32(127)
    mantissa, exponent = np.frexp(scale)
    # rounded up to 16 bits, so that the largest number of a part still fits into a byte
    scale = np.ldexp(np.ceil(mantissa * 65536) / 65536, exponent).astype(np.float32)
    rounded = np.rint(parts / np.where(scale > 0, scale, 1)[:, :, None])
    return rounded.astype(np.int8).reshape(table.shape), scale


def from_bytes(table: npt.NDArray[np.int8], scale: Array) -> Array:
    """The float32 table that bytes and scales stand for."""
    parts = table.reshape(len(table), 3, -1) * scale[:, :, None]
    return parts.reshape(table.shape).astype(np.float32, copy=False)


def read(path: str | os.PathLike[str]) -> tuple[ModelConfig, dict[str, Array], dict[str, Any]]:
    """Configuration, tensors and the trainer's additions, every byte checked."""
    checkpoint = Checkpoint(path)
    checkpoint.verify()
    return checkpoint.config, {name: checkpoint.tensor(name) for name in checkpoint.shapes}, checkpoint.extra


class Checkpoint:
    """An open model on disk. Tensors are mapped, and checked at their first use."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.file, body, self.config_text = read_pair(self.path, KIND)
        self.config = _model_config(body["model"], self.path / CONFIG)
        self.fingerprint: str = body["fingerprint"]
        self.extra = {key: value for key, value in body.items() if key not in RESERVED}
        self.shapes = tensor_shapes(self.config)
        self._weights: dict[str, Any] = body["weights"]
        self._checked: set[str] = set()
        self._check_header()

    def tensor(self, name: str) -> Array:
        """A copy of a tensor in float32; a table of bytes is converted."""
        array = self.stored(name)
        table = array.dtype == np.int8
        copy: Array = from_bytes(array, self.stored(scale_of(name))) if table else array.copy()
        self.file.check_intact()
        return copy

    def stored(self, name: str) -> npt.NDArray[Any]:
        """A tensor as `TensorFile.array` gives it; its checksum is verified the first time."""
        array = self.file.array(name)
        if name not in self._checked:
            if _core.crc32c(array) != self._weights["tensors"][name]:
                raise self.file.corrupt(f"does not match its checksum in tensor {name!r}")
            self._checked.add(name)
        return array

    def verify(self) -> None:
        """Check every byte of the weights now."""
        if self.file.checksum() != self._weights["crc32c"]:
            for name in self.file.spans:
                self.stored(name)
            raise self.file.corrupt("does not match its checksum")
        self._checked.update(self.file.spans)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Store this model in another directory: a hard link of the weights where that works, else a copy."""
        replace(Path(directory), KIND, self.config_text, self.file)

    def _check_header(self) -> None:
        weights, spans = self._weights, self.file.spans
        if self.file.size != weights["bytes"]:
            raise self.file.corrupt(f"should have {weights['bytes']} bytes, but has {self.file.size}")
        if self.file.checksum(self.file.data_start) != weights["header_crc32c"]:
            raise self.file.corrupt("does not match its checksum in the header")
        shapes = dict(self.shapes)
        for name, shape in self.shapes.items():
            if name.endswith(TABLE) and name in spans and spans[name].dtype == np.int8:
                shapes[scale_of(name)] = (shape[0], 3)
            elif name in spans and spans[name].dtype != np.float32:
                raise self.file.corrupt(f"holds tensor {name!r} as bytes")
        for name, shape in shapes.items():
            if name not in spans:
                raise self.file.corrupt(f"lacks tensor {name!r}")
            if spans[name].shape != shape:
                raise self.file.corrupt(
                    f"holds tensor {name!r} as {list(spans[name].shape)}, its config asks for {list(shape)}"
                )
        surplus = sorted(set(spans) - set(shapes))
        if surplus:
            raise self.file.corrupt(f"holds tensor {surplus[0]!r}, which is not in its config")
        if set(weights["tensors"]) != set(shapes):
            raise CorruptError(f"{self.path / CONFIG} lists other tensors than {WEIGHTS}", hint=KIND.repair)


def _check_tensors(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Array]) -> None:
    for names, what in ((set(shapes) - set(tensors), "lack"), (set(tensors) - set(shapes), "must not hold")):
        if names:
            raise InputError(f"tensors {what} {', '.join(sorted(names))}")
    for name, shape in shapes.items():
        array = tensors[name]
        if not isinstance(array, np.ndarray) or array.dtype != np.float32 or array.shape != shape:
            raise InputError(f"tensor {name!r} must be float32 {list(shape)}, got {describe(array)}")
        if not np.isfinite(array).all():
            raise InputError(
                f"tensor {name!r} holds NaN or infinity", hint="training diverged: lower the rate"
            )


def _model_config(data: Any, path: Path) -> ModelConfig:
    """ModelConfig refuses wrong values; wrong types, which only a forged file can hold, are refused here."""
    defaults = ModelConfig().to_dict()
    if not isinstance(data, dict) or set(data) != {field.name for field in fields(ModelConfig)}:
        raise CorruptError(f"{path} does not hold the settings of a model", hint=KIND.repair)
    for name, value in data.items():
        members = value if isinstance(value, list) else []
        if type(value) is not type(defaults[name]) or not all(type(member) is int for member in members):
            raise CorruptError(f"{path} sets {name} to {value!r}", hint=KIND.repair)
    try:
        return ModelConfig.from_dict(data)
    except InputError as error:
        raise CorruptError(f"{path}: {error.message}", hint=KIND.repair) from error
