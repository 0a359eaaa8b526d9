"""The model's equations written slowly, text by text and number by number, in NumPy float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rbegir.model.presets import FLOAT, ModelConfig
from rbegir.text.tokenizer import GramBatch

Array = npt.NDArray[np.float64]


def step(x: Array) -> Array:
    return np.where(x > 0, 1.0, -1.0)


def tower(tensors: dict[str, Array], side: str, config: ModelConfig, batch: GramBatch) -> Array:
    """f of each text [texts, m]."""
    owner = "shared" if config.share_towers else side
    table = tensors[f"{owner}.conv.weight"]
    c = config.conv
    texts = []
    for i in range(len(batch.text_offsets) - 1):
        words = batch.word_ids[batch.text_offsets[i] : batch.text_offsets[i + 1]]
        windows = []
        for t in range(len(words)):
            total = np.zeros(c)
            for part, place in enumerate((t - 1, t, t + 1)):
                if 0 <= place < len(words):
                    word = words[place]
                    for gram in batch.gram_ids[batch.gram_offsets[word] : batch.gram_offsets[word + 1]]:
                        total += table[gram, part * c : (part + 1) * c]
            windows.append(total + (tensors[f"{owner}.conv.bias"] if config.bias else 0))
        f = np.tanh(np.max(windows, axis=0))
        for layer in range(len(config.hidden)):
            f = np.tanh(linear(tensors, f"{owner}.hidden.{layer}", f))
        texts.append(f)
    return np.array(texts).reshape(len(texts), config.width)


def linear(tensors: dict[str, Array], name: str, x: Array) -> Array:
    return tensors[f"{name}.weight"] @ x + tensors.get(f"{name}.bias", 0.0)


def head(tensors: dict[str, Array], side: str, config: ModelConfig, f: Array) -> tuple[Array, list[Array]]:
    """(embedding, planes) of one text from its f."""
    planes = config.query_planes if side == "query" else config.keyword_planes
    if planes == FLOAT:
        return np.tanh(linear(tensors, f"{side}.out", f)), []
    b = step(linear(tensors, f"{side}.rbe.W", f))
    found = [b]
    for t in range(1, planes):
        index = t - 1 if config.time_varying else 0
        reconstructed = np.tanh(linear(tensors, f"{side}.rbe.B.{index}", b))
        d = step(linear(tensors, f"{side}.rbe.R.{index}", f - reconstructed))
        b = b + d * (0.5**t if config.residual_weights else 1.0)
        found.append(d)
    return b, found
