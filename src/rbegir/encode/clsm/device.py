"""One side of a model on a GPU, through torch: for encoding millions of texts.

The CPU's cores cut blocks of texts into grams while the GPU computes an earlier one, and only packed planes
come back, 8 bytes a plane and 64 dimensions. torch is imported here and nowhere else on the way from text to
code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.base.devices import cpu_count
from rbegir.encode.clsm.inference import TensorOf, no_words
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.encode.clsm.shapes import planes_of, tensor_shapes, tower_of
from rbegir.read.tokenizer import GramBatch, count_texts, text_views

if TYPE_CHECKING:
    from rbegir.encode.clsm.rbe import Embedding
    from rbegir.read.tokenizer import TextInput

BLOCK = 1 << 16  # texts on the device at a time


class TorchSide:
    """Encodes texts with one side of a model; `device` is anything that torch knows."""

    def __init__(
        self,
        config: ModelConfig,
        side: Literal["query", "keyword"],
        tensor: TensorOf,
        device: str,
        *,
        threads: int | None = None,
    ) -> None:
        import torch

        from rbegir.encode.clsm.twotower import TwoTower

        self._config, self._side, self._device = config, side, device
        self._threads = threads or cpu_count()
        with torch.device("meta"):
            self._model = TwoTower(config)  # no memory: the other side stays like this
        owners = (f"{side}.", f"{tower_of(config, side)}.")
        state = {
            name: torch.from_numpy(np.array(tensor(name))).to(device)
            for name in tensor_shapes(config)
            if name.startswith(owners)
        }
        self._model.load_state_dict(state, strict=False, assign=True)
        self._model.eval()

    def planes(self, texts: TextInput) -> npt.NDArray[np.uint64]:
        """[planes, count, n / 64] of a side that is made of planes."""
        words = self._config.n // 64
        parts = [_pack(embedding.planes, words) for embedding in self._embeddings(texts)]
        if not parts:
            return np.zeros((planes_of(self._config, self._side), 0, words), dtype=np.uint64)
        import torch

        packed: npt.NDArray[np.int64] = torch.cat(parts, dim=1).cpu().numpy()
        return packed.view(np.uint64)

    def vectors(self, texts: TextInput) -> npt.NDArray[np.float32]:
        """[count, n] of a float side."""
        parts = [embedding.vector.float().cpu().numpy() for embedding in self._embeddings(texts)]
        return np.concatenate([np.zeros((0, self._config.n), dtype=np.float32), *parts])

    def _embeddings(self, texts: TextInput) -> Iterator[Embedding]:
        import torch

        from rbegir.encode.clsm.clsm import TowerBatch, tower_batch

        for grams in self._tokenized(texts):
            with torch.inference_mode():
                batch = TowerBatch(*(part.to(self._device) for part in tower_batch(grams)))
                embedding = self._model.embed(self._side, batch)
            yield embedding

    def _tokenized(self, texts: TextInput) -> Iterator[GramBatch]:
        """The blocks of the texts in order, several being cut into grams at a time, each by one thread."""
        starts = iter(range(0, count_texts(texts), BLOCK))
        with ThreadPoolExecutor(self._threads, thread_name_prefix="rbegir-grams") as pool:
            waiting: deque[Future[GramBatch]] = deque()
            for start in islice(starts, self._threads + 1):
                waiting.append(pool.submit(self._grams, texts, start))
            while waiting:
                grams = waiting.popleft().result()
                for start in islice(starts, 1):
                    waiting.append(pool.submit(self._grams, texts, start))
                yield grams

    def _grams(self, texts: TextInput, start: int) -> GramBatch:
        block = text_views(texts[start : start + BLOCK], start)
        grams = GramBatch(*_core.tokenize(block, self._config.hash_buckets, 1))
        wordless = np.flatnonzero(np.diff(grams.text_offsets) == 0)
        if len(wordless):
            raise no_words(start + int(wordless[0]))
        return grams


def _pack(planes: tuple[Any, ...], words: int) -> Any:
    """The bit order of codes/planes.py on the device: int64 [planes, count, words]."""
    import torch

    signs = torch.stack(planes) > 0  # [planes, count, n]
    powers = torch.ones(64, dtype=torch.int64, device=signs.device) << torch.arange(64, device=signs.device)
    return (signs.view(*signs.shape[:2], words, 64) * powers).sum(dim=-1)
