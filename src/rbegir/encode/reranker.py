"""A second look at the first candidates, from their stored texts: no further byte per keyword is needed.

    candidates   the best by code, and the best by lexical score (`_native/spelling.hpp`), of all keywords
    features     of a query and a candidate: cosine of the codes, cosine of the guide (float vectors learned
                 together with the codes), and how similarly the two texts are spelled
    score        w·x + v·max(W x + b, 0) of the standardised features x, fitted on held-out pairs

An encoder that was trained elsewhere has neither a guide nor held-out pairs. `Reranker.by_words` scores its
candidates by the cosine of the codes + WORDS_WEIGHT · the share of the query's words that the text has.

A score is a function of the model, the query, and the candidate's text and code, to the last bit, so that all
machines, devices, segments and shards agree on it. On disk a reranker is a folder within its model's, in the
layout of `rbegir.encode.directory`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir._native import _core, choose_isa
from rbegir.base.devices import cpu_count
from rbegir.encode.directory import REPAIR, DirectoryKind, read_checked, write_pair
from rbegir.errors import CorruptError, VersionError
from rbegir.read.tokenizer import VOCABULARY, text_views

if TYPE_CHECKING:
    from rbegir.read.tokenizer import TextInput

FOLDER = "rerank"
FEATURES = ("code", "guide", *_core.SPELLING_FEATURES)
WORDS = _core.SPELLING_FEATURES.index("query words")  # above 0 wherever both texts have words
WORD_SLOTS = 1 << 17  # of the hashed table of word weights
HASH_BUCKETS = 8192  # of the grams that have no row of their own, where no model says how many
WORDS_WEIGHT = 0.5  # from .4 to .7, recall@10 differs by less than .03 on packages and .003 on titles

Floats = npt.NDArray[np.float32]
Offsets = npt.NDArray[np.int64]
Vectors = Callable[["TextInput"], Floats]  # the guide's vectors of texts
MakeVectors = Callable[[str, dict[str, Floats]], Vectors]  # of a side and the tensors of the guide

KIND = DirectoryKind("rbegir-reranker", version=1, noun="reranker", article="a reranker")


class Spelling:
    """The weights of grams and words: their inverse document frequencies in the texts that training saw."""

    def __init__(self, grams: Floats, words: Floats, mean_words: float) -> None:
        self.grams, self.words, self.mean_words = grams, words, mean_words
        self.native = _core.SpellingWeights(grams, words, mean_words)
        self.key = f"{_core.crc32c(words, _core.crc32c(grams)):08x} {mean_words!r}"  # equal for equal weights

    @classmethod
    def of(cls, texts: Iterable[TextInput], *, hash_buckets: int) -> Spelling:
        """The weights of blocks of distinct texts."""
        grams = np.zeros(VOCABULARY + hash_buckets, np.uint32)
        words = np.zeros(WORD_SLOTS, np.uint32)
        count = total = 0
        for block in texts:
            total += _core.spelling_counts(text_views(block), grams, words)
            count += len(block)
        return cls(_idf(grams, count), _idf(words, count), max(1.0, total / max(1, count)))

    def lexical_index(self, texts: TextInput) -> _core.LexicalIndex:
        """The words of texts, for finding those of the highest lexical score."""
        return _core.LexicalIndex(text_views(texts), self.native)


def _idf(found: npt.NDArray[np.uint32], count: int) -> Floats:
    """BM25's weight of what occurs in `found` of `count` texts."""
    present = found.astype(np.float64)
    return np.log1p((count - present + 0.5) / (present + 0.5)).astype(np.float32)


class Combination(NamedTuple):
    """The learned part of the score."""

    mean: Floats  # [features] of x before it is standardised
    scale: Floats  # [features]
    linear: Floats  # [features] w
    inner: Floats  # [hidden, features] W
    inner_bias: Floats  # [hidden] b
    outer: Floats  # [hidden] v

    def __call__(self, features: Floats) -> Floats:
        """Scores [candidates] of features [candidates, features]."""
        isa, threads = choose_isa(""), cpu_count()
        x = (features - self.mean) * self.scale
        into = np.ascontiguousarray(np.vstack([self.inner, self.linear]).T)  # [features, hidden + 1]
        found = _core.product(x, into, threads, isa)
        hidden = np.ascontiguousarray(np.maximum(found[:, :-1] + self.inner_bias, 0))
        score: Floats = found[:, -1] + _core.product(hidden, self.outer[:, None].copy(), threads, isa)[:, 0]
        return score


class Reranker:
    """Scores candidates by their texts. Safe to share between threads."""

    def __init__(
        self,
        spelling: Spelling,
        combination: Combination,
        guide: dict[str, Floats],
        vectors: MakeVectors | None,
        threads: int | None = None,
    ) -> None:
        """`vectors(side, guide)` makes the encoder of the guide's vectors of one side. Without it, the cosine
        of the codes stands in for that of the guide."""
        self.spelling, self.combination, self.guide = spelling, combination, guide
        self._vectors = vectors and {side: vectors(side, guide) for side in ("query", "keyword")}
        self._threads = threads or cpu_count()

    @classmethod
    def by_words(cls, texts: Iterable[TextInput]) -> Reranker:
        """The reranker of an encoder without a guide, with the weights of words in blocks of texts."""
        count = len(FEATURES)
        linear = np.zeros(count, np.float32)
        linear[[FEATURES.index("code"), FEATURES.index("query words alike")]] = 1, WORDS_WEIGHT
        nothing = np.zeros((1, count), np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32)
        plain = Combination(np.zeros(count, np.float32), np.ones(count, np.float32), linear, *nothing)
        return cls(Spelling.of(texts, hash_buckets=HASH_BUCKETS), plain, {}, None)

    def features(
        self, queries: list[str], texts: TextInput, offsets: Offsets, code_scores: npt.NDArray[Any]
    ) -> Floats:
        """[candidates, features]; those of query i are offsets[i] up to offsets[i + 1] of `texts`."""
        asked = text_views(queries)
        spelled = np.empty((len(texts), len(_core.SPELLING_FEATURES)), np.float32)
        _core.spelling_features(
            asked, text_views(texts), offsets, self.spelling.native, spelled, self._threads
        )
        code = code_scores.astype(np.float32)
        if self._vectors:
            query, keyword = self._vectors["query"](queries), self._vectors["keyword"](texts)
            guide = _core.group_cosines(query, keyword, offsets, choose_isa(""))
        else:
            guide = code.copy()
        guide[spelled[:, WORDS] == 0] = 0  # a candidate without a text, or without a word in it
        return np.column_stack([code, guide, spelled])

    def scores(
        self, queries: list[str], texts: TextInput, offsets: Offsets, code_scores: npt.NDArray[Any]
    ) -> Floats:
        """The scores that order the candidates, higher is better.  [candidates]"""
        return self.combination(self.features(queries, texts, offsets, code_scores))

    def write(self, model: str | os.PathLike[str], fingerprint: str) -> None:
        """Store it in the directory of the model with this fingerprint."""
        tensors = {
            "spelling.grams": self.spelling.grams,
            "spelling.words": self.spelling.words,
            **{f"combination.{name}": value for name, value in self.combination._asdict().items()},
            **{f"guide.{name}": value for name, value in self.guide.items()},
        }
        settings = {"model": fingerprint, "features": list(FEATURES), "mean_words": self.spelling.mean_words}
        write_pair(Path(model) / FOLDER, KIND, settings, tensors)


def read(
    model: Path,
    fingerprint: str,
    vectors: MakeVectors | None,
    threads: int | None = None,
) -> Reranker | None:
    """The reranker of a model, every byte checked; None if the directory has none, or another model's."""
    directory = model / FOLDER
    if not directory.is_dir():
        return None
    settings, tensors = read_checked(directory, KIND)
    if settings.get("model") != fingerprint:
        return None
    if tuple(settings.get("features", ())) != FEATURES:
        raise VersionError(
            f"{directory} combines other features than this rbegir computes",
            hint="upgrade rbegir, or train the model again",
        )

    def under(prefix: str) -> dict[str, Floats]:
        return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}

    try:
        spelling = Spelling(tensors["spelling.grams"], tensors["spelling.words"], settings["mean_words"])
        combination = Combination(**under("combination."))
        count, hidden = len(FEATURES), len(combination.outer)
        shapes = [(count,), (count,), (count,), (hidden, count), (hidden,), (hidden,)]
        if [array.shape for array in combination] != shapes:
            raise ValueError("shapes do not belong together")
        return Reranker(spelling, combination, under("guide."), vectors, threads)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"{directory} does not hold a whole reranker", hint=REPAIR) from error
