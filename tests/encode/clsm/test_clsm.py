"""The tower's sparse functions against dense autograd; its GPU kernels in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rbegir._native import _core
from rbegir.encode.clsm.clsm import TowerBatch, gram_sum, tower_batch, window_max
from rbegir.read.tokenizer import GramBatch

ROWS = 40


@st.composite
def batches(draw: st.DrawFn) -> GramBatch:
    """Any texts of at least one word over a few words of a few grams; words and grams may repeat."""
    lengths = draw(st.lists(st.integers(1, 7), min_size=1, max_size=9))
    unique = draw(st.integers(1, 6))
    words = draw(st.lists(st.integers(0, unique - 1), min_size=sum(lengths), max_size=sum(lengths)))
    grams = draw(
        st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=5), min_size=unique, max_size=unique)
    )

    def ints(values: list[int]) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    return GramBatch(
        ints([0, *np.cumsum(lengths)]),
        ints(words),
        ints([0, *np.cumsum([len(g) for g in grams])]),
        ints([x for g in grams for x in g]),
    )


def dense(table: Tensor, batch: GramBatch) -> Tensor:
    """The pooled windows with nothing but dense operations that autograd knows."""
    vectors = torch.stack(
        [
            table[torch.from_numpy(batch.gram_ids[a:b].astype(np.int64))].sum(dim=0)
            for a, b in zip(batch.gram_offsets[:-1], batch.gram_offsets[1:], strict=True)
        ]
    )
    c = table.shape[1] // 3
    pooled = []
    for a, b in zip(batch.text_offsets[:-1], batch.text_offsets[1:], strict=True):
        words = vectors[torch.from_numpy(batch.word_ids[a:b].astype(np.int64))]
        windows = words[:, c : 2 * c].clone()
        windows[1:] = windows[1:] + words[:-1, :c]
        windows[:-1] = windows[:-1] + words[1:, 2 * c :]
        pooled.append(windows.max(dim=0).values)
    return torch.stack(pooled)


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(1, 5), st.integers(0, 1000))
def test_forward_and_gradient(batch: GramBatch, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(ROWS, 3 * width, generator=generator, dtype=torch.float64, requires_grad=True)
    tensors = tower_batch(batch, gradient=True)
    pooled = window_max(gram_sum(table, tensors), tensors)
    wanted = dense(table, batch)
    torch.testing.assert_close(pooled, wanted)

    grad = torch.randn(wanted.shape, generator=generator, dtype=torch.float64)
    (sparse,) = torch.autograd.grad(pooled, table, grad)
    (expected,) = torch.autograd.grad(wanted, table, grad)
    assert sparse.is_sparse
    assert sparse._indices()[0].tolist() == sorted(set(batch.gram_ids.tolist()))  # touched rows, each once
    ties = _has_ties(batch)
    if not ties:  # where equal windows tie, the gradient may go to either
        torch.testing.assert_close(sparse.to_dense(), expected)


def _has_ties(batch: GramBatch) -> bool:
    """Whether two windows of a text are the same sum of rows."""

    def grams(word: int) -> tuple[int, ...]:
        return tuple(sorted(batch.gram_ids[batch.gram_offsets[word] : batch.gram_offsets[word + 1]].tolist()))

    for a, b in zip(batch.text_offsets[:-1], batch.text_offsets[1:], strict=True):
        words = [(), *(grams(w) for w in batch.word_ids[a:b]), ()]
        windows = [tuple(words[i : i + 3]) for i in range(len(words) - 2)]
        if len(set(windows)) < len(windows):
            return True
    return False


def test_a_tie_sends_the_gradient_to_one_window() -> None:
    """Three equal words: the windows differ, but with L = R = 0 all have the same value."""
    table = torch.zeros(ROWS, 3, dtype=torch.float64)
    table[5, 1] = 2.0
    table.requires_grad_()

    def ints(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    batch = tower_batch(GramBatch(ints(0, 3), ints(0, 0, 0), ints(0, 1), ints(5)), gradient=True)
    (grad,) = torch.autograd.grad(window_max(gram_sum(table, batch), batch).sum(), table)
    assert grad.to_dense()[5].tolist() == [
        0,
        1,
        1,
    ]  # the first window: no left neighbour, one right neighbour


@settings(max_examples=40, deadline=None)
@given(batches())
def test_transpose_lists_the_words_of_each_gram(batch: GramBatch) -> None:
    rows, offsets, words = (part.numpy() for part in tower_batch(batch, gradient=True)[4:])
    found = [(int(r), int(w)) for i, r in enumerate(rows) for w in words[offsets[i] : offsets[i + 1]]]
    wanted = [
        (int(gram), w)
        for w in range(len(batch.gram_offsets) - 1)
        for gram in batch.gram_ids[batch.gram_offsets[w] : batch.gram_offsets[w + 1]]
    ]
    assert found == sorted(wanted)


def test_transpose_of_ids_beyond_16_bits() -> None:
    batch = GramBatch(
        np.array([0, 2], np.int32), np.array([0, 1], np.int32), np.array([0, 2, 3], np.int32),
        np.array([70_000, 3, 70_000], np.int32),
    )  # fmt: skip
    rows, offsets, words = (part.numpy() for part in tower_batch(batch, gradient=True)[4:])
    assert rows.tolist() == [3, 70_000]
    assert offsets.tolist() == [0, 1, 3]
    assert words.tolist() == [0, 0, 1]


KERNEL_CHECK = """
import numpy as np, torch
from rbegir.encode.clsm import kernels
from rbegir.encode.clsm.clsm import window_max_forward, window_max_backward

generator = np.random.default_rng(0)
shapes = ((1, [1]), (5, [3, 1, 7]), (127, [2, 2]), (128, [1, 4, 2]), (129, [5, 1]), (288, [1, 2, 3]))
for width, lengths in shapes:
    offsets = torch.from_numpy(np.cumsum([0, *lengths]).astype(np.int32))
    unique = 4
    ids = torch.from_numpy(generator.integers(0, unique, sum(lengths)).astype(np.int32))
    words = torch.from_numpy(generator.normal(size=(unique, 3 * width)).astype(np.float32))
    best, where = kernels.window_max_forward(words, offsets, ids)
    wanted, place = window_max_forward(words, offsets, ids)
    torch.testing.assert_close(best, wanted)
    assert torch.equal(where, place)
    grad = torch.from_numpy(generator.normal(size=best.shape).astype(np.float32))
    torch.testing.assert_close(
        kernels.window_max_backward(grad, where, offsets, ids, unique),
        window_max_backward(grad, place, offsets, ids, unique),
    )
empty = torch.zeros(1, dtype=torch.int32)
for forward, backward in (
    (kernels.window_max_forward, kernels.window_max_backward), (window_max_forward, window_max_backward)
):
    best, where = forward(torch.zeros(0, 15), empty, empty[:0])
    assert best.shape == (0, 5)
    assert backward(best, where, empty, empty[:0], 0).shape == (0, 15)
print("equal")
"""


def test_kernels_equal_the_native_ones() -> None:
    """In a process of its own: the interpreter is chosen when Triton is imported."""
    source = Path(__file__).parents[3] / "src"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", KERNEL_CHECK], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "equal\n", done.stderr


@pytest.mark.parametrize("gradient", [False, True])
def test_tower_batch_counts_texts(gradient: bool) -> None:
    ints = [np.array(x, np.int32) for x in ([0, 1, 3], [0, 0, 0], [0, 1], [2])]
    batch = tower_batch(GramBatch(*ints), gradient=gradient)
    assert isinstance(batch, TowerBatch)
    assert len(batch.text_offsets) - 1 == 2
    assert len(batch.rows) == (1 if gradient else 0)


@pytest.mark.parametrize("output", ["best", "where", "total"])
@pytest.mark.parametrize("wrong", ["dtype", "stride"])
def test_outputs_that_cannot_be_filled_in_place_are_refused(output: str, wrong: str) -> None:
    """A copy would be filled, and thrown away."""
    outputs = {
        "best": np.zeros((2, 1), np.float32),
        "where": np.zeros((2, 1), np.int32),
        "total": np.zeros((3, 3), np.float32),
    }
    given = outputs[output]
    outputs[output] = given.astype(np.int64) if wrong == "dtype" else np.repeat(given, 2, axis=0)[::2]
    words, offsets, ids = np.ones((3, 3), np.float32), np.array([0, 1, 2], np.int32), np.zeros(2, np.int32)
    best, where, total = outputs.values()
    if output == "total":
        call = partial(_core.window_max_gradient, np.ones_like(best), where, offsets, ids, total)
    else:
        call = partial(_core.window_max, words, offsets, ids, best, where)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        call()
