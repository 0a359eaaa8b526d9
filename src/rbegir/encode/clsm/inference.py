"""One side of a model on the CPU, without torch: the native tower, fed with texts.

For each text, over its words w_1 … w_T:

    e_w = Σ_grams conv.weight[gram] = L | C | R                    cached: words repeat
    f   = tanh(max_t  L(w_{t−1}) + C(w_t) + R(w_{t+1}) + bias)     then tanh(H f + b) for each hidden layer
    b⁰  = ρ(W f)
    b^t = b^{t−1} + (½)^t · ρ(R^{t−1}(f − tanh(B^{t−1} b^{t−1})))   for each further plane

The products are small, so the time goes to fetching gram rows; that is why word vectors are cached, up to
`CACHE_BYTES` for each thread. A text has the same bits in any batch, with any number of threads and on any
instruction set (see `_native/tower_kernels.hpp`): an index can be filled on one machine and asked from
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.base.devices import cpu_count
from rbegir.encode.clsm.presets import FLOAT, ModelConfig
from rbegir.encode.clsm.shapes import iterations_of, planes_of, tower_of
from rbegir.errors import TextError
from rbegir.read.tokenizer import count_texts, text_views

if TYPE_CHECKING:
    from rbegir.read.tokenizer import TextInput

CACHE_BYTES = 128 << 20
BLOCK = 1 << 17  # texts a native call; between two of them the interpreter can be interrupted

TensorOf = Callable[[str], npt.NDArray[np.float32]]


class NativeSide:
    """Encodes texts with one side of a model. Safe to share between threads."""

    def __init__(
        self, config: ModelConfig, side: str, tensor: TensorOf, *, threads: int | None = None, isa: str = ""
    ) -> None:
        self._n, self._planes = config.n, planes_of(config, side)
        self._threads = threads or cpu_count()
        none = np.zeros(0, dtype=np.float32)

        def layer(name: str) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
            return tensor(f"{name}.weight"), tensor(f"{name}.bias") if config.bias else none

        tower = tower_of(config, side)
        cache_words = CACHE_BYTES // (12 * config.conv)
        self._tower = _core.Tower(*layer(f"{tower}.conv"), cache_words, isa)
        for i in range(len(config.hidden)):
            self._tower.add_hidden(*layer(f"{tower}.hidden.{i}"))
        if self._planes == FLOAT:
            self._tower.set_head(*layer(f"{side}.out"))
            return
        self._tower.set_head(*layer(f"{side}.rbe.W"))
        for t, i in enumerate(iterations_of(config, side), start=1):
            worth = 0.5**t if config.residual_weights else 1.0
            self._tower.add_iteration(*layer(f"{side}.rbe.B.{i}"), *layer(f"{side}.rbe.R.{i}"), worth)

    def planes(self, texts: TextInput) -> npt.NDArray[np.uint64]:
        """[planes, count, n / 64] of a side that is made of planes."""
        out = np.zeros((self._planes, count_texts(texts), self._n // 64), dtype=np.uint64)
        for start, block in _blocks(texts):
            _check(self._tower.encode(block, out, start, self._threads), start)
        return out

    def vectors(self, texts: TextInput) -> npt.NDArray[np.float32]:
        """[count, n] of a float side."""
        out = np.zeros((count_texts(texts), self._n), dtype=np.float32)
        for start, block in _blocks(texts):
            _check(self._tower.embed(block, out, start, self._threads), start)
        return out


def _blocks(texts: TextInput) -> Iterator[tuple[int, _core.Texts]]:
    for start in range(0, len(texts), BLOCK):
        yield start, text_views(texts[start : start + BLOCK], start)


def _check(wordless: int, start: int) -> None:
    if wordless >= 0:
        raise no_words(start + wordless)


def no_words(position: int) -> TextError:
    """The error for a text that has nothing to encode."""
    return TextError(
        f"text at position {position} has no letter and no digit, so there is nothing to encode",
        hint="drop it first",
    )
