"""The peers of the accuracy benchmark: what else turns vectors into a few bytes.

Each takes a budget in bytes per vector and uses all of it as it can; what it stores beside the codes (norms,
correction factors) is counted. Where a peer cannot meet the budget its true size is reported, never less.
Queries are float32 for all peers, which is the best they can do.

| name           | what                                                                                     |
|----------------|------------------------------------------------------------------------------------------|
| pq, opq        | FAISS product quantiser, 8 bits per part; after a learned rotation                       |
| rq             | FAISS residual quantiser, 8 bits per stage; on a GPU, and from 33 bytes on only there,   |
|                | implemented in torch (`residual.py`)                                                     |
| prq            | FAISS residual quantisers of parts of the vector, 8 stages of 8 bits per part            |
| lsq            | FAISS local-search quantiser, 8 bits per stage; from 33 bytes on of parts, as prq        |
| rabitq         | FAISS RaBitQ after a random rotation, whole bits per dimension and its factors           |
| turbovec       | TurboQuant, calibrated on a sample; 2 or 4 bits per dimension and a norm                 |
| scalar         | random rotation, Gaussian levels (Lloyd–Max), whole bits per dimension                   |
| sign_rescore   | sign bits to find 10 k candidates, a float16 copy to order them                          |

`np` in the names of FAISS's factory leaves out the ordering of codewords for polysemous search. It changes no
distance, and takes eight times as long as the k-means do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.encode.binarizer.learn import rotation
from rbegir.errors import needing

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
RESIDUAL_ROWS = 1 << 16  # that the residual quantiser learns from: FAISS's k-means takes no more
LOCAL_VALUES = 1 << 23  # of the rows that local search learns from: 20,000 of 384 dimensions
PARTED = 32  # bytes of additive quantisers of whole vectors on a CPU, at most: more take hours
SLOW = 250  # queries of a search that takes seconds for each
LEVELS = {
    1: [0.7979],
    2: [0.4528, 1.5104],
    3: [0.2451, 0.7560, 1.3439, 2.1520],
    4: [0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326],
}  # of the best quantiser of a unit Gaussian with 2^bits levels, the positive ones


class Outcome(NamedTuple):
    """What a peer made of the vectors: something to score, and what it cost."""

    decoded: (
        Floats | None
    )  # [count, dims], scored by inner product or distance, whichever is better for the peer
    search: Callable[[Floats, int], Ids] | None  # for peers that score by themselves
    code_bytes: float
    factor_bytes: float
    train_s: float
    encode_s: float
    setting: str
    queries: int | None = None  # for a slow search: only so many are asked
    offsets: Floats | None = None  # [count]: the score is the inner product with what is decoded, plus these

    @property
    def bytes(self) -> float:
        """All that is stored for a vector."""
        return self.code_bytes + self.factor_bytes

    def find(self, queries: Floats, k: int) -> Ids:
        """Rows of the best k by the peer's own score: [queries, k]."""
        if self.search is not None:
            return self.search(queries, k)
        assert self.decoded is not None
        return top(queries, self.decoded, k, self.offsets)


Peer = Callable[
    [Floats, Floats, int, int], "Outcome | None"
]  # train, vectors, bytes, seed; None: not at this size


def _faiss() -> Any:
    with needing("the peers need FAISS", "pip install 'rbegir[bench]'"):
        import faiss
    return faiss


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def _padded(vectors: Floats, multiple: int) -> Floats:
    return np.pad(vectors, ((0, 0), (0, -vectors.shape[1] % multiple)))


def _codec(
    factory: str, train: Floats, vectors: Floats, padded_to: int, seed: int, rows: int | None = None
) -> Outcome:
    """A FAISS index as encoder and decoder, learned from at most so many rows."""
    dims = vectors.shape[1]
    centre = train.mean(axis=0)
    known, every = _padded(train - centre, padded_to), _padded(vectors - centre, padded_to)
    codec = _faiss().index_factory(known.shape[1], factory)
    shuffled = known[np.random.default_rng(seed).permutation(len(known))[:rows]]
    _, train_s = _timed(lambda: codec.train(shuffled))
    codes, encode_s = _timed(lambda: codec.sa_encode(every))
    decoded = codec.sa_decode(codes)[:, :dims] + centre
    return Outcome(decoded, None, codec.sa_code_size(), 0, train_s, encode_s, factory)


def _gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


def pq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    return None if size > vectors.shape[1] else _codec(f"PQ{size}x8np", train, vectors, size, seed)


def opq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    if size > dims:
        return None
    wide = -(-dims // size) * size
    return _codec(f"OPQ{size}_{wide},PQ{size}x8np", train, vectors, 1, seed)


def _parts(dims: int, size: int) -> str | None:
    """How FAISS's factory names parts of 8 stages or fewer."""
    fit = [p for p in range(1, size + 1) if size % p == 0 and dims % p == 0 and size // p <= 8]
    return f"{fit[0]}x{size // fit[0]}x8" if fit else None


def rq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    if _gpu():
        return residual_in_torch(train, vectors, size, seed, "cuda")
    return None if size > PARTED else _codec(f"RQ{size}x8", train, vectors, 1, seed, RESIDUAL_ROWS)


def residual_in_torch(train: Floats, vectors: Floats, size: int, seed: int, device: str) -> Outcome:
    from rbegir.lab.bench.residual import Residual

    centre = train.mean(axis=0)
    known = (train - centre)[np.random.default_rng(seed).permutation(len(train))[:RESIDUAL_ROWS]]
    codec, train_s = _timed(lambda: Residual.learned(known, size, device, seed))
    decoded, encode_s = _timed(lambda: codec.decode(vectors - centre))
    return Outcome(decoded + centre, None, size, 0, train_s, encode_s, f"RQ{size}x8 as FAISS's, in torch")


def prq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    parts = _parts(vectors.shape[1], size)
    return _codec(f"PRQ{parts}", train, vectors, 1, seed, RESIDUAL_ROWS) if parts else None


def lsq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    rows = LOCAL_VALUES // dims
    if size <= PARTED:
        return _codec(f"LSQ{size}x8", train, vectors, 1, seed, rows)
    parts = _parts(dims, size)
    return _codec(f"PLSQ{parts}", train, vectors, 1, seed, rows) if parts else None


def _bits(size: int, dims: int) -> int:
    return round(8 * size / (-(-dims // 64) * 64))


def rabitq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    bits = _bits(size, dims)
    if not 1 <= bits <= 8:
        return None
    faiss = _faiss()
    turn = rotation(dims, seed)
    index = faiss.IndexRaBitQ(dims, faiss.METRIC_INNER_PRODUCT, bits)
    index.qb = 0  # queries stay float
    _, train_s = _timed(lambda: index.train(train @ turn))
    _, encode_s = _timed(lambda: index.add(vectors @ turn))
    plain = -(-dims * bits // 8)
    outcome = Outcome(
        None, None, plain, index.code_size - plain, train_s, encode_s, f"{bits} bits, rotated", SLOW
    )
    if bits == 2 and dims % 8 == 0 and (scores := _rabitq_scores(index)):
        decoded, offsets = scores
        return outcome._replace(decoded=decoded @ turn.T, offsets=offsets, queries=None)

    def search(queries: Floats, k: int) -> Ids:
        found: Ids = index.search(queries @ turn, k)[1]
        return found

    return outcome._replace(search=search)


def _rabitq_scores(index: Any) -> tuple[Floats, Floats] | None:
    """What the inner products that RaBitQ of 2 bits estimates are made of: q·decoded + offset, exactly.

    Its own search takes seconds per query over a million vectors, a matrix product does not. A code is a
    plane of signs, the factors of one bit, a plane of second bits, and f_add, f_rescale of both; the estimate
    for a query of zeros is the offset. That is FAISS's layout in memory, not its interface, so it is compared
    with its own search each time; None if the layout has changed.
    """
    faiss = _faiss()
    dims, count = index.d, index.ntotal
    codes = faiss.vector_to_array(index.codes).reshape(count, -1)
    behind = index.code_size - dims // 8 - 8  # where the second plane begins
    signs, seconds = (
        np.unpackbits(codes[:, at : at + dims // 8], axis=1, bitorder="little").astype(np.float32)
        for at in (0, behind)
    )
    scale = codes[:, -4:].copy().view("<f4")  # [count, 1] of half a level
    decoded: Floats = (4 * signs + 2 * seconds - 3) * (scale / 2) + faiss.vector_to_array(index.center)
    score, row = index.search(np.zeros((1, dims), np.float32), count)
    offsets = np.empty(count, np.float32)
    offsets[row[0]] = score[0]
    probes = decoded[:: max(1, count // 4)][:4]
    found, at = index.search(probes, min(20, count))
    estimate = np.einsum("qd,qkd->qk", probes, decoded[at]) + offsets[at]
    return (decoded, offsets) if np.allclose(estimate, found, rtol=1e-4, atol=1e-5) else None


def turbovec(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    bits = _bits(size, dims)
    if bits not in (2, 4):
        return None
    with needing("the peers need turbovec", "pip install 'rbegir[bench]'"):
        from turbovec import TurboQuantIndex
    known, every = _padded(train, 8), _padded(vectors, 8)
    index = TurboQuantIndex(dim=known.shape[1], bit_width=bits)
    _, train_s = _timed(lambda: index.calibrate(known[:4096].copy()))
    _, encode_s = _timed(lambda: index.add(every))

    def search(queries: Floats, k: int) -> Ids:
        found: Ids = np.asarray(index.search(_padded(queries, 8), k)[1], np.int64)
        return found

    return Outcome(None, search, known.shape[1] * bits / 8, 4, train_s, encode_s, f"{bits} bits, calibrated")


def scalar(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    bits = _bits(size, dims)
    if bits not in LEVELS:
        return None
    began = time.perf_counter()
    positive = np.asarray(LEVELS[bits], np.float32)
    levels = np.concatenate([-positive[::-1], positive])
    edges = (levels[1:] + levels[:-1]) / 2
    turn = rotation(dims, seed)
    centre = train.mean(axis=0)
    spread = ((train - centre) @ turn).std(axis=0)
    train_s = time.perf_counter() - began
    codes, encode_s = _timed(
        lambda: np.searchsorted(edges, (vectors - centre) @ turn / spread).astype(np.uint8)
    )
    decoded = (levels[codes] * spread) @ turn.T + centre
    return Outcome(decoded, None, dims * bits / 8, 0, train_s, encode_s, f"{bits} bits, rotated")


def sign_rescore(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    if _bits(size, dims) != 1:
        return None
    centre = train.mean(axis=0)
    turn = rotation(dims, seed)
    signs, encode_s = _timed(lambda: np.where((vectors - centre) @ turn >= 0, np.float32(1), np.float32(-1)))
    copy = vectors.astype(np.float16)

    def search(queries: Floats, k: int) -> Ids:
        rough = top(queries @ turn, signs, 10 * k)  # [queries, 10 k]
        exact = np.einsum("qkd,qd->qk", copy[rough].astype(np.float32), queries)
        return np.take_along_axis(rough, np.argsort(-exact, axis=1)[:, :k], axis=1)

    return Outcome(None, search, dims / 8, 2 * dims, 0.0, encode_s, "1 bit, then a float16 copy")


PEERS: dict[str, Peer] = {
    "opq": opq,
    "pq": pq,
    "rabitq": rabitq,
    "turbovec": turbovec,
    "scalar": scalar,
    "rq": rq,
    "prq": prq,
    "sign_rescore": sign_rescore,
    "lsq": lsq,
}


BLOCK = 1 << 28  # scores in memory at a time


def top(queries: Floats, vectors: Floats, k: int, offsets: Floats | None = None) -> Ids:
    """Rows of the largest q·v + offset, best first: [queries, k] for queries [Q, d], vectors [N, d]."""
    k = min(k, len(vectors))
    step = max(1, BLOCK // max(len(vectors), 1))
    parts = [queries[at : at + step] for at in range(0, len(queries), step)]
    search = _top_in_torch if _gpu() else _top_in_numpy
    return np.concatenate(search(parts, vectors, k, offsets))


def _top_in_numpy(parts: list[Floats], vectors: Floats, k: int, offsets: Floats | None) -> list[Ids]:
    found = []
    for part in parts:
        scores = part @ vectors.T
        if offsets is not None:
            scores += offsets
        best = np.argpartition(scores, -k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
        found.append(np.take_along_axis(best, order, 1).astype(np.int64))
    return found


def _top_in_torch(parts: list[Floats], vectors: Floats, k: int, offsets: Floats | None) -> list[Ids]:
    import torch

    stored = torch.from_numpy(np.ascontiguousarray(vectors)).cuda()
    added = None if offsets is None else torch.from_numpy(offsets).cuda()
    found = []
    for part in parts:
        scores = torch.from_numpy(np.ascontiguousarray(part)).cuda() @ stored.T
        if added is not None:
            scores += added
        found.append(scores.topk(k, dim=1).indices.cpu().numpy())
    return found
