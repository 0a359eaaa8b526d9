"""One side of a model: texts in, planes or vectors out, on the CPU or on a GPU.

*On the CPU*, without torch: the native tower. For each text, over its words w_1 … w_T:

    e_w = Σ_grams conv.weight[gram] = L | C | R                    cached: words repeat
    f   = tanh(max_t  L(w_{t−1}) + C(w_t) + R(w_{t+1}) + bias)     then tanh(H f + b) for each hidden layer
    b⁰  = ρ(W f)
    b^t = b^{t−1} + (½)^t · ρ(R^{t−1}(f − tanh(B^{t−1} b^{t−1})))   for each further plane

The products are small, so the time goes to fetching gram rows; that is why word vectors are cached, up to
`CACHE_BYTES` per thread. A text has the same bits in any batch, with any number of threads and on any
instruction set (see `_native/float_kernels.hpp`).

*On a GPU*, through torch, for encoding millions of texts: the CPU's cores cut blocks of texts into grams
while the GPU computes an earlier block, and only packed planes come back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rbegir._native import _core, choose_isa
from rbegir.base.devices import cpu_count
from rbegir.base.mapping import arm
from rbegir.encode.clsm import presets
from rbegir.encode.clsm.presets import FLOAT, ModelConfig, Side, planes_of, tower_of
from rbegir.errors import TextError
from rbegir.read.tokenizer import GramBatch, count_texts, text_views

if TYPE_CHECKING:
    from rbegir.encode.clsm.rbe import Embedding
    from rbegir.encode.clsm.twotower import TwoTower
    from rbegir.read.tokenizer import TextInput

CACHE_BYTES = 128 << 20
BLOCK = 1 << 17  # texts per native call; between two of them the interpreter can be interrupted
TORCH_BLOCK = 1 << 16  # texts on a GPU at a time

TensorOf = Callable[[str], npt.NDArray[Any]]  # a tensor by name, as it is stored


class NativeSide:
    """One side of a model on the CPU. Safe to share between threads.

    The gram table stays where `tensor` has it, usually in a mapped file. `check_table` is called before
    results are returned, and raises if a page of the table could not be read.
    """

    def __init__(
        self,
        config: ModelConfig,
        side: str,
        tensor: TensorOf,
        *,
        threads: int | None = None,
        isa: str = "",
        check_table: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_table = check_table
        self._n, self._planes = config.n, planes_of(config, side)
        self._threads = threads or cpu_count()
        none = np.zeros(0, dtype=np.float32)

        def layer(name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
            return tensor(f"{name}.weight"), tensor(f"{name}.bias") if config.bias else none

        tower = tower_of(config, side)
        cache_words = CACHE_BYTES // (12 * config.conv)
        table, bias = layer(f"{tower}.conv")
        scale = tensor(f"{tower}.conv.scale") if table.dtype == np.int8 else None
        self._tower = _core.Tower(table, scale, bias, cache_words, choose_isa(isa))
        for i in range(len(config.hidden)):
            self._tower.add_hidden(*layer(f"{tower}.hidden.{i}"))
        if self._planes == FLOAT:
            self._tower.set_head(*layer(f"{side}.out"))
            return
        self._tower.set_head(*layer(f"{side}.rbe.W"))
        for t, i in enumerate(presets.iterations_of(config, side), start=1):
            worth = 0.5**t if config.residual_weights else 1.0
            self._tower.add_iteration(*layer(f"{side}.rbe.B.{i}"), *layer(f"{side}.rbe.R.{i}"), worth)

    def planes(self, texts: TextInput) -> npt.NDArray[np.uint64]:
        """[planes, count, n / 64] of a side that is made of planes."""
        out = np.zeros((self._planes, count_texts(texts), self._n // 64), dtype=np.uint64)
        for start, block in _blocks(texts):
            _check(self._tower.encode(block, out, start, self._threads), start)
        self._check_table()
        return out

    def vectors(self, texts: TextInput, *, wordless: bool = False) -> npt.NDArray[np.float32]:
        """[count, n] of a float side; `wordless`: texts may have no words, and then meaningless vectors."""
        out = np.zeros((count_texts(texts), self._n), dtype=np.float32)
        for start, block in _blocks(texts):
            found = self._tower.embed(block, out, start, self._threads)
            if not wordless:
                _check(found, start)
        self._check_table()
        return out


def _blocks(texts: TextInput) -> Iterator[tuple[int, _core.Texts]]:
    for start in range(0, len(texts), BLOCK):
        arm()
        yield start, text_views(texts[start : start + BLOCK], start)


def _check(wordless: int, start: int) -> None:
    if wordless >= 0:
        raise no_words(start + wordless)


def no_words(position: int) -> TextError:
    """The error for a text that has nothing to encode."""
    return TextError(
        f"text at position {position} has no letter and no digit, so there is nothing to encode",
        hint="leave it out",
    )


class TorchSide:
    """One side of a network of torch, on the device that the network is on."""

    def __init__(self, network: TwoTower, side: Side, device: Any, threads: int | None = None) -> None:
        self._network, self._side, self._device = network, side, device
        self._threads = threads or cpu_count()

    @classmethod
    def load(
        cls, config: ModelConfig, side: Side, tensor: TensorOf, device: str, threads: int | None = None
    ) -> TorchSide:
        """The side of a stored model; the other side takes no memory."""
        import torch

        from rbegir.encode.clsm.twotower import TwoTower

        with torch.device("meta"):
            network = TwoTower(config)
        owners = (f"{side}.", f"{tower_of(config, side)}.")
        state = {
            name: torch.from_numpy(tensor(name)).to(device)
            for name in presets.tensor_shapes(config)
            if name.startswith(owners)
        }
        network.load_state_dict(state, strict=False, assign=True)
        return cls(network.eval(), side, device, threads)

    def planes(self, texts: TextInput) -> npt.NDArray[np.uint64]:
        config = self._network.config
        words = config.n // 64
        parts = [_pack(embedding.planes, words) for embedding in self._embeddings(texts)]
        if not parts:
            return np.zeros((planes_of(config, self._side), 0, words), dtype=np.uint64)
        import torch

        packed: npt.NDArray[np.int64] = torch.cat(parts, dim=1).cpu().numpy()
        return packed.view(np.uint64)

    def vectors(self, texts: TextInput) -> npt.NDArray[np.float32]:
        parts = [embedding.vector.float().cpu().numpy() for embedding in self._embeddings(texts)]
        return np.concatenate([np.zeros((0, self._network.config.n), dtype=np.float32), *parts])

    def _embeddings(self, texts: TextInput) -> Iterator[Embedding]:
        import torch

        from rbegir.encode.clsm.clsm import TowerBatch, tower_batch

        for grams in self._tokenized(texts):
            with torch.inference_mode():
                batch = TowerBatch(*(part.to(self._device) for part in tower_batch(grams)))
                embedding = self._network.embed(self._side, batch)
            yield embedding

    def _tokenized(self, texts: TextInput) -> Iterator[GramBatch]:
        """The blocks of the texts in order; several are cut into grams at a time, each by one thread."""
        waiting: deque[Future[GramBatch]] = deque()
        with ThreadPoolExecutor(self._threads, thread_name_prefix="rbegir-grams") as pool:
            for start in range(0, count_texts(texts), TORCH_BLOCK):
                if len(waiting) > self._threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(self._grams, texts, start))
            while waiting:
                yield waiting.popleft().result()

    def _grams(self, texts: TextInput, start: int) -> GramBatch:
        block = text_views(texts[start : start + TORCH_BLOCK], start)
        grams = GramBatch(*_core.tokenize(block, self._network.config.hash_buckets, 1))
        wordless = np.flatnonzero(np.diff(grams.text_offsets) == 0)
        if len(wordless):
            raise no_words(start + int(wordless[0]))
        return grams


def _pack(planes: tuple[Any, ...], words: int) -> Any:
    """Pack ±1 planes on the device, in the bit order of `codes/planes.py`: int64 [planes, count, words]."""
    import torch

    signs = torch.stack(planes) > 0  # [planes, count, n]
    powers = torch.ones(64, dtype=torch.int64, device=signs.device) << torch.arange(64, device=signs.device)
    return (signs.view(*signs.shape[:2], words, 64) * powers).sum(dim=-1)
