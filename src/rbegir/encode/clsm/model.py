"""A trained model: texts in, codes out.

    model = Model.load("model/")
    codes = model.encode_keywords(["red shoes", "city maps"])      # Codes, what an index stores
    vectors = model.embed_queries(["shoes"])                       # float32 [count, n]

The weights are memory-mapped and each side is made at its first use, so a process that only searches pays for
the query side: a few milliseconds. `device="cuda"` goes through torch, for bulk encoding; the CPU needs none.

Codes are planes worth 1, ½, ¼ … A float query side (m_5) is rounded to eight planes (`quantise`). Keywords
of a float side, and planes that all weigh the same, have no code; `embed_*` gives their vectors.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rbegir.base.devices import gpu_number, split_name
from rbegir.codes.planes import MAX_PLANES, Codes
from rbegir.encode.binarizer.learn import odd
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import FLOAT, ModelConfig, Side, planes_of
from rbegir.encode.clsm.sides import NativeSide, TensorOf, TorchSide
from rbegir.encode.reranker import Floats, Reranker, Vectors
from rbegir.encode.reranker import read as read_reranker
from rbegir.errors import MismatchError, whole_number

if TYPE_CHECKING:
    from rbegir.read.tokenizer import TextInput


class Model:
    """Two encoders and their configuration. Safe to share between threads. Made by `load`."""

    takes_arrow = True  # texts may be pyarrow string arrays

    def __init__(self, stored: checkpoint.Checkpoint, device: str, threads: int | None) -> None:
        self._stored, self._device, self._threads = stored, device, threads
        self.config, self.n = stored.config, stored.config.n
        self._encoders: dict[Side, NativeSide | TorchSide] = {}
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "cpu", *, threads: int | None = None) -> Model:
        """Open the model in a directory. `threads` bounds the CPU threads of a call (default: all cores)."""
        if threads is not None:
            whole_number("threads", threads)
        if split_name(device)[0] == "cuda":
            gpu_number(device)
        return cls(checkpoint.Checkpoint(path), device, threads)

    def __repr__(self) -> str:
        planes = f"{self.query_planes} query planes, {self.keyword_planes} keyword planes"
        name = f"fingerprint {self.fingerprint[:8]}"
        return f"Model({str(self._stored.path)!r}, n = {self.n}, {planes}, {name})"

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Store this model in another directory, by hard link where the file system allows it."""
        self._stored.save(directory)
        if self.reranker is not None:
            self.reranker.write(directory, self.fingerprint)

    def verify(self) -> None:
        """Check every byte on disk now; otherwise each tensor is checked when it is first used."""
        self._stored.verify()
        self._read_reranker()

    @property
    def device(self) -> str:
        """Where texts are encoded: cpu, cuda, cuda:1 …"""
        return self._device

    @property
    def query_planes(self) -> int:
        """Planes of an encoded query: a float query is encoded to eight."""
        return self.config.query_planes or MAX_PLANES

    @property
    def keyword_planes(self) -> int:
        """Planes of an encoded keyword; 0 for a float side, whose keywords have no code."""
        return self.config.keyword_planes

    @property
    def fingerprint(self) -> str:
        """Identifies configuration and weights; an index remembers it."""
        return self._stored.fingerprint

    @property
    def reads(self) -> tuple[str, ...]:
        """Fingerprints of the models whose keywords its queries search: its own and those it upgrades."""
        return (self.fingerprint, *self._stored.extra.get("reads", ()))

    @property
    def same_keywords(self) -> tuple[str, ...]:
        """Fingerprints of the models that give keywords the same codes: its own and that of a kept side."""
        return (self.fingerprint, *self._stored.extra.get("same_keywords", ()))

    @cached_property
    def reranker(self) -> Reranker | None:
        """The reranker, which orders the first candidates by their texts; None if training made none."""
        return self._read_reranker()

    def _read_reranker(self) -> Reranker | None:
        return read_reranker(self._stored.path, self.fingerprint, self.guide_vectors, self._threads)

    def guide_vectors(self, side: str, tensors: dict[str, Floats]) -> Vectors:
        """The encoder of the guide's vectors of one side: its own head on the tower of the codes."""
        dims = len(tensors[f"{side}.weight"])
        config = replace(self.config, n=dims, query_planes=FLOAT, keyword_planes=FLOAT)
        own = {name.replace(".", ".out."): tensor for name, tensor in tensors.items()}  # query.out.weight, …

        def tensor(name: str) -> Floats:
            return own[name] if name in own else self._stored.stored(name)

        return partial(self._native(config, side, tensor).vectors, wordless=True)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A copy of a tensor by the name it has in the checkpoint (`presets`)."""
        return self._stored.tensor(name)

    def encode_queries(self, texts: TextInput) -> Codes:
        """The codes of queries, from a list of str or a pyarrow string array."""
        if self.config.query_planes == FLOAT:
            return quantise(self._encoder("query").vectors(texts))
        return self._encode("query", texts)

    def encode_keywords(self, texts: TextInput) -> Codes:
        """The codes of keywords, from a list of str or a pyarrow string array."""
        if self.config.keyword_planes == FLOAT:
            raise MismatchError(
                "the keyword side of this model is a float vector, which has no binary code",
                hint="use embed_keywords, or train a preset with keyword planes such as rbe_star",
            )
        return self._encode("keyword", texts)

    def embed_queries(self, texts: TextInput) -> npt.NDArray[np.float32]:
        """The real-valued embeddings [count, n] of queries: Σ (½)^t · plane t, or the tanh vector."""
        return self._embed("query", texts)

    def embed_keywords(self, texts: TextInput) -> npt.NDArray[np.float32]:
        """The real-valued embeddings [count, n] of keywords."""
        return self._embed("keyword", texts)

    def _encode(self, side: Side, texts: TextInput) -> Codes:
        if not self.config.residual_weights and planes_of(self.config, side) > 1:
            raise MismatchError(
                "this model gives all its planes the same weight; codes are compared with weights 1, ½, ¼",
                hint="use embed_queries and embed_keywords, or train with residual_weights on",
            )
        return Codes(self._encoder(side).planes(texts), self.n)

    def _embed(self, side: Side, texts: TextInput) -> npt.NDArray[np.float32]:
        planes = planes_of(self.config, side)
        if planes == FLOAT:
            return self._encoder(side).vectors(texts)
        codes = Codes(self._encoder(side).planes(texts), self.n)
        if self.config.residual_weights:
            return codes.values().astype(np.float32) * np.float32(0.5 ** (planes - 1))
        ones: npt.NDArray[np.float32] = codes.signs().sum(axis=0, dtype=np.float32)
        return 2 * ones - np.float32(planes)

    def _encoder(self, side: Side) -> NativeSide | TorchSide:
        stored = self._stored
        with self._lock:
            if side not in self._encoders and self._device == "cpu":
                self._encoders[side] = self._native(self.config, side, stored.stored)
            elif side not in self._encoders:
                made = TorchSide.load(self.config, side, stored.tensor, self._device, self._threads)
                self._encoders[side] = made
            return self._encoders[side]

    def _native(self, config: ModelConfig, side: str, tensor: TensorOf) -> NativeSide:
        check = self._stored.file.check_intact
        return NativeSide(config, side, tensor, threads=self._threads, check_table=check)


def quantise(vectors: npt.NDArray[np.float32]) -> Codes:
    """Float vectors [count, n] as eight planes: the largest magnitude becomes 255, the rest odd integers."""
    peak = np.abs(vectors).max(axis=1, keepdims=True, initial=0)  # [count, 1]
    scaled = vectors * (np.float32(255) / np.where(peak > 0, peak, 1)).astype(np.float32, copy=False)
    return Codes.from_values(odd(scaled, MAX_PLANES).astype(np.int16), MAX_PLANES)
