"""Batches cut out of a chunk: the same texts, words and grams, repeatable dropout, shares that add up."""

from __future__ import annotations

import functools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import torch

from rbegir.encode.clsm.clsm import TowerBatch
from rbegir.read.tokenizer import GramBatch, tokenize
from rbegir.training.batches import Chunk, StepBatch, build, cut, epoch_batches, steps_in
from rbegir.training.config import TrainConfig
from rbegir.training.data import tokenize_pairs

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lamda", "mu"]


def spelled(batch: GramBatch | TowerBatch) -> list[list[tuple[int, ...]]]:
    """Each text as its words, each word as its grams."""
    to, words, go, grams = (np.asarray(x) for x in batch[:4])
    return [[tuple(grams[go[w] : go[w + 1]]) for w in words[a:b]] for a, b in pairwise(to)]


@pytest.fixture(scope="module")
def chunk() -> Chunk:
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(rng.choice(WORDS, size=rng.integers(1, 6)))

    queries = [text() for _ in range(100)]
    keywords = [text() for _ in range(100)]
    table = pa.table(
        {"query": queries, "keyword": keywords, "weight": pa.array(rng.random(100), pa.float32())}
    )
    return tokenize_pairs(table, 64)


def test_cut_is_tokenising_the_chosen_texts(chunk: Chunk) -> None:
    texts = ["alpha beta", "beta", "gamma beta alpha beta", "mu"]
    whole = tokenize(texts, hash_buckets=64)
    items = np.array([2, 0, 2, 3], np.int32)
    assert spelled(cut(whole, items)) == spelled(tokenize([texts[i] for i in items], hash_buckets=64))
    assert len(cut(whole, items).gram_offsets) - 1 == 4  # each word once


def test_dropout_removes_a_share_of_words_but_never_all(chunk: Chunk) -> None:
    items = np.arange(len(chunk.query_texts.text_offsets) - 1, dtype=np.int32)
    places = items.astype(np.int64)
    full = spelled(cut(chunk.query_texts, items))
    kept = spelled(cut(chunk.query_texts, items, dropout=0.4, key=1, places=places))
    assert spelled(cut(chunk.query_texts, items, dropout=0.4, key=1, places=places)) == kept
    assert spelled(cut(chunk.query_texts, items, dropout=0.4, key=2, places=places)) != kept
    words, left = sum(map(len, full)), sum(map(len, kept))
    assert 0.5 * words < left < 0.75 * words
    for before, after in zip(full, kept, strict=True):
        assert after
        remaining = iter(before)
        assert all(word in remaining for word in after)  # a subsequence: order is kept


def test_everything_dropped_leaves_the_first_word(chunk: Chunk) -> None:
    items = np.arange(20, dtype=np.int32)
    kept = spelled(cut(chunk.query_texts, items, dropout=0.999999, key=0, places=items.astype(np.int64)))
    assert kept == [words[:1] for words in spelled(cut(chunk.query_texts, items))]


def plain_uniform(key: int, counter: int) -> float:
    """SplitMix64 in Python's integers."""
    z = (counter * 0x9E3779B97F4A7C15 + key) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return (z ^ (z >> 31)) / 2**64


def test_dropout_draws_the_numbers_it_promises(chunk: Chunk) -> None:
    texts, key, dropout = chunk.query_texts, 2**63 - 7, 0.4
    items = np.arange(len(texts.text_offsets) - 1, dtype=np.int32)[::-1].copy()
    places = np.arange(len(items), dtype=np.int64) * 977 + 3
    found = cut(texts, items, dropout=dropout, key=key, places=places)
    wanted = []
    for item, place in zip(items, places, strict=True):
        words = texts.word_ids[texts.text_offsets[item] : texts.text_offsets[item + 1]].tolist()
        kept = [w for i, w in enumerate(words) if plain_uniform(key, int(place) * 65536 + i) >= dropout]
        wanted.append(kept or words[:1])
    distinct = sorted({word for words in wanted for word in words})
    got = [found.word_ids[a:b].tolist() for a, b in pairwise(found.text_offsets)]
    assert [[distinct[word] for word in words] for words in got] == wanted
    draws = [plain_uniform(key, i) for i in range(20_000)]
    assert np.histogram(draws, bins=10, range=(0, 1))[0] == pytest.approx([2000] * 10, rel=0.1)


def test_gram_dropout_draws_the_numbers_it_promises(chunk: Chunk) -> None:
    """A word is its grams but for those whose draw is low, the first one if all are."""
    texts, key = chunk.query_texts, 2**63 - 7
    items = np.arange(len(texts.text_offsets) - 1, dtype=np.int32)[::-1].copy()

    def grams(of: GramBatch) -> list[list[int]]:
        return [of.gram_ids[a:b].tolist() for a, b in pairwise(of.gram_offsets)]

    def spelling(word: list[int]) -> int:
        """The word as a number, the same in any chunk."""
        return functools.reduce(lambda so_far, gram: so_far * 0x100000001B3 + gram, word, 0)

    whole = cut(texts, items)  # every word is there, in the order of the larger batch
    for share in (0.3, 0.999999):
        found = cut(texts, items, gram_dropout=share, key=key)
        assert (found.text_offsets == whole.text_offsets).all()
        assert (found.word_ids == whole.word_ids).all()
        wanted = [
            [g for i, g in enumerate(word) if plain_uniform(key, spelling(word) + i) >= share] or word[:1]
            for word in grams(whole)
        ]
        assert grams(found) == wanted


def test_cut_refuses_what_is_not_there(chunk: Chunk) -> None:
    count = len(chunk.query_texts.text_offsets) - 1
    for item in (-1, count):
        with pytest.raises(ValueError, match="items is out of range"):
            cut(chunk.query_texts, np.array([item], dtype=np.int32))
    with pytest.raises(ValueError, match="places must be one an item"):
        cut(chunk.query_texts, np.array([0], dtype=np.int32), places=np.zeros(2, dtype=np.int64))


def test_build(chunk: Chunk) -> None:
    pairs = np.arange(5, 45)
    host = build(chunk, pairs, TrainConfig(word_dropout=0, gram_dropout=0, negatives=3), (1, 2, 3))
    batch = host.to(torch.device("cpu"))
    assert host.pairs == 40
    assert spelled(batch.query) == spelled(cut(chunk.query_texts, chunk.query[pairs]))
    keywords = spelled(batch.keyword)
    assert len(keywords) == sum(host.owned) == len(set(chunk.keyword[pairs].tolist()))
    wanted = spelled(cut(chunk.keyword_texts, chunk.keyword[pairs]))
    assert [keywords[c] for c in batch.target] == wanted
    assert batch.negatives.shape == (40, 3)
    assert batch.weight.sum().item() == pytest.approx(1)
    weight = chunk.weight[pairs] / chunk.weight[pairs].sum()
    assert np.allclose(batch.weight.numpy(), weight)


def arrays(batch: StepBatch) -> list[list[int]]:
    """All values of a batch."""
    return [x.tolist() for x in (*batch.query, *batch.keyword, *batch[2:7])]


def test_an_epoch_holds_every_pair_once_in_any_number_of_threads(chunk: Chunk) -> None:
    plan = TrainConfig(batch_size=30, seed=7, word_dropout=0.2, gram_dropout=0)
    one = list(epoch_batches([chunk, chunk], plan, 0, threads=1))
    many = list(epoch_batches([chunk, chunk], plan, 0, threads=3))
    assert [b.pairs for b in one] == [34, 33, 33, 34, 33, 33]
    for a, b in zip(one, many, strict=True):
        assert arrays(a) == arrays(b)
    later = list(epoch_batches([chunk, chunk], plan, 1))
    assert arrays(later[0]) != arrays(one[0])
    for a, b in zip(one[4:], epoch_batches([chunk, chunk], plan, 0, skip=4), strict=True):
        assert arrays(a) == arrays(b)


def test_steps_in_a_chunk() -> None:
    assert [steps_in(n, 10) for n in (0, 1, 9, 14, 16, 100)] == [0, 1, 1, 1, 2, 10]


@pytest.mark.filterwarnings("error")
def test_weights_of_any_size_keep_their_shares(chunk: Chunk) -> None:
    large = np.full(len(chunk), 1e37, np.float32)
    large[:50] *= 3
    batch = build(replace(chunk, weight=large), np.arange(100), TrainConfig(), (0,))
    assert np.allclose(batch.weight[:50], 3 / 200)
    assert np.allclose(batch.weight[50:], 1 / 200)
