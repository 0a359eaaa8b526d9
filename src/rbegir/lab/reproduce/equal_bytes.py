"""How the float model's vectors fare when other quantisers store them in about as many bytes as rbe*.

Every quantiser gets the unit vectors of m_1's titles and may train on them. It is searched with the float
query, as its users do, and with a query of three bits per dimension, as rbe* is. Bytes are all that is stored
per title: codes and, where a method needs them to score, its factors.

Most quantisers score by an inner product with a decoded vector. Their vectors are decoded once and ranked
exactly over all titles, by inner product and by cosine, and the better of the two is quoted. The others
(RaBitQ with more than one bit, turbovec) are measured with their own search, on a sample of the queries.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from rbegir.base.devices import cpu_count
from rbegir.encode.binarizer.learn import nearest, rotation
from rbegir.encode.clsm.presets import Side
from rbegir.encode.clsm.twotower import TwoTower, unit
from rbegir.evaluate.groups import sample_groups
from rbegir.evaluate.retrieval import CUTOFFS
from rbegir.lab.bench.quantizers import (
    Floats,
    Ids,
    Outcome,
    Peer,
    binarized,
    faiss_codec,
    import_faiss,
    opq,
    pq,
    rabitq,
    rq,
    scalar,
    turbovec,
)
from rbegir.lab.figures import Json
from rbegir.lab.reproduce.dataset import sample_rows
from rbegir.lab.reproduce.rows import Scale
from rbegir.lab.reproduce.testbed import EmbeddingScorer, Testbed, Vectors, recall_figures

SAMPLE = 1_000  # queries of a library's own search
FEW = 3  # bits per dimension of the coarse query: those of rbe*


class Quantiser(NamedTuple):
    """A way to store a vector in about 16 bytes."""

    name: str
    peer: Peer
    size: int = 16  # bytes that the peer may use
    query: str = "float"  # precision of the query
    sampled: bool = False  # scored by its own search, for a sample of the queries


def one_bit_rabitq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome:
    """RaBitQ of one bit, whose estimate is an inner product with a decoded vector."""
    return faiss_codec(f"RR{vectors.shape[1]},RaBitQ", train, vectors, 1, seed)


def both_signs(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome:
    """One bit per dimension after a rotation, of the vectors and of the queries."""
    turn = rotation(vectors.shape[1], seed)
    outcome = scalar(train, vectors, size, seed)
    assert outcome is not None
    return outcome._replace(ask=lambda queries: np.where(queries @ turn > 0, 1, -1).astype("f4") @ turn.T)


def wide_codes(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome:
    """Codes of `rbegir.Binarizer` with one bit in each of 8 · size dimensions."""
    return binarized(train, vectors, seed, n=8 * size, keyword_planes=1)


QUANTISERS = (
    Quantiser("FAISS PQ16x8", pq),
    Quantiser("FAISS RaBitQ, 1 bit", one_bit_rabitq),
    Quantiser("rotation and 2-bit scalar", scalar),
    Quantiser("sign of a rotation", both_signs, 8, "1 bit"),
    Quantiser("sign of a rotation, rescored with the float query", scalar, 8),
    Quantiser("FAISS RaBitQ, 2 bit", rabitq, sampled=True),
    Quantiser("turbovec, 2 bit", turbovec, sampled=True),
)
SLOW = (Quantiser("FAISS RQ16x8", rq),)
SLOWEST = (  # for the first seed alone: a minute or more on many cores
    Quantiser("rbegir.Binarizer, 128 × 1", wide_codes, query="8 bits"),
    Quantiser("FAISS OPQ16,PQ16x8", opq),
)


def compare(bed: Testbed, vectors: Vectors, network: TwoTower, scale: Scale, seed: int) -> list[Json]:
    """The figures of every quantiser on the vectors of a float model."""
    import_faiss().omp_set_num_threads(max(1, cpu_count() // 3))  # other runs need the rest
    queries, corpus = (unit(side).cpu().numpy() for side in (vectors.queries, vectors.corpus))
    groups = sample_groups(bed.data.test)
    sides: tuple[tuple[Side, pa.Array], ...] = ("query", groups.queries), ("keyword", groups.keywords)
    left, right = (unit(torch.from_numpy(bed.embed(network, side, texts))).numpy() for side, texts in sides)
    learned = corpus[sample_rows(len(corpus), scale.quantiser_train, 0)]  # [train, n]
    every = np.concatenate([corpus, right])
    wanted = QUANTISERS + (SLOW if scale.slow_quantisers else ())
    wanted += SLOWEST if scale.slow_quantisers and seed == 0 else ()
    figures: list[Json] = []
    for quantiser in wanted:
        outcome = quantiser.peer(learned, corpus if quantiser.sampled else every, quantiser.size, 0)
        assert outcome is not None, f"{quantiser.name} has no code of {quantiser.size} bytes"
        about = {"name": quantiser.name, "bytes": outcome.bytes, "titles": len(corpus)}
        if quantiser.sampled:
            chosen = sample_rows(len(queries), SAMPLE, 0)
            found = outcome.find(queries[chosen], min(max(CUTOFFS), len(corpus)))
            score = {"query": quantiser.query, "score": "its own search"}
            figures.append(about | score | sampled_recall(bed, chosen, found))
            continue
        assert outcome.decoded is not None
        titles, others = np.split(outcome.decoded, [len(corpus)])
        stored = torch.from_numpy(titles).to(bed.device)
        precisions = {quantiser.query: (queries, left)}
        if quantiser.query == "float":
            precisions[f"{FEW} bits"] = coarse(queries), coarse(left)
        for precision, (asked, pairs) in precisions.items():
            query = torch.from_numpy(outcome.ask(asked)).to(bed.device)
            either = {
                score: bed.in_corpus(query, stored, exact=False, cosine=score == "cosine")
                for score in ("inner product", "cosine")
            }
            best = max(either, key=lambda score: float(either[score]["recall@10"]["value"]))
            embedded = {"query": outcome.ask(pairs), "keyword": others}
            on_pairs = bed.on_pairs(EmbeddingScorer(lambda side, _: embedded[side]))  # noqa: B023
            figures.append({**about, "query": precision, "score": best, **on_pairs, **either[best]})
    return figures


def coarse(queries: Floats) -> Floats:
    """Float queries as FEW bits per dimension can hold them: [count, n] → [count, n]

    A random rotation spreads the rounding error over all dimensions. Then every coordinate takes the nearest
    of eight even levels, at the scale that loses least of its query, and the rotation is undone.
    """
    turn = rotation(queries.shape[1], 0)
    return (nearest((queries @ turn).astype(np.float32), FEW) @ turn.T).astype(np.float32)


def sampled_recall(bed: Testbed, chosen: npt.NDArray[np.int64], found: Ids) -> Json:
    """Recall of the chosen queries, from the titles [chosen, k] that a search found for them."""
    positions = np.full((len(bed.queries), found.shape[1]), -1, np.int64)
    positions[chosen] = found
    recall = {k: each[chosen] for k, each in bed.targets.recall(positions, CUTOFFS).items()}
    return {"queries": len(chosen), **recall_figures(recall)}
