"""What others make of the float model's vectors in about as many bytes, on the very same titles and queries.

Every quantiser gets the unit vectors of m_1's titles and may train on them. It is asked twice: with the float
query, as its users do, and with a query of three bits per dimension, as rbe* is. Bytes are all that is stored
for a title: codes and, where a method needs them to score, its factors.

Most of them score by an inner product with a reconstructed vector. Those are decoded once and ranked exactly
over all titles like any other vectors, by inner product and by cosine, and the better of the two is quoted.
Where the score is no such product (RaBitQ with more than one bit, turbovec) the library's own search answers
a sample of the queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rbegir.base.devices import cpu_count
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.binarizer.rounding import nearest
from rbegir.encode.clsm.twotower import TwoTower, unit
from rbegir.errors import needing
from rbegir.evaluate.retrieval import CUTOFFS
from rbegir.lab.bench.quantizers import rabitq, turbovec
from rbegir.lab.bench.residual import Residual
from rbegir.lab.markdown import Json
from rbegir.lab.reproduce.dataset import sample_rows
from rbegir.lab.reproduce.rows import Scale
from rbegir.lab.reproduce.testbed import Testbed, Vectors

SAMPLE = 1_000  # queries of a library's own search
FEW = 3  # bits per dimension of the coarse query: those of rbe*
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Quantiser:
    """A way to store a vector. `factory` is FAISS's name for it, empty for those made here."""

    name: str
    query: str  # precision of the query
    factory: str = ""
    once: bool = False  # for the first seed alone: a minute or more of many cores


QUANTISERS = (
    Quantiser("FAISS PQ16x8", "float", "PQ16x8"),
    Quantiser("FAISS RaBitQ, 1 bit", "float", "RR64,RaBitQ"),
    Quantiser("rotation and 2-bit scalar", "float"),
    Quantiser("sign of a rotation", "1 bit"),
    Quantiser("sign of a rotation, rescored with the float query", "float"),
)
SLOW = (
    Quantiser("FAISS RQ16x8", "float", "RQ16x8"),
    Quantiser("rbegir.Binarizer, 128 × 1", "8 bits", once=True),
    Quantiser("FAISS OPQ16,PQ16x8", "float", "OPQ16,PQ16x8", once=True),
)


def compare(
    bed: Testbed, vectors: Vectors, network: TwoTower, keep: Callable[[Json], None], scale: Scale, seed: int
) -> None:
    """Measure every quantiser on the vectors of a float model; `keep` gets each result as it is there."""
    with needing("the comparison needs {}", "pip install 'rbegir[tables]'"):
        import faiss
    faiss.omp_set_num_threads(max(1, cpu_count() // 3))  # other runs need the rest
    corpus = unit(vectors.corpus).cpu().numpy()
    left, right = (unit(bed.embed(network, side, texts)) for side, texts in bed.group_texts())
    learned = corpus[sample_rows(len(corpus), scale.quantiser_train, 0)]  # [train, n]

    def measure(quantiser: Quantiser) -> None:
        codec = _codec(learned, quantiser, bed.device)
        decoded, others = (  # [titles, n], [keywords of the sample groups, n]
            torch.from_numpy(codec.decode(vectors)).to(bed.device)
            for vectors in (corpus, right.cpu().numpy())
        )
        precisions = {quantiser.query: codec.query}
        if quantiser.query == "float":
            precisions[f"{FEW} bits"] = lambda queries: coarse(codec.query(queries))
        for precision, asked in precisions.items():
            queries = asked(vectors.queries)
            either = [bed.in_corpus(queries, decoded, exact=False, cosine=cosine) for cosine in (False, True)]
            best = max(range(2), key=lambda i: float(either[i]["recall@10"]["value"]))
            keep(
                {
                    "name": quantiser.name,
                    "bytes": codec.bytes,
                    "query": precision,
                    "score": ("inner product", "cosine")[best],
                    "titles": len(corpus),
                    **bed.on_groups(asked(left), others),
                    **either[best],
                }
            )

    slow = SLOW if scale.slow_quantisers else ()
    for quantiser in (*QUANTISERS, *(q for q in slow if not q.once)):
        measure(quantiser)
    for result in _by_searching(bed, unit(vectors.queries).cpu().numpy(), corpus, learned):
        keep(result)
    for quantiser in (q for q in slow if seed == 0 and q.once):
        measure(quantiser)


def coarse(queries: torch.Tensor) -> torch.Tensor:
    """Float queries as FEW bits per dimension can hold them: [count, n] → [count, n]

    A random rotation spreads what rounding loses over all dimensions; then every coordinate takes the nearest
    of eight even levels, at the scale that loses least of its query; then the rotation is undone.
    """
    rotation = rotated(queries.shape[1])
    levels = nearest((queries.cpu().numpy() @ rotation).astype(np.float32), FEW)
    return torch.from_numpy((levels @ rotation.T).astype(np.float32)).to(queries.device)


def rotated(width: int) -> Array:
    """A random orthogonal matrix, always the same one."""
    return np.linalg.qr(np.random.default_rng(0).standard_normal((width, width)))[0].astype("f4")


class _Faiss:
    """A quantiser of FAISS by the name of its factory."""

    def __init__(self, train: Array, factory: str) -> None:
        import faiss

        self._index = faiss.index_factory(train.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        self._index.train(train)
        self.bytes = int(self._index.sa_code_size())

    def decode(self, vectors: Array) -> Array:
        out = np.empty_like(vectors)
        for start in range(0, len(vectors), 1 << 20):
            block = slice(start, start + (1 << 20))
            out[block] = self._index.sa_decode(self._index.sa_encode(vectors[block]))
        return out

    def query(self, queries: torch.Tensor) -> torch.Tensor:
        return queries


class _Rotated:
    """A random rotation, then each coordinate on its own: two bits at Lloyd's levels, or the sign alone.

    After a rotation all coordinates have about the same distribution, near a normal one; its best four levels
    are at ±0.4528 and ±1.5104 deviations, with a border at 0.9816.
    """

    INNER, OUTER, BORDER = 0.4528, 1.5104, 0.9816

    def __init__(self, train: Array, *, bits: int, query_sign: bool) -> None:
        width = train.shape[1]
        self._rotation = rotated(width)
        self._deviation = (train @ self._rotation).std(axis=0)  # [n]
        self._bits, self._query_sign = bits, query_sign
        self.bytes = width * bits // 8

    def decode(self, vectors: Array) -> Array:
        scaled = (vectors @ self._rotation) / self._deviation
        sign = np.where(scaled > 0, np.float32(1), np.float32(-1))
        level = np.where(np.abs(scaled) > self.BORDER, np.float32(self.OUTER), np.float32(self.INNER))
        values: Array = sign * self._deviation * (level if self._bits == 2 else np.float32(1))
        return values

    def query(self, queries: torch.Tensor) -> torch.Tensor:
        turned = queries @ torch.from_numpy(self._rotation).to(queries.device)
        return torch.where(turned > 0, 1.0, -1.0) if self._query_sign else turned


class _Ours:
    """Codes of `rbegir.Binarizer` with 128 dimensions of one bit; queries have eight bits per dimension."""

    bytes = 16

    def __init__(self, train: Array) -> None:
        self._binarizer = Binarizer(n=128, keyword_planes=1).fit(train)

    def decode(self, vectors: Array) -> Array:
        """The codes as numbers: [count, n] → [count, 128]"""
        return self._binarizer.encode_keywords(vectors).values().astype(np.float32)

    def query(self, queries: torch.Tensor) -> torch.Tensor:
        codes = self._binarizer.encode_queries(unit(queries).cpu().numpy()).values()
        return torch.from_numpy(codes.astype(np.float32)).to(queries.device)


class _Residual(_Faiss):
    """FAISS's residual quantiser, its codebooks learned by FAISS and its beam search done in torch."""

    def __init__(self, train: Array, factory: str, device: torch.device) -> None:
        super().__init__(train, factory)
        self.beam = Residual.of_faiss(self._index, device)

    def decode(self, vectors: Array) -> Array:
        return self.beam.decode(vectors)


def _codec(train: Array, quantiser: Quantiser, device: torch.device) -> _Faiss | _Rotated | _Ours:
    if quantiser.query == "8 bits":
        return _Ours(train)
    if quantiser.factory.startswith("RQ"):
        return _Residual(train, quantiser.factory, device)
    if quantiser.factory:
        return _Faiss(train, quantiser.factory)
    return _Rotated(train, bits=2 if "2-bit" in quantiser.name else 1, query_sign=quantiser.query == "1 bit")


def _by_searching(bed: Testbed, queries: Array, corpus: Array, learned: Array) -> Iterator[Json]:
    """Recall of a sample of queries through the scores of the libraries themselves."""
    chosen = sample_rows(len(queries), SAMPLE, 0)
    most = min(max(CUTOFFS), len(corpus))
    for name, peer in (("FAISS RaBitQ, 2 bit", rabitq), ("turbovec, 2 bit", turbovec)):
        outcome = peer(learned, corpus, corpus.shape[1] // 4, 0)
        assert outcome is not None
        yield _sampled(bed, name, outcome.bytes, chosen, outcome.find(queries[chosen], most))


def _sampled(
    bed: Testbed, name: str, size: float, chosen: npt.NDArray[np.int64], found: npt.NDArray[np.int64]
) -> Json:
    rank = torch.full((len(bed.target),), 1 << 40, dtype=torch.int64)
    row_of = {int(query): row for row, query in enumerate(chosen)}
    query, target = bed.query.tolist(), bed.target.tolist()
    asked = [i for i, number in enumerate(query) if number in row_of]
    for i in asked:
        at = np.flatnonzero(found[row_of[query[i]]] == target[i])
        if len(at):
            rank[i] = int(at[0])
    return {
        "name": name,
        "bytes": size,
        "query": "float",
        "score": "its own search",
        "titles": len(bed.data.corpus),
        "queries": len(chosen),
        **bed.recall(rank.to(bed.device), only=chosen),
    }
