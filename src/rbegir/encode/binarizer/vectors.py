"""Float vectors as they come in: checked, brought to the space of their metric, a block of rows at a time.

Arrays may be memory-mapped and larger than RAM: only a block, or a sample of rows, is read at a time.

*Metrics.* Codes estimate the inner product of a keyword z and a query y of unit length. What these are
depends on the metric (`Space`). s is the root mean square length of the vectors, m their mean:

| metric | keyword z                                    | query y, brought to unit length         |
|--------|----------------------------------------------|-----------------------------------------|
| cosine | x / ‖x‖                                      | q                                       |
| ip     | x / s                                        | q                                       |
| l2     | (c, −‖c‖²/2) / (1 + κ‖c‖²), c = (x − m) / s  | (d, 1 − κ‖d‖²), d = (q − m) / s         |

The first two order keywords as the metric does. For l2, y·z before y is brought to unit length is
‖d‖²/2 − ‖c − d‖² / 2(1 + κ‖c‖²). With κ = 0 that is the order of the distances; but where lengths differ
much, the last number of z, which grows with their squares, takes all the bits. With κ > 0 all z lie on a
sphere; the order is then not quite that of the distances, and the codes are better: with κ = ¼ recall@10
was .62 instead of .54 on patches of unequal contrast, but .79 instead of .82 on descriptors of nearly equal
length. Fitting tries both. A row of zeros has no direction and stays zero.

*One code per vector.* The order of additions in a BLAS product depends on the shape of the batch, the number
of threads and the CPU. `product`, `dots` and `lengths` sum in one fixed order everywhere
(`_native/float_kernels.hpp`). Between a vector and its code stand only they and NumPy's operations on single
elements, never its sums (`@`, `einsum`, `mean`).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rbegir._native import _core, choose_isa
from rbegir.base.devices import cpu_count
from rbegir.errors import InputError

BLOCK_VALUES = 1 << 22  # values in a block of rows: 16 MB of float32, near a cache

Floats = npt.NDArray[np.float32]
BFLOAT16 = "bfloat16"
METRICS = ("cosine", "ip", "l2")
SHORTEST, LONGEST = 1e-15, 1e15  # vectors of ip and l2, so that products of their squares are float32 numbers


def as_rows(X: Any, name: str = "X", dims: int | None = None) -> Any:
    """X as a two-dimensional array of numbers with `dims` columns, copied only if it is not one."""
    if hasattr(X, "detach"):  # a torch tensor; NumPy has no bfloat16
        X = X.detach().cpu()
        X = (X.float() if BFLOAT16 in str(X.dtype) else X).numpy()
    if hasattr(X, "toarray"):
        raise InputError(f"{name} is sparse, dense vectors are needed", hint=f"pass {name}.toarray()")
    try:
        rows = X if isinstance(X, np.ndarray) else np.asarray(X)
    except ValueError as error:
        raise InputError(f"{name} is not an array [count, dims]: {error}") from error
    if rows.dtype == object:
        try:
            rows = rows.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must hold numbers, got objects: {error}") from error
    if rows.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} is {rows.dtype}")
    if rows.dtype == np.uint16:  # as bfloat16 files are often read
        raise InputError(
            f"{name} is uint16, which may be bfloat16 in disguise",
            hint="for bfloat16 pass (x.astype('u4') << 16).view('f4'), for integers x.astype('i4')",
        )
    if rows.dtype.kind not in "fiub" and rows.dtype.name != BFLOAT16:
        raise InputError(f"{name} must hold numbers, got {rows.dtype}")
    if rows.ndim != 2:
        raise InputError(
            f"Expected 2D array [count, dims] for {name}, got {rows.ndim}D array instead. "
            "Reshape your data: a single vector is x.reshape(1, -1)"
        )
    if rows.shape[1] == 0:
        raise InputError(
            f"Found array with 0 feature(s) (shape={rows.shape}) while a minimum of 1 is required."
        )
    if dims is not None and rows.shape[1] != dims:
        raise InputError(
            f"{name} has {rows.shape[1]} features, but Binarizer is expecting {dims} features as input",
            hint="encode with the vectors of the encoder that the Binarizer was fitted on",
        )
    return rows


def unit(block: Any, name: str, start: int = 0) -> Floats:
    """Rows as float32 of unit length; `start` is the number of the first row, for messages."""
    wide = np.asarray(block, dtype=np.float64 if block.dtype.itemsize > 4 else np.float32)
    _refuse_infinite(wide, name, start)
    # squares of huge or tiny values would not be finite
    peak = np.abs(wide).max(axis=1, keepdims=True)  # [count, 1]
    ratio = np.divide(wide, peak, out=np.zeros_like(wide), where=peak > 0)
    scaled: Floats = ratio.astype(np.float32, copy=False)  # a float32 row as float64 has the same bits here
    rows: Floats = np.divide(scaled, np.maximum(lengths(scaled), 1, dtype=np.float32)[:, None])
    return rows


def plain(block: Any, name: str, start: int = 0) -> Floats:
    """Rows as float32 of their own lengths, at most LONGEST."""
    with np.errstate(over="ignore"):
        rows: Floats = np.asarray(block).astype(np.float32)
        _refuse_infinite(rows, name, start)
        long = dots(rows, rows) > LONGEST**2
    if long.any():
        raise InputError(
            f"row {start + int(np.argmax(long))} of {name} is longer than {LONGEST:g}",
            hint="divide all vectors by the same number",
        )
    return rows


def unit_blocks(rows: Any, name: str = "X", bring: Callable[..., Floats] = unit) -> Iterator[Floats]:
    """All rows in order, a block at a time: of unit length, or brought to what `bring` makes of them."""
    size = max(1, BLOCK_VALUES // rows.shape[1])
    for start in range(0, len(rows), size):
        yield bring(rows[start : start + size], name, start)


def sample(rows: Any, count: int, seed: int, name: str = "X", bring: Callable[..., Floats] = unit) -> Floats:
    """At most `count` rows drawn without replacement, read in the order of the file."""
    if len(rows) <= count:
        return np.concatenate(list(unit_blocks(rows, name, bring)))
    chosen = np.sort(np.random.default_rng(seed).choice(len(rows), count, replace=False))
    out = np.empty((count, rows.shape[1]), np.float32)
    size = max(1, BLOCK_VALUES // rows.shape[1])
    for start in range(0, count, size):
        out[start : start + size] = bring(rows[chosen[start : start + size]], f"{name} (sampled)", 0)
    return out


class Space(NamedTuple):
    """Where a metric is an inner product: maps rows of `unit` (cosine) or of `plain` (ip, l2)."""

    metric: str
    shift: Floats  # [dims] = m; zero unless the metric is l2
    scale: np.float32  # = s
    bend: np.float32  # = κ

    @classmethod
    def fit(cls, metric: str, rows: Floats, bend: float = 0.0) -> Self:
        """The space of a metric for vectors like these [count, dims]."""
        shift, scale = np.zeros(rows.shape[1], np.float32), 1.0
        if metric == "l2":
            shift = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        if metric != "cosine":
            scale = float(np.sqrt(np.mean(dots(rows - shift, rows - shift), dtype=np.float64)))
            if scale < SHORTEST and (rows != shift).any():
                raise InputError(
                    f"the vectors differ by less than {SHORTEST:g}",
                    hint="multiply all vectors by the same number",
                )
        return cls(metric, shift, np.float32(scale or 1), np.float32(bend))

    @property
    def bring(self) -> Callable[..., Floats]:
        """The normalisation that rows go through first."""
        return unit if self.metric == "cosine" else plain

    def keywords(self, rows: Floats) -> Floats:
        """z of rows [count, dims]."""
        if self.metric == "cosine":
            return rows
        centred, squares = self._centred(rows)
        if self.metric == "ip":
            return centred
        lifted: Floats = np.append(centred, squares * np.float32(-0.5), axis=1) / (1 + self.bend * squares)
        return lifted

    def queries(self, rows: Floats) -> Floats:
        """y of rows [count, dims]."""
        if self.metric == "cosine":
            return rows
        centred, squares = self._centred(rows)
        lifted = np.append(centred, 1 - self.bend * squares, axis=1) if self.metric == "l2" else centred
        return unit(lifted, "queries")

    def vectors(self, z: Floats) -> Floats:
        """The rows [count, dims] whose z are these, or near these."""
        if self.metric == "cosine":
            return np.asarray(z / np.maximum(lengths(z), np.float32(1e-12))[:, None], np.float32)
        dims = len(self.shift)
        if self.metric == "l2":
            grown = np.maximum(1 + 2 * self.bend * z[:, dims:], np.float32(0.05))
            z = np.asarray(z[:, :dims] / grown, np.float32)
        return np.asarray(z * self.scale + self.shift, np.float32)

    def truth(self, queries: Floats, keywords: Floats) -> npt.NDArray[np.float64]:
        """The scores [Q, K] of rows: cosines, products with unit queries, negative squared distances."""
        if self.metric != "l2":
            return (self.queries(queries) @ self.keywords(keywords).T).astype(np.float64) * self.scale
        asked, stored = ((rows - self.shift).astype(np.float64) for rows in (queries, keywords))
        squares = [np.einsum("ij,ij->i", rows, rows) for rows in (asked, stored)]
        return np.asarray(2 * asked @ stored.T - np.add.outer(*squares))

    def scores(self, queries: Floats, keywords: Floats) -> npt.NDArray[np.float64]:
        """The scores [count] of rows with rows, one by one: `truth`, with sums in one order everywhere."""
        if self.metric == "l2":
            rest: Floats = queries - keywords
            return -dots(rest, rest).astype(np.float64)
        met = dots(self.queries(queries), keywords).astype(np.float64)
        return np.clip(met, -1, 1) if self.metric == "cosine" else met

    def _centred(self, rows: Floats) -> tuple[Floats, Floats]:
        centred: Floats = (rows - self.shift) / self.scale
        return centred, dots(centred, centred)[:, None]


def product(a: Floats, b: Floats) -> Floats:
    """a @ b of [rows, depth] and [depth, columns]."""
    return _core.product(_contiguous(a), _contiguous(b), cpu_count(), choose_isa())


def dots(a: Floats, b: Floats) -> Floats:
    """The inner products [rows] of the rows of a and b [rows, width]."""
    return _core.dots(_contiguous(a), _contiguous(b), choose_isa())


def lengths(a: Floats) -> Floats:
    """The lengths [rows] of the rows of a."""
    roots: Floats = np.sqrt(dots(a, a))
    return roots


def rerank(
    queries: Any, rows: npt.NDArray[np.int64], vectors: Any, k: int = 10
) -> tuple[npt.NDArray[np.int64], Floats]:
    """The best k of `rows` [Q, candidates] by cosine with queries [Q, dims]: rows and cosines [Q, k].

    For hits of codes where a float copy of the vectors exists; only `rows` of it are read. Equal cosines are
    ordered by row.
    """
    stored = as_rows(vectors, "vectors")
    asked = unit(as_rows(queries, "queries", stored.shape[1]), "queries")
    rows = np.asarray(rows)
    if rows.ndim != 2 or len(rows) != len(asked) or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(
            f"rows must be integers [{len(asked)}, candidates], got {rows.dtype} {list(rows.shape)}"
        )
    if not 1 <= k <= rows.shape[1]:
        raise InputError(f"k must be from 1 to the {rows.shape[1]} candidates, got {k}")
    if rows.min(initial=0) < 0 or rows.max(initial=0) >= len(stored):
        raise InputError(f"rows must be from 0 to {len(stored) - 1}, got {rows.min()} to {rows.max()}")
    best, cosines = np.empty((len(asked), k), np.int64), np.empty((len(asked), k), np.float32)
    for i, (query, at) in enumerate(zip(asked, rows, strict=True)):
        score = unit(stored[at], "vectors") @ query  # [candidates]
        order = np.lexsort((at, -score))[:k]
        best[i], cosines[i] = at[order], score[order]
    return best, cosines


def _refuse_infinite(rows: npt.NDArray[Any], name: str, start: int) -> None:
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        row = start + int(np.argmin(finite))
        raise InputError(
            f"{name} holds NaN or infinity (inf), first in row {row}", hint="drop or repair such rows"
        )


def _contiguous(array: Floats) -> Floats:
    return np.ascontiguousarray(array, np.float32)
