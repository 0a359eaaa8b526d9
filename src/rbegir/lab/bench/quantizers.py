"""Quantisers: our own Binarizer and its peers, which turn vectors into a few bytes each.

Each peer takes a budget in bytes per vector and uses as much of it as it can. What it stores beside the codes
(norms, correction factors) is counted. A peer that cannot meet the budget reports its true size. Queries are
float32, which suits every peer best. A peer that decodes is scored by inner product (or its own estimate), L2
distance and cosine; the best of the three counts. Comments cite the peer's own documentation.

| name           | what                                                                                     |
|----------------|------------------------------------------------------------------------------------------|
| pq, opq        | FAISS product quantiser, 8 bits per part; after a learned rotation                       |
| rq             | FAISS residual quantiser, 8 bits per stage; on a GPU implemented in torch                |
|                | (`residual.py`). Also encoded with wider beams: rq_16, rq_32                             |
| prq            | FAISS residual quantisers of parts of the vector, 8 stages of 8 bits per part            |
| lsq            | FAISS local-search quantiser, 8 bits per stage; from 33 bytes on of parts, as prq        |
| rabitq         | FAISS RaBitQ after a random rotation, whole bits per dimension and its factors           |
| turbovec       | TurboQuant, calibrated on random rows; 2 or 4 bits per dimension and a norm              |
| scalar         | random rotation, Gaussian levels (Lloyd–Max), whole bits per dimension                   |
| sign_rescore   | sign bits to find 10 k candidates, a float16 copy to order them                          |

`np` in a FAISS factory string leaves out polysemous training, which changes no distance and takes eight times
as long as k-means.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.binarizer.learn import rotation
from rbegir.errors import RbegirError, needing
from rbegir.search.request import SearchRequest

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
BEAMS = (16, 32)  # encoding beams of the residual quantiser beside FAISS's default of 5
CALIBRATION_ROWS = 4096  # turbovec's documentation calls 1,024 enough
RESIDUAL_ROWS = 1 << 16  # training rows of the residual quantiser; FAISS's k-means uses no more
LOCAL_VALUES = 1 << 23  # numbers in the training rows of local search: 20,000 rows of 384 dimensions
PARTED = 32  # most bytes of a local-search quantiser of whole vectors; more take hours
LEVELS = {
    1: [0.7979],
    2: [0.4528, 1.5104],
    3: [0.2451, 0.7560, 1.3439, 2.1520],
    4: [0.1284, 0.3881, 0.6568, 0.9424, 1.2562, 1.6181, 2.0690, 2.7326],
}  # bits → positive levels of the best quantiser of a unit Gaussian with 2^bits levels


class Outcome(NamedTuple):
    """The codes that a method makes of the vectors, in a form that can be scored, and their cost."""

    code_bytes: float
    factor_bytes: float
    train_s: float
    encode_s: float
    setting: str
    decoded: Floats | None = None  # [count, n]: the score is q·decoded, plus the offset if there is one
    offsets: Floats | None = None  # [count]
    metric: str = "inner product"  # the name of this score
    ask: Callable[[Floats], Floats] = np.asarray  # queries as vectors and codes are compared: [Q, n]
    query: str = "float32"
    search: Callable[[Floats, int], Ids] | None = None  # for methods that score by themselves
    beam: int | None = None  # of an encoding search wider than the default
    wider: Iterable["Outcome"] = ()  # the same codebooks with wider beams, encoded one after the other

    @property
    def bytes(self) -> float:
        """All that is stored per vector."""
        return self.code_bytes + self.factor_bytes

    def scores(self) -> list["Outcome"]:
        """This outcome with each score that a user of the peer could choose."""
        if self.decoded is None or self.query != "float32":
            return [self]
        squares = np.einsum("ij,ij->i", self.decoded, self.decoded)
        unit = self.decoded / np.sqrt(np.maximum(squares, np.finfo(np.float32).tiny))[:, None]
        return [
            self,
            self._replace(metric="L2", offsets=-squares / 2),
            self._replace(metric="cosine", offsets=None, decoded=unit),
        ]

    def find(self, queries: Floats, k: int) -> Ids:
        """Rows of the best k by the score: [queries, k]."""
        if self.search is not None:
            return self.search(queries, k)
        assert self.decoded is not None
        return top(self.ask(queries), self.decoded, k, self.offsets)


# (training vectors, vectors, bytes, seed) → outcome; None: the method has no code of this size
Peer = Callable[[Floats, Floats, int, int], Outcome | None]


def import_faiss() -> Any:
    with needing("the peers need FAISS", "pip install 'rbegir[bench]'"):
        import faiss
    return faiss


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def _padded(vectors: Floats, multiple: int) -> Floats:
    return np.pad(vectors, ((0, 0), (0, -vectors.shape[1] % multiple)))


def faiss_codec(
    factory: str,
    train: Floats,
    vectors: Floats,
    padded_to: int,
    seed: int,
    rows: int | None = None,
    beams: tuple[int, ...] = (),
) -> Outcome:
    """A FAISS index as encoder and decoder, trained on at most `rows` rows; `beams`: further encodings.

    Factory strings: https://github.com/facebookresearch/faiss/wiki/The-index-factory. FAISS's k-means uses at
    most 256 rows per codeword. The rows are shuffled and centred.
    """
    dims = vectors.shape[1]
    centre = train.mean(axis=0)
    known, every = _padded(train - centre, padded_to), _padded(vectors - centre, padded_to)
    codec = import_faiss().index_factory(known.shape[1], factory)
    shuffled = known[np.random.default_rng(seed).permutation(len(known))[:rows]]
    _, train_s = _timed(lambda: codec.train(shuffled))
    if beams:
        codec.rq.use_beam_LUT = 1  # the same codes; with a beam of 32 three times as fast

    def encoded(beam: int | None) -> Outcome:
        if beam is not None:
            codec.rq.max_beam_size = beam
        codes, encode_s = _timed(lambda: codec.sa_encode(every))
        decoded = codec.sa_decode(codes)[:, :dims] + centre
        setting = factory if beam is None else f"{factory}, encoding beam {beam}"
        return Outcome(codec.sa_code_size(), 0, train_s, encode_s, setting, decoded, beam=beam)

    return encoded(None)._replace(wider=map(encoded, beams))


def _device() -> str:
    with needing("this benchmark needs torch", "pip install 'rbegir[bench]'"):
        import torch
    return "cuda" if torch.cuda.is_available() else "cpu"


# https://github.com/facebookresearch/faiss/wiki/Faiss-indexes: PQ of dimensions that divide by the number of
# parts (zeros are added), 8 bits each, which beats 4 bits at equal bytes.
def pq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    return None if size > vectors.shape[1] else faiss_codec(f"PQ{size}x8np", train, vectors, size, seed)


# https://github.com/facebookresearch/faiss/wiki/The-index-factory: OPQ to a multiple of the number of parts.
def opq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    if size > dims:
        return None
    wide = -(-dims // size) * size
    return faiss_codec(f"OPQ{size}_{wide},PQ{size}x8np", train, vectors, 1, seed)


def _parts(dims: int, size: int) -> str | None:
    """The FAISS factory string for parts of at most 8 stages; None if no number of parts fits."""
    fit = [p for p in range(1, size + 1) if size % p == 0 and dims % p == 0 and size // p <= 8]
    return f"{fit[0]}x{size // fit[0]}x8" if fit else None


# https://github.com/facebookresearch/faiss/wiki/Additive-quantizers: the beam size trades encoding time for
# accuracy, and encoding may use a wider one than training.
def rq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    if _device() == "cuda":
        return residual_in_torch(train, vectors, size, seed, "cuda")
    return faiss_codec(f"RQ{size}x8", train, vectors, 1, seed, RESIDUAL_ROWS, BEAMS)


def residual_in_torch(train: Floats, vectors: Floats, size: int, seed: int, device: str) -> Outcome:
    from rbegir.lab.bench.residual import Residual

    centre = train.mean(axis=0)
    known = (train - centre)[np.random.default_rng(seed).permutation(len(train))[:RESIDUAL_ROWS]]
    codec, train_s = _timed(lambda: Residual.learned(known, size, device, seed))

    def encoded(beam: int | None) -> Outcome:
        codec.beam = beam or codec.beam
        decoded, encode_s = _timed(lambda: codec.decode(vectors - centre))
        setting = f"RQ{size}x8 as FAISS's, in torch" + ("" if beam is None else f", encoding beam {beam}")
        return Outcome(size, 0, train_s, encode_s, setting, decoded + centre, beam=beam)

    return encoded(None)._replace(wider=map(encoded, BEAMS))


# https://github.com/facebookresearch/faiss/wiki/Additive-quantizers: a product of additive quantisers (PRQ,
# PLSQ) for long codes, which take too long to learn and encode as one.
def prq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    parts = _parts(vectors.shape[1], size)
    return faiss_codec(f"PRQ{parts}", train, vectors, 1, seed, RESIDUAL_ROWS) if parts else None


def lsq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    rows = LOCAL_VALUES // dims
    if size <= PARTED:
        return faiss_codec(f"LSQ{size}x8", train, vectors, 1, seed, rows)
    parts = _parts(dims, size)
    return faiss_codec(f"PLSQ{parts}", train, vectors, 1, seed, rows) if parts else None


def _bits(size: int, dims: int) -> int:
    return round(8 * size / (-(-dims // 64) * 64))


# IndexRaBitQ.h and .cpp: `train` finds the mean, and `add` subtracts it from every vector before choosing its
# bits, so the vectors need no centring here; the random rotation is the caller's. `qb` is the number of bits
# of a query, and 0 keeps it float. With several bits per dimension, `qb` only serves a first bound, so that
# the default of 4 has the same recall and is faster. IndexRaBitQFastScan trades recall for speed by quantised
# lookup tables. It corrects every distance by the factors of its vector, outside the SIMD loop
# (facebookresearch/faiss, pull request 4595), which is why it scans more slowly than PQ.
def rabitq(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    bits = _bits(size, dims)
    if not 1 <= bits <= 8:
        return None
    faiss = import_faiss()
    turn = rotation(dims, seed)
    index = faiss.IndexRaBitQ(dims, faiss.METRIC_INNER_PRODUCT, bits)
    index.qb = 0
    _, train_s = _timed(lambda: index.train(train @ turn))
    _, encode_s = _timed(lambda: index.add(vectors @ turn))
    plain = -(-dims * bits // 8)
    decoded, offsets = _rabitq_scores(index, bits)
    return Outcome(
        plain,
        index.code_size - plain,
        train_s,
        encode_s,
        f"{bits} bits, rotated",
        decoded @ turn.T,
        offsets,
        "its own estimate",
    )


def _rabitq_scores(index: Any, bits: int) -> tuple[Floats, Floats]:
    """Vectors and offsets such that RaBitQ's estimate is exactly q·decoded + offset.

    RaBitQ's own search with float queries takes seconds per query over a million vectors; a matrix product
    does not. A code is a plane of signs, the factors of one bit, further bits of all dimensions, f_add and
    f_rescale. The estimate for a query of zeros is the offset. This layout is not part of FAISS's interface,
    so some scores are compared with its own search each time.
    """
    faiss = import_faiss()
    dims, count = index.d, index.ntotal
    codes = faiss.vector_to_array(index.codes).reshape(count, -1)
    if bits == 1:
        decoded: Floats = index.sa_decode(codes)
    else:
        more = bits - 1
        behind = index.code_size - 8 - -(-dims * more // 8)  # where the further bits begin
        levels = _unpacked(codes[:, : -(-dims // 8)], dims, 1) * 2.0**more
        levels += _unpacked(codes[:, behind:-8], dims, more) - (2.0**more - 0.5)
        scale = codes[:, -4:].copy().view("<f4")  # [count, 1]
        decoded = (levels * scale).astype(np.float32) + faiss.vector_to_array(index.center)
    score, row = index.search(np.zeros((1, dims), np.float32), count)
    offsets = np.empty(count, np.float32)
    offsets[row[0]] = score[0]
    probes = decoded[:: max(1, count // 4)][:4]
    found, at = index.search(probes, min(20, count))
    estimate = np.einsum("qd,qkd->qk", probes, decoded[at]) + offsets[at]
    if not np.allclose(estimate, found, rtol=1e-4, atol=1e-5):
        raise RbegirError("this version of FAISS stores RaBitQ codes in another layout")
    return decoded, offsets


def _unpacked(packed: npt.NDArray[np.uint8], dims: int, bits: int) -> Floats:
    """Numbers of `bits` bits each, lowest bit first: [count, bytes] → [count, dims]."""
    each = np.unpackbits(packed, axis=1, count=dims * bits, bitorder="little").reshape(-1, dims, bits)
    return each.astype(np.float32) @ (1 << np.arange(bits)).astype(np.float32)


# https://github.com/RyanCodrai/turbovec: TurboQuantIndex.calibrate asks for "a uniform random, representative
# draw" of the vectors before they are added. It shifts and scales each coordinate, so they need no centring.
def turbovec(train: Floats, vectors: Floats, size: int, seed: int) -> Outcome | None:
    dims = vectors.shape[1]
    bits = _bits(size, dims)
    if bits not in (2, 4):
        return None
    with needing("the peers need turbovec", "pip install 'rbegir[bench]'"):
        from turbovec import TurboQuantIndex
    known, every = _padded(train, 8), _padded(vectors, 8)
    chosen = np.random.default_rng(seed).permutation(len(known))[:CALIBRATION_ROWS]
    index = TurboQuantIndex(dim=known.shape[1], bit_width=bits)
    _, train_s = _timed(lambda: index.calibrate(known[chosen]))
    _, encode_s = _timed(lambda: index.add(every))

    def search(queries: Floats, k: int) -> Ids:
        found: Ids = np.asarray(index.search(_padded(queries, 8), k)[1], np.int64)
        return found

    setting = f"{bits} bits, calibrated on random rows"
    size_of_codes = known.shape[1] * bits / 8
    return Outcome(size_of_codes, 4, train_s, encode_s, setting, metric="its own search", search=search)


# Levels: Max, Quantizing for minimum distortion (1960). A rotation makes every coordinate nearly Gaussian.
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
    return Outcome(dims * bits / 8, 0, train_s, encode_s, f"{bits} bits, rotated", decoded)


# https://sbert.net/examples/sentence_transformer/applications/embedding-quantization: binary search with
# rescoring of more candidates than are wanted.
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

    setting = "1 bit, then a float16 copy"
    return Outcome(dims / 8, 2 * dims, 0.0, encode_s, setting, metric="cosine", search=search)


def binarized(train: Floats, vectors: Floats, seed: int, *, rerank: bool = False, **options: Any) -> Outcome:
    """Codes of `rbegir.Binarizer`: our own method, in the form of its peers. `rerank` is that of a search."""
    binarizer = Binarizer(seed=seed, **options)
    _, train_s = _timed(lambda: binarizer.fit(train))
    codes, encode_s = _timed(lambda: binarizer.encode_keywords(vectors))
    values = codes.values().astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)

    def ask(queries: Floats) -> Floats:
        return binarizer.encode_queries(queries).values().astype(np.float32)

    def search(queries: Floats, k: int) -> Ids:
        rough = top(ask(queries), values, SearchRequest(k).vector_pool)  # [Q, candidates]
        of = np.repeat(np.arange(len(rough)), rough.shape[1])
        score = binarizer.decoded_scores(queries, codes[rough.ravel()], of).reshape(rough.shape)
        return np.take_along_axis(rough, np.argsort(-score, axis=1, kind="stable")[:, :k], axis=1)

    query = f"{binarizer.query_planes}-bit integers"
    n, planes = binarizer.n, binarizer.keyword_planes
    setting = f"n = {n}, {planes} planes"
    if rerank:
        query, setting = f"{query}, then float32", f"{setting}, reranked"
        return Outcome(
            n * planes // 8, 0, train_s, encode_s, setting, metric="cosine", query=query, search=search
        )
    return Outcome(n * planes // 8, 0, train_s, encode_s, setting, values, None, "cosine", ask, query)


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
    device = _device()
    import torch

    stored = torch.from_numpy(np.ascontiguousarray(vectors)).to(device)
    found = []
    for at in range(0, len(queries), step):
        scores = torch.from_numpy(np.ascontiguousarray(queries[at : at + step])).to(device) @ stored.T
        if offsets is not None:
            scores += torch.from_numpy(offsets).to(device)
        found.append(scores.topk(k, dim=1).indices.cpu().numpy())
    return np.concatenate(found)
