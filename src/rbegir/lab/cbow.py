"""word2vec's CBOW with RBE layers after the sum layer: words as binary codes.

    words around a place ─ sum layer f = mean of their vectors ─ RBE ─ b^t ─ scores b^t · u_w of every word w

CBOW predicts the word at a position from the words around it. The paper puts the RBE layers between its sum
layer and its output; the code of a word is their output for the word alone. The float model, `planes=0`, is
plain CBOW: the sum layer itself is multiplied with the output vectors.

*Loss.* The softmax over all words is estimated on the true word and `negatives` words drawn per batch, each
with probability p ∝ count^¾; subtracting log p from the scores removes the bias of drawing (sampled softmax).
One draw per batch makes it a matrix product. All planes learn together: the loss is the mean over b⁰, b¹, …
so that the first planes of a code are a code as well.

*The sum layer* is scaled to length 1 before the RBE layers. Its direction is the meaning of a context; its
length only depends on the number of words, and residual planes would be spent on it. The layers start as a
quantiser of such vectors (`rbe.py`) and learn slowly, so that the words adapt to a stable code: ten times the
rate lost a third of the neighbours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from rbegir.codes.score import cosine, keys, norm_squared
from rbegir.encode.clsm.clsm import without_sparse_checks
from rbegir.encode.clsm.rbe import prefixes, rbe_layers, start_as_quantiser
from rbegir.errors import InputError, whole_number
from rbegir.lab.bag import BagConfig, BagEncoder, BagNetwork, descend

WORD = re.compile(r"\w+")

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CBOWConfig(BagConfig):
    """The shape of a word model and its training settings. The float model's `width` is n."""

    window: int = 5  # words on each side
    min_count: int = 5  # rarer words are left out
    subsample: float = 1e-3  # share of the text above which a frequent word is thinned out
    negatives: int = 128  # words drawn for a batch
    batch_size: int = 1024
    epochs: int = 3
    lr: float = 1e-4  # of the RBE layers: from 1e-3 on they move faster than the words can follow
    table_lr: float = 0.1  # of the word vectors

    positive = ("width", "window", "min_count", "negatives", "batch_size")


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return WORD.findall(text.lower())


class _Corpus:
    """Texts as one long array of word numbers, and where each text lies in it."""

    def __init__(self, texts: Iterable[str], min_count: int) -> None:
        split = [words_of(text) for text in texts]
        counts = Counter(chain.from_iterable(split))
        kept = sorted((-count, word) for word, count in counts.items() if count >= min_count)
        self.vocabulary = [word for _, word in kept]  # most frequent first
        self.counts = np.array([-count for count, _ in kept], dtype=np.float64)  # [words]
        number = {word: i for i, word in enumerate(self.vocabulary)}
        tokens = np.fromiter((number.get(word, -1) for word in chain.from_iterable(split)), np.int64)
        places = np.repeat(np.arange(len(split)), [len(words) for words in split])
        self.tokens, self.texts = tokens[tokens >= 0], places[tokens >= 0]  # words, and their texts

    def thinned(self, subsample: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Tokens and their texts with the most frequent words thinned out, anew in every epoch."""
        share = self.counts / self.counts.sum()
        keep = np.minimum(1.0, np.sqrt(subsample / share))  # [words]
        chosen = rng.random(len(self.tokens)) < keep[self.tokens]
        return self.tokens[chosen], self.texts[chosen]


def contexts(tokens: Ints, texts: Ints, places: Ints, window: int) -> tuple[Ints, Ints]:
    """The context words of each given position, one position after the other, and how many each has."""
    steps = np.array([step for step in range(-window, window + 1) if step])
    at = places[:, None] + steps  # [places, 2 window]
    inside = (at >= 0) & (at < len(tokens))
    at[~inside] = 0
    inside &= texts[at] == texts[places, None]
    return tokens[at[inside]], inside.sum(axis=1)


class _Network(BagNetwork):
    def __init__(self, words: int, config: CBOWConfig) -> None:
        super().__init__()
        width = config.width if config.planes else config.n
        self.inputs = nn.EmbeddingBag(words, width, mode="mean", sparse=True)
        self.outputs = nn.Embedding(words, config.n, sparse=True)
        self.rbe = rbe_layers(width, config.n, config.planes) if config.planes else None
        nn.init.normal_(self.inputs.weight, std=0.3 / width**0.5)
        nn.init.zeros_(self.outputs.weight)
        if self.rbe is not None:
            start_as_quantiser(self.rbe, functional.normalize(self.inputs.weight), config.seed)

    def direction(self, words: Tensor, starts: Tensor) -> Tensor:
        """The sum layer, scaled to length 1: what the RBE layers see.  [texts, width]"""
        return functional.normalize(self.inputs(words, starts))

    def of_words(self, known: list[list[int]]) -> Tensor:
        starts = np.cumsum([0, *(len(words) for words in known[:-1])])
        return self.direction(torch.tensor([i for words in known for i in words]), torch.from_numpy(starts))

    def forward(self, words: Tensor, starts: Tensor) -> list[Tensor]:
        """The vectors that are multiplied with the outputs: per number of planes, or the sum layer itself."""
        if self.rbe is None:
            return [self.inputs(words, starts)]  # [texts, n]
        scale = self.outputs.embedding_dim**-0.5  # ±1 per dimension would make the steps too large
        return [scale * vector for vector in prefixes(self.rbe(self.direction(words, starts)))]


class CBOW(BagEncoder):
    """A trained word model, made by `fit`: an encoder that turns words and short texts into codes.

    `rbegir.Index.create(path, words)` makes an index with it.
    """

    kind, noun = "word", "text"
    words = words_of
    network: _Network

    @classmethod
    def fit(cls, texts: Iterable[str], config: CBOWConfig | None = None) -> CBOW:
        """Learn from texts."""
        config = config or CBOWConfig()
        corpus = _Corpus(texts, config.min_count)
        if len(corpus.vocabulary) < 2:
            raise InputError(
                f"texts hold {len(corpus.vocabulary)} words that occur {config.min_count} times or more, "
                "at least 2 are needed",
                hint="give more texts or a lower min_count",
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            network = _Network(len(corpus.vocabulary), config)
            _train(network, corpus, config)
        return cls(config, corpus.vocabulary, network)

    def similar(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """The k words whose stored codes (or, in a float model, vectors) are nearest, with their cosines."""
        if word not in self._number:
            raise InputError(f"{word!r} is not one of the {len(self.vocabulary)} words of the model")
        (order,), (scores,) = self.neighbours([word], k)
        return [(self.vocabulary[i], float(score)) for i, score in zip(order, scores, strict=True)]

    def neighbours(
        self, words: Sequence[str], k: int, *, planes: tuple[int, int] | None = None
    ) -> tuple[Ints, npt.NDArray[np.float64]]:
        """Numbers and cosines [words, k] of the nearest other words, best first, ties by frequency.

        `planes` are those of the query and those that are stored: (1, 1) compares the base vectors alone.
        """
        own = np.array([self._number[word] for word in words])
        if self.network.rbe is None:
            table = self.embed(self.vocabulary)
            table /= np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
            scores = (table[own] @ table.T).astype(np.float64)
        else:
            ask, keep = planes or (self.query_planes, self.keyword_planes)
            stored = self.encode_queries(self.vocabulary).first_planes(keep)
            asked = self.encode_queries(words).first_planes(ask).values()
            scores = cosine(keys(asked, stored), norm_squared(asked))
        scores[np.arange(len(own)), own] = -np.inf  # a word is not its own neighbour
        most = min(whole_number("k", k), len(self.vocabulary) - 1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        return order, np.take_along_axis(scores, order, axis=1)


def _train(network: _Network, corpus: _Corpus, config: CBOWConfig) -> None:
    rng = np.random.default_rng(config.seed)
    noise = corpus.counts**0.75
    noise /= noise.sum()
    log_noise = torch.from_numpy(np.log(noise)).float()
    cumulative = np.cumsum(noise)

    def batches() -> list[tuple[Ints, Ints, Ints]]:
        """Per batch: the tokens of the epoch, their texts, and the positions whose words are predicted."""
        tokens, texts = corpus.thinned(config.subsample, rng)
        together = texts[1:] == texts[:-1]  # a word and the next are of one text
        usable = rng.permutation(np.flatnonzero(np.append(together, False) | np.append(False, together)))
        if not len(usable):
            raise InputError("no text has two words of the vocabulary", hint="give longer texts")
        parts = np.array_split(usable, max(1, len(usable) // config.batch_size))
        return [(tokens, texts, places) for places in parts]

    def loss(batch: tuple[Ints, Ints, Ints]) -> Tensor:
        """The sampled softmax above, averaged over the numbers of planes."""
        tokens, texts, places = batch
        words, lengths = contexts(tokens, texts, places, config.window)
        starts = np.cumsum(lengths) - lengths
        draws = np.searchsorted(cumulative, rng.random(config.negatives) * cumulative[-1], "right")
        target, drawn = torch.from_numpy(tokens[places]), torch.from_numpy(draws)
        true, other = network.outputs(target), network.outputs(drawn)  # [batch, n], [negatives, n]
        hit = target[:, None] == drawn  # a drawn word that is the true one is not a negative
        losses = []
        for vector in network(torch.from_numpy(words), torch.from_numpy(starts)):
            positive = (vector * true).sum(dim=1) - log_noise[target]  # [batch]
            negative = (vector @ other.T - log_noise[drawn]).masked_fill(hit, -torch.inf)
            losses.append(functional.softplus(torch.logsumexp(negative, dim=1) - positive).mean())
        return torch.stack(losses).mean()

    without_sparse_checks()
    optimisers: list[torch.optim.Optimizer] = [
        torch.optim.Adagrad([network.inputs.weight, network.outputs.weight], lr=config.table_lr)
    ]
    if network.rbe is not None:
        optimisers.append(torch.optim.Adam(network.rbe.parameters(), lr=config.lr))
    network.train()
    descend(config.epochs, batches, loss, optimisers)
