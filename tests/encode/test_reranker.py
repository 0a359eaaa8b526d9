"""The features of spelling and the lexical search against plain Python, and rerankers on disk."""

from __future__ import annotations

import math
import random
import shutil
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rbegir import Model
from rbegir._native import _core
from rbegir.base import masks
from rbegir.encode.reranker import FEATURES, FOLDER, Spelling
from rbegir.errors import CorruptError, FileError
from rbegir.read.tokenizer import normalise, text_views, tokenize
from rbegir.search.rerank import WordHits, merge_words
from tests.reranking import CONFIG, WORDS, make_model, some_texts

BUCKETS = CONFIG.hash_buckets
TEXTS = [*some_texts(300), "", "?!", "x", "river " * 40, "straße 7"]
QUERIES = [
    "new york",
    "rivr bank",
    "chess",
    "nyc",
    "cheese 1984 map",
    "data base",
    "東京 tower",
    "zzz",
    "the the of",
]


def words_of(text: str) -> list[str]:
    """Words by another rule that gives the same ones for these texts."""
    return "".join(c if c.isalnum() else " " for c in normalise(text)).split()


@cache
def grams_of(text: str) -> list[int]:
    return tokenize([text], hash_buckets=BUCKETS).gram_ids.tolist() if words_of(text) else []


def fnv(word: str) -> int:
    value, mask = 0xCBF29CE484222325, 2**64 - 1
    for byte in word.encode():
        value = (value ^ byte) * 0x100000001B3 & mask
    for _ in range(2):
        value ^= value >> 32
        value = value * 0xD6E8FEB86659FD93 & mask
    return value ^ value >> 32


class Reference:
    """Every feature from its definition."""

    def __init__(self, texts: list[str], slots: int) -> None:
        self.slots = slots
        held = [set(words_of(text)) for text in texts]
        words: dict[int, int] = {}
        grams: dict[int, int] = {}
        for text, own in zip(texts, held, strict=True):
            for slot in {fnv(word) % slots for word in own}:
                words[slot] = words.get(slot, 0) + 1
            for gram in {g for word in words_of(text) for g in grams_of(word)}:
                grams[gram] = grams.get(gram, 0) + 1
        count = len(texts)
        self._words, self._grams = words, grams
        self.idf = lambda found: math.log1p((count - found + 0.5) / (found + 0.5))
        self.mean = sum(len(words_of(text)) for text in texts) / count

    def word(self, word: str) -> float:
        return self.idf(self._words.get(fnv(word) % self.slots, 0))

    def alike(self, a: str, b: str) -> float:
        left, right = set(grams_of(a)), set(grams_of(b))
        return 2 * len(left & right) / (len(left) + len(right))

    def best(self, word: str, others: list[str]) -> float:
        degree = max((self.alike(word, other) for other in set(others)), default=0)
        return degree if degree >= 0.5 else 0

    def lexical(self, query: str, text: str) -> float:
        words = words_of(text)
        total = sum(self.word(w) * self.best(w, words) for w in dict.fromkeys(words_of(query)))
        return total * 2.2 / (1 + 1.2 * (0.25 + 0.75 * len(words) / self.mean))

    def bag(self, text: str) -> dict[int, float]:
        found: dict[int, float] = {}
        for word in words_of(text):
            for gram in grams_of(word):
                found[gram] = found.get(gram, 0) + self.idf(self._grams.get(gram, 0))
        return found

    def features(self, query: str, text: str) -> list[float]:
        q, t = words_of(query), words_of(text)
        if not q or not t:
            return [0.0] * len(_core.SPELLING_FEATURES)
        a, b = self.bag(query), self.bag(text)
        dot = sum(weight * b.get(gram, 0) for gram, weight in a.items())
        norms = math.sqrt(sum(w * w for w in a.values()) * sum(w * w for w in b.values()))
        all_q, all_t = sum(map(self.word, q)), sum(map(self.word, t))
        left, right = "".join(q), "".join(t)
        prefix = next(
            (i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y),
            min(len(left), len(right)),
        )
        ratio = (len(right) - len(left)) / (len(right) + len(left))
        numbers = [
            sum(any(c in "0123456789" for c in w) and w not in other for w in own)
            for own, other in ((q, t), (t, q))
        ]
        initials = ["".join(w[0] for w in own) for own in (q, t)]
        short = (len(q) == 1 and len(t) > 1 and q[0] == initials[1]) or (
            len(t) == 1 and len(q) > 1 and t[0] == initials[0]
        )
        pairs = [pair for pair in pairwise(q) if pair in set(pairwise(t))]
        distance = levenshtein(left[:128], right[:128])
        unique = sum(self.word(w) for w in dict.fromkeys(q))
        return [
            dot / norms,
            sum(self.word(w) for w in q if w in t) / all_q,
            sum(self.word(w) for w in t if w in q) / all_t,
            sum(self.word(w) * self.best(w, t) for w in q) / all_q,
            sum(self.word(w) * self.best(w, q) for w in t) / all_t,
            self.lexical(query, text) / unique,
            prefix / len(left),
            ratio,
            abs(ratio),
            min(2, numbers[0]),
            min(2, numbers[1]),
            float(short),
            float(left[0] == right[0]),
            min(4, max(-4, len(t) - len(q))),
            len(pairs) / (len(q) - 1) if len(q) > 1 else 0,
            1 - distance / max(len(left[:128]), len(right[:128])),
            min(8, len(q)),
        ]


def levenshtein(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


@pytest.fixture(scope="module")
def spelling() -> Spelling:
    return Spelling.of([TEXTS[:100], TEXTS[100:]], hash_buckets=BUCKETS)


@pytest.fixture(scope="module")
def reference(spelling: Spelling) -> Reference:
    return Reference(TEXTS, len(spelling.words))


def test_features_are_what_they_say(spelling: Spelling, reference: Reference) -> None:
    draw = random.Random(1)
    queries = (
        [query for query in QUERIES if words_of(query)] + some_texts(20, 7) + ["route66", "a" * 70 + " river"]
    )
    chosen = [[draw.choice(TEXTS) for _ in range(draw.randint(0, 40))] for _ in queries]
    offsets = np.cumsum([0, *map(len, chosen)]).astype(np.int64)
    texts = [text for some in chosen for text in some]
    wanted = [reference.features(q, t) for q, some in zip(queries, chosen, strict=True) for t in some]
    for threads in (1, 3):
        found = np.full((len(texts), len(_core.SPELLING_FEATURES)), np.nan, np.float32)
        _core.spelling_features(
            text_views(queries), text_views(texts), offsets, spelling.native, found, threads
        )
        np.testing.assert_allclose(found, np.array(wanted), atol=2e-5)


@pytest.mark.parametrize(
    "text",
    [
        *("a" * 115, "b" * 127 + "cd", "b" * 300, "ab" * 63 + "x", "ж" * 47, "длинное название " * 5),
        *("東京都庁第一本庁舎展望室" * 2, "𝒳" * 65 + "é" * 64, "\U0001f600 x", "é"),
    ],
)
def test_equal_texts_are_spelled_alike(spelling: Spelling, text: str) -> None:
    assert spelled(spelling, text, text)["letters alike"] == 1


@pytest.mark.parametrize(
    ("query", "text", "wanted"),
    [
        ("café", "cafe", {"letters alike": 0.75, "common prefix": 0.75, "length": 0, "first letter": 1}),
        ("東京", "東北大", {"letters alike": 1 / 3, "common prefix": 0.5, "length": 1 / 5}),
        ("дом", "год", {"first letter": 0, "common prefix": 0}),  # both begin with the byte D0
        ("é", "è", {"first letter": 0, "letters alike": 0}),
        ("нато", "н а т о", {"acronym": 1, "letters alike": 1}),
    ],
)
def test_letters_are_code_points(spelling: Spelling, query: str, text: str, wanted: dict[str, float]) -> None:
    found = spelled(spelling, query, text)
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)


def test_edit_distances_of_letters_of_many_alphabets(spelling: Spelling) -> None:
    """Also where letters share a slot of the native table, and around its machine words."""
    draw = random.Random(4)
    alphabets = ["ab", "abж", "".join(chr(0x4E00 + 512 * i) for i in range(30)), "aж東京𝒳𝒴é"]
    for size in (1, 63, 64, 65, 127, 128, 129, 200):
        for alphabet in alphabets:
            query, text = ("".join(draw.choices(alphabet, k=k)) for k in (size, draw.randint(1, 200)))
            left, right = (normalise(one)[:128] for one in (query, text))
            wanted = 1 - levenshtein(left, right) / max(len(left), len(right))
            assert spelled(spelling, query, text)["letters alike"] == pytest.approx(wanted, abs=1e-6)


def test_features_of_short_ascii_texts_never_change() -> None:
    """Stored rerankers were fitted on them: the same bits for words of weights made of integers."""
    weights = [np.arange(size, dtype=np.float32) % 61 / 8 + 1 for size in (37**3 + BUCKETS, 1 << 17)]
    spelling, texts = Spelling(weights[0], weights[1], 3.0), [t for t in some_texts(500, 5) if t.isascii()]
    texts = [text for text in texts if len(text) <= 64] + ["a" * 64, "ab " * 21, "x", "7 up", ""]
    found = np.empty((len(texts) ** 2, len(_core.SPELLING_FEATURES)), np.float32)
    offsets = np.arange(len(texts) + 1) * len(texts)
    _core.spelling_features(
        text_views(texts), text_views(texts * len(texts)), offsets, spelling.native, found, 2
    )
    assert f"{_core.crc32c(found):08x}" == "02f36636"


def spelled(spelling: Spelling, query: str, text: str) -> dict[str, float]:
    found = np.empty((1, len(_core.SPELLING_FEATURES)), np.float32)
    _core.spelling_features(
        text_views([query]), text_views([text]), np.array([0, 1]), spelling.native, found, 1
    )
    return dict(zip(_core.SPELLING_FEATURES, found[0].tolist(), strict=True))


def test_texts_are_compared_by_their_first_words(spelling: Spelling, reference: Reference) -> None:
    """64 of a query and 512 of a keyword: no text can make a search slow."""
    draw = random.Random(2)
    queries, texts = (
        [draw.choices(WORDS, k=k) for k in ks] for ks in ((63, 64, 65, 2000), (511, 512, 513, 3000))
    )
    found = np.empty((len(queries) * len(texts), len(_core.SPELLING_FEATURES)), np.float32)
    offsets = np.arange(len(queries) + 1) * len(texts)
    asked = text_views([" ".join(query) for query in queries])
    keywords = text_views([" ".join(text) for text in texts] * len(queries))
    _core.spelling_features(asked, keywords, offsets, spelling.native, found, 1)
    wanted = [
        reference.features(" ".join(query[:64]), " ".join(text[:512])) for query in queries for text in texts
    ]
    np.testing.assert_allclose(found, np.array(wanted), atol=2e-5)

    rows, scores = np.empty((len(queries), 9), np.int64), np.empty((len(queries), 9), np.float32)
    spelling.lexical_index(TEXTS).search(asked, None, rows, scores, 1)
    for query, best, score in zip(queries, rows, scores, strict=True):
        every = [reference.lexical(" ".join(query[:64]), TEXTS[row]) for row in best]
        np.testing.assert_allclose(score, every, rtol=1e-5)


def test_lexical_search_finds_the_highest_scores(spelling: Spelling, reference: Reference) -> None:
    index = spelling.lexical_index(TEXTS)
    limit = 25
    rows, scores = np.empty((len(QUERIES), limit), np.int64), np.empty((len(QUERIES), limit), np.float32)
    index.search(text_views(QUERIES), None, rows, scores, 2)
    for query, found, score in zip(QUERIES, rows, scores, strict=True):
        every = np.array([reference.lexical(query, text) for text in TEXTS])
        there = found[found >= 0]
        assert len(there) == min(limit, int((every > 0).sum()))
        np.testing.assert_allclose(score[: len(there)], np.sort(every)[::-1][: len(there)], rtol=1e-5)
        np.testing.assert_allclose(score[: len(there)], every[there], rtol=1e-5)
        order = sorted(range(len(there)), key=lambda i: (-score[i], there[i]))
        assert order == list(range(len(there)))  # ties by row


@pytest.mark.parametrize(("count", "size"), [(len(TEXTS), 77), (2 * 65536 + 1, 40_000), (65536, 65535)])
@pytest.mark.parametrize("masked", [False, True])
def test_a_text_scores_alike_however_texts_are_grouped(
    spelling: Spelling, count: int, size: int, masked: bool
) -> None:
    """Texts are scored 65,536 at a time, whatever part of all texts they are."""
    texts, limit = (TEXTS * (count // len(TEXTS) + 1))[:count], 40
    draw = np.random.default_rng(count)
    best = np.argsort(draw.random(count))[:100]
    allowed = np.isin(np.arange(count), best) if masked else np.ones(count, bool)

    def search(first: int, last: int) -> WordHits:
        rows, scores = np.empty((len(QUERIES), limit), np.int64), np.empty((len(QUERIES), limit), np.float32)
        mask = masks.from_bools(allowed[first:last]) if masked else None
        spelling.lexical_index(texts[first:last]).search(text_views(QUERIES), mask, rows, scores, 1)
        return WordHits(np.where(rows < 0, -1, rows + first), scores, rows)

    merged = merge_words([search(first, min(first + size, count)) for first in range(0, count, size)], limit)
    whole = search(0, count)
    np.testing.assert_array_equal(merged.positions, whole.positions)
    found = whole.positions >= 0
    np.testing.assert_array_equal(merged.scores[found], whole.scores[found])
    if masked:
        assert set(whole.positions[found]) <= set(best)
        assert whole.positions.max() > min(count - 1, 65536) * 0.9  # beyond the first texts


def test_masked_texts_are_not_found(spelling: Spelling) -> None:
    allowed = np.arange(len(TEXTS)) % 3 == 0
    index = spelling.lexical_index(TEXTS)
    every, some = (np.empty((1, len(TEXTS)), np.int64) for _ in range(2))
    scores = np.empty((1, len(TEXTS)), np.float32)
    index.search(text_views(["river bank"]), None, every, scores, 1)
    index.search(text_views(["river bank"]), masks.from_bools(allowed), some, scores, 1)
    found = every[every >= 0]
    assert some[some >= 0].tolist() == found[allowed[found]].tolist()
    assert 0 < len(some[some >= 0]) < len(found)


def test_the_native_module_refuses_wrong_shapes(spelling: Spelling) -> None:
    views = text_views(["river"])
    out = np.empty((1, len(_core.SPELLING_FEATURES)), np.float32)
    for offsets in ([0, 2], [1, 1], [0], [0, 1, 1]):
        with pytest.raises(ValueError, match="offsets must divide"):
            _core.spelling_features(views, views, np.array(offsets, np.int64), spelling.native, out, 1)
    with pytest.raises(ValueError, match="offsets must divide"):
        _core.group_cosines(
            np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float32), np.array([0, 1]), "portable"
        )
    rows, scores = np.empty((1, 2), np.int64), np.empty((1, 2), np.float32)
    with pytest.raises(ValueError, match="the mask hold all texts"):
        spelling.lexical_index(TEXTS).search(views, np.zeros(1, np.uint64), rows, scores, 1)
    with pytest.raises(ValueError, match="a power of two"):
        Spelling(spelling.grams, spelling.words[:-1], 3.0)


def test_a_reranker_is_stored_with_its_model(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", TEXTS)
    assert model.reranker is not None
    model.save(tmp_path / "copy")
    copied = Model.load(tmp_path / "copy")
    assert copied.fingerprint == model.fingerprint
    offsets = np.array([0, len(TEXTS)])
    codes = np.linspace(-1, 1, len(TEXTS))
    first, second = (m.reranker.scores(["rivr"], TEXTS, offsets, codes) for m in (model, copied))  # type: ignore[union-attr]
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all()
    shutil.rmtree(tmp_path / "copy" / FOLDER)
    assert Model.load(tmp_path / "copy").reranker is None


def test_the_reranker_of_a_replaced_model_is_not_used(tmp_path: Path) -> None:
    """Its guide belongs to the tower of the model that was there before."""
    first, second = make_model(tmp_path / "first", TEXTS, 0), make_model(tmp_path / "second", TEXTS, 1)
    shutil.rmtree(tmp_path / "second" / FOLDER)
    first.save(tmp_path / "place")
    Model.load(tmp_path / "second").save(tmp_path / "place")
    assert Model.load(tmp_path / "place").fingerprint == second.fingerprint
    assert Model.load(tmp_path / "place").reranker is None


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_damage_is_noticed(tmp_path: Path, name: str) -> None:
    make_model(tmp_path / "model", TEXTS)
    path = tmp_path / "model" / FOLDER / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises((CorruptError, FileError)):
        _ = Model.load(tmp_path / "model").reranker
    with pytest.raises((CorruptError, FileError)):
        Model.load(tmp_path / "model").verify()


def test_every_feature_has_a_name() -> None:
    assert len(set(FEATURES)) == len(FEATURES)
    assert len(WORDS) == len(set(WORDS))
