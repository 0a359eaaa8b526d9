"""The common part of the word model and the document model: words of a vocabulary in, planes out.

    words ─ features f of a network ─ RBE ─ b⁰, b¹, …

`cbow.py` and `hashing.py` differ in f and in the loss.

A query is compared with all planes; a stored keyword has the first few planes of the same code. The float
model, `planes=0`, has no RBE layers and no codes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_PLANES, Codes, check_dimension
from rbegir.encode.clsm.rbe import RBE, codes_of, fingerprint_of
from rbegir.errors import InputError, MismatchError, TextError, whole_number

ENCODE = 4096  # texts encoded at a time
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class BagConfig:
    """The shape of a model of words and its training settings."""

    n: int = 64
    planes: int = 3  # of a query; 0: the float model
    keyword_planes: int = 2  # of a stored keyword: the first of them
    width: int = 64  # of f
    batch_size: int = 256
    epochs: int = 1
    lr: float = 1e-3
    seed: int = 0

    positive: ClassVar[tuple[str, ...]] = ("width", "batch_size")  # fields that must be at least 1

    def __post_init__(self) -> None:
        check_dimension(self.n)
        if not 0 <= self.planes <= MAX_PLANES:
            raise InputError(f"planes must be from 0 (float) to {MAX_PLANES}, got {self.planes!r}")
        most = min(MAX_KEYWORD_PLANES, self.planes or MAX_KEYWORD_PLANES)
        whole_number("keyword_planes", self.keyword_planes, 1, most)
        for name in self.positive:
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        object.__setattr__(self, "epochs", whole_number("epochs", self.epochs, 0))


class BagNetwork(nn.Module, ABC):
    """A network with RBE layers; `rbe` is None in the float model."""

    rbe: RBE | None

    @abstractmethod
    def of_words(self, known: list[list[int]]) -> Tensor:
        """f of texts [texts, width], from the numbers of their words; none is empty."""


class BagEncoder(ABC):
    """A trained model and its vocabulary, as an encoder that an index can be made with."""

    kind: ClassVar[str]  # of model, for messages
    noun: ClassVar[str]  # what it encodes, for messages
    words: ClassVar[Callable[[str], list[str]]]  # the words of a text
    network: BagNetwork

    def __init__(self, config: BagConfig, vocabulary: Sequence[str], network: BagNetwork) -> None:
        self.config, self.vocabulary = config, list(vocabulary)
        self.network = network.eval()
        self._number = {word: i for i, word in enumerate(self.vocabulary)}
        self.fingerprint = fingerprint_of({**asdict(config), "words": len(self.vocabulary)}, network)

    @property
    def n(self) -> int:
        return self.config.n

    @property
    def query_planes(self) -> int:
        return self.config.planes

    @property
    def keyword_planes(self) -> int:
        return self.config.keyword_planes if self.config.planes else 0

    @torch.no_grad()
    def encode_queries(self, texts: Sequence[str]) -> Codes:
        """Codes of texts with all planes; words outside the vocabulary are ignored."""
        if self.network.rbe is None:
            raise MismatchError(
                f"a float {self.kind} model has no codes", hint="train with planes=3, or use embed"
            )
        return Codes.concat([codes_of(self.network.rbe(f)) for f in self._features(texts)])

    def encode_keywords(self, texts: Sequence[str]) -> Codes:
        """Codes of texts with the stored planes only."""
        return self.encode_queries(texts).first_planes(self.config.keyword_planes)

    @torch.no_grad()
    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """f of texts: float32 [count, width]."""
        return torch.cat([*self._features(texts)]).numpy()

    def known(self, texts: Sequence[str]) -> Iterator[list[list[int]]]:
        """The numbers of the words of each text that the vocabulary has, in batches of texts."""
        for low in range(0, len(texts), ENCODE):
            split = (type(self).words(text) for text in texts[low : low + ENCODE])
            yield [[self._number[word] for word in words if word in self._number] for words in split]

    def _features(self, texts: Sequence[str]) -> Iterator[Tensor]:
        """The input of the RBE layers, in batches [texts of a batch, width]."""
        for number, known in enumerate(self.known(texts)):
            if [] in known:
                raise TextError(
                    f"{self.noun} at position {number * ENCODE + known.index([])} has no word of the model's "
                    "vocabulary",
                    hint="leave it out",
                )
            yield self.network.of_words(known)


def descend(
    epochs: int,
    batches_of_epoch: Callable[[], Sequence[Batch]],
    loss_of: Callable[[Batch], Tensor],
    optimisers: Sequence[torch.optim.Optimizer],
) -> None:
    """Train with one step per batch; learning rates decay linearly to 0."""
    rates = [optimiser.param_groups[0]["lr"] for optimiser in optimisers]
    for epoch in range(epochs):
        batches = batches_of_epoch()
        for step, batch in enumerate(batches):
            share = (epoch + step / len(batches)) / epochs
            for optimiser, rate in zip(optimisers, rates, strict=True):
                optimiser.param_groups[0]["lr"] = rate * (1 - share)
                optimiser.zero_grad(set_to_none=True)
            loss_of(batch).backward()  # type: ignore[no-untyped-call]
            for optimiser in optimisers:
                optimiser.step()
