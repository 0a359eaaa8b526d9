"""Semantic hashing with RBE layers as its code layer: similar documents get similar binary codes.

    word counts ─ tanh ─ f ─ RBE ─ b^t ─ tanh ─ softmax over the vocabulary ─ the counts again
                              └ the code of the document

Semantic hashing passes a bag of words through a narrow layer and reconstructs the words from it; documents
about the same topics then get codes that differ in few bits. Its code layer, a row of logistic units that
noise drives towards 0 and 1, is replaced here by RBE layers, which are binary from the start and add residual
planes. The float model, `planes=0`, keeps a code layer of n tanh units.

*Input* is log(1 + count) of the `vocabulary` most informative words, scaled to length 1, so that the length
of a document does not matter. *Loss* is the cross entropy per word of the document under the softmax,
averaged over b⁰, b¹, … so that the first planes alone are a code too. No labels and no pairs are used.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from rbegir.encode.clsm.rbe import prefixes, rbe_layers, start_as_quantiser
from rbegir.errors import InputError
from rbegir.lab.bag import ENCODE, BagConfig, BagEncoder, BagNetwork, descend

TERM = re.compile(r"[^\W\d_]{3,}")  # three letters or more


@dataclass(frozen=True)
class HashingConfig(BagConfig):
    """The shape of a document model and its training settings."""

    vocabulary: int = 2000
    width: int = 128
    most_common: float = 0.5  # words in a larger share of the documents are left out
    epochs: int = 30
    lr: float = 2e-3

    positive = ("vocabulary", "width", "batch_size")


def terms_of(document: str) -> list[str]:
    """The words of a document that can be counted, in lower case."""
    return TERM.findall(document.lower())


class _Network(BagNetwork):
    def __init__(self, words: int, config: HashingConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(words, 2 * config.width)
        self.features = nn.Linear(2 * config.width, config.width)
        self.rbe = rbe_layers(config.width, config.n, config.planes) if config.planes else None
        self.code = None if config.planes else nn.Linear(config.width, config.n)
        self.outer = nn.Linear(config.n, 2 * config.width)
        self.words = nn.Linear(2 * config.width, words)

    def counts(self, known: list[list[int]]) -> Tensor:
        """How often each document has each word: [documents, words]"""
        counted = [np.bincount(words, minlength=self.inner.in_features) for words in known]
        return torch.from_numpy(np.array(counted, np.float32).reshape(-1, self.inner.in_features))

    def of_words(self, known: list[list[int]]) -> Tensor:
        return self.f(self.counts(known))

    def f(self, counts: Tensor) -> Tensor:
        scaled = functional.normalize(torch.log1p(counts))  # [documents, words]
        f: Tensor = torch.tanh(self.features(torch.tanh(self.inner(scaled))))
        return f  # [documents, width]

    def forward(self, counts: Tensor) -> list[Tensor]:
        """log P of every word [documents, words], from each number of planes."""
        f = self.f(counts)
        vectors = prefixes(self.rbe(f)) if self.rbe is not None else [self.float_code(f)]
        return [functional.log_softmax(self.words(torch.tanh(self.outer(b))), dim=1) for b in vectors]

    def float_code(self, f: Tensor) -> Tensor:
        assert self.code is not None
        return torch.tanh(self.code(f))  # [documents, n]


class SemanticHashing(BagEncoder):
    """A trained document model, made by `fit`: an encoder that turns documents into codes."""

    kind = noun = "document"
    words = terms_of
    network: _Network

    @classmethod
    def fit(cls, documents: Sequence[str], config: HashingConfig | None = None) -> SemanticHashing:
        """Learn from documents."""
        config = config or HashingConfig()
        if len(documents) < 2:
            raise InputError(f"documents must be at least 2, got {len(documents)}")
        vocabulary = _informative_words(documents, config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = cls(config, vocabulary, _Network(len(vocabulary), config))
            counts = [model.network.counts([*filter(None, known)]) for known in model.known(documents)]
            _train(model.network, torch.cat(counts), config)
        return cls(config, vocabulary, model.network)

    @torch.no_grad()
    def embed(self, documents: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32 vectors of documents: the tanh code [count, n] of a float model, else f [count, width]."""
        f = super().embed(documents)
        return f if self.network.code is None else self.network.float_code(torch.from_numpy(f)).numpy()


def _informative_words(documents: Sequence[str], config: HashingConfig) -> list[str]:
    """The words that occur in the most documents, without those in nearly all of them."""
    spread = Counter(word for document in documents for word in set(terms_of(document)))
    limit = config.most_common * len(documents)
    ranked = sorted((-count, word) for word, count in spread.items() if 2 <= count <= limit)
    if len(ranked) < 2:
        raise InputError(
            "documents have fewer than 2 words that occur in more than one of them and not in nearly all",
            hint="give more documents",
        )
    return [word for _, word in ranked[: config.vocabulary]]


def _train(network: _Network, counts: Tensor, config: HashingConfig) -> None:
    shuffle = torch.Generator().manual_seed(config.seed)
    if network.rbe is not None:
        with torch.no_grad():
            sample = counts[torch.randperm(len(counts), generator=shuffle)[:ENCODE]]
            start_as_quantiser(network.rbe, network.f(sample), config.seed)

    def batches() -> Sequence[Tensor]:
        order = torch.randperm(len(counts), generator=shuffle)
        return order.chunk(max(1, len(counts) // config.batch_size))

    def loss(chosen: Tensor) -> Tensor:
        batch = counts[chosen]
        weights = batch / batch.sum(dim=1, keepdim=True)
        return torch.stack([-(weights * logs).sum(dim=1).mean() for logs in network(batch)]).mean()

    network.train()
    descend(config.epochs, batches, loss, [torch.optim.Adam(network.parameters(), lr=config.lr)])
