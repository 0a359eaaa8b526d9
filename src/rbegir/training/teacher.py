"""A teacher: a sentence-transformers model whose vectors the float guide learns beside the pairs.

    L = L(codes) + L(guide) + weight · (Σ w_q D(q) + mean D(k))        D(t) = 1 − cos(guide(t), teacher(t))

A teacher has read far more than the pairs and knows, for instance, that a film is a movie. The guide shares
its features with the codes, so both learn from it. Its vectors are cut to the dimensions of the guide along
their principal directions. Much more weight than the default makes the codes worse (dev/LOG.md, H20, H21).
"""

from os import PathLike

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base.progress import Report
from rbegir.encode.sentence.encoder import SentenceEncoder

BLOCK = 4096  # texts encoded at a time
SAMPLE = 20_000  # texts that the principal directions are found from, at most
BATCH = 256  # of the teacher

Halves = npt.NDArray[np.float16]


class Teacher:
    """Unit vectors of texts, with at most `dims` dimensions."""

    def __init__(
        self,
        model: str | PathLike[str],
        dims: int,
        *,
        device: str = "cpu",
        report: Report = lambda *progress: None,
    ) -> None:
        self._encoder = SentenceEncoder.load(model, device=device, batch_size=BATCH)
        self._dims, self._report = dims, report
        self._basis: npt.NDArray[np.float32] | None = None  # [dimensions of the model, dims]

    def __call__(self, texts: pa.Array, task: str) -> Halves:
        """The vectors of texts; `task` is query or document. The directions are those of the first call."""
        if self._basis is None:
            some = np.linspace(0, len(texts) - 1, min(SAMPLE, len(texts)), dtype=np.int64)
            vectors = self._encoder.vectors(texts.take(pa.array(some)).to_pylist(), task)
            _, directions = np.linalg.eigh(vectors.T @ vectors)  # ascending eigenvalues
            self._basis = directions[:, ::-1][:, : self._dims].astype(np.float32)
        out = np.empty((len(texts), self._basis.shape[1]), np.float16)
        for low in range(0, len(texts), BLOCK):
            vectors = self._encoder.vectors(texts.slice(low, BLOCK).to_pylist(), task) @ self._basis
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            out[low : low + BLOCK] = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
            self._report(min(low + BLOCK, len(texts)), len(texts), "asking the teacher")
        return out
