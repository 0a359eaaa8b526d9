"""`Binarizer`: float vectors of any encoder in, codes out.

    binarizer = rbegir.Binarizer(384).fit(vectors)            # no labels needed
    index = rbegir.Index.create("titles.rbe", binarizer)
    index.add_codes(binarizer.encode_keywords(vectors))
    index.search_codes(binarizer.encode_queries(queries), k=10)

Keywords are ordered by the cosine of codes, which stands for the cosine of the vectors. A code depends on its
vector and the Binarizer alone: not on the vectors encoded with it, the number of threads or the CPU.

*scikit-learn.* The class follows its conventions without inheriting from it, since encoding is used where
scikit-learn is not installed: the constructor stores its arguments and nothing else, so `clone` works.

*Which n and how many planes* for so many bytes depends on the data: 96 bytes are 768 × 1, 384 × 2, 256 × 3 or
192 × 4. For vectors that fill all their dimensions alike n = 2·dims with one plane is best by far, for those
whose variance lies in few directions n = dims with two. `best_shape` fits each shape on a part of a sample
and compares the errors of the rest.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from rbegir.base.ahead import ahead
from rbegir.base.checks import whole_number
from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_N, MAX_PLANES, WORD, Codes, check_dimension
from rbegir.encode.binarizer import store
from rbegir.encode.binarizer.learn import (
    CENTRED,
    ROUNDS,
    Learned,
    Terms,
    constants,
    learn,
    search,
    second_moment,
    terms,
)
from rbegir.encode.binarizer.rounding import nearest, packed, rounded
from rbegir.encode.binarizer.vectors import Floats, as_rows, lengths, product, sample, unit_blocks
from rbegir.errors import CorruptError, InputError

MIN_ROWS = 2
WORK = 1 << 17  # moves · n of the search for a code
SAMPLE_VALUES = 1 << 26  # of the rows that fitting looks at: 256 MB of float32
TRIAL_ROWS, HELD_OUT, TRIAL_ROUNDS = 24_576, 4_096, 3  # of each shape that `best_shape` tries


class Binarizer:
    """Turns float vectors into codes of `n` dimensions, a scikit-learn transformer.

    dims               dimension of the vectors; None takes it from `fit`
    n                  dimension of the codes, a multiple of 64; None is `dims` rounded up (at most 1024)
    query_planes       bits a dimension of a query: 8 is as good as a float query and costs no more to search
    keyword_planes     bits a dimension of a stored keyword: n · keyword_planes / 8 bytes each
    rounds             turns of learning; 0 is the start: a random rotation, rounded, one least squares
    moves              of the search for the best code of a keyword, beyond the nearest local optimum: more is
                       better and slower; None is as many as take about the same time for any n
    seed               of the random rotation and of the sample that fitting looks at
    """

    def __init__(
        self,
        dims: int | None = None,
        n: int | None = None,
        query_planes: int = 8,
        keyword_planes: int = 2,
        rounds: int = ROUNDS,
        moves: int | None = None,
        seed: int = 0,
    ) -> None:
        self.dims = dims
        self.n = n
        self.query_planes = query_planes
        self.keyword_planes = keyword_planes
        self.rounds = rounds
        self.moves = moves
        self.seed = seed

    takes_vectors = True  # what an index asks: float vectors, not texts, are searched for

    @property
    def n(self) -> int:
        """The dimension of the codes: as given, or as `fit` chose it."""
        given: int | None = self.__dict__["n"]
        if "n_" in self.__dict__:
            return int(self.n_)
        dims = self.dims
        return given if given is not None else default_n(dims) if dims is not None else 0

    @n.setter
    def n(self, value: int | None) -> None:
        self.__dict__["n"] = value

    @property
    def fingerprint(self) -> str:
        """Names the space of the codes; an index refuses those of another."""
        self._check_fitted()
        return self.fingerprint_

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from vectors [count, dims]; of a large or memory-mapped array a sample is read.

        y may hold the vectors of queries, [any count, dims], for instance the one that belongs to each
        row: what queries look like decides which errors count. Labels (one-dimensional) are ignored.
        """
        self._check_params()
        rows = as_rows(X, "X", self.dims)
        if len(rows) < MIN_ROWS:
            raise InputError(f"X has n_samples={len(rows)}, fitting needs at least {MIN_ROWS} rows")
        dims = int(rows.shape[1])
        seen = sample(rows, max(SAMPLE_VALUES // dims, MIN_ROWS), self.seed)  # [rows, dims]
        n = self.__dict__["n"] or default_n(dims)
        centre = (CENTRED * seen.mean(axis=0, dtype=np.float64)).astype(np.float32)
        asked = None
        if y is not None and np.ndim(y) == 2:
            asked = second_moment(sample(as_rows(y, "y", dims), SAMPLE_VALUES // dims, self.seed, "y"))
        learned = learn(seen, centre, asked, n, self.keyword_planes, self.rounds, self.seed)
        self._set(dims, n, learned)
        return self

    def encode_keywords(self, X: Any) -> Codes:
        """Codes of vectors [count, dims] to be stored."""
        self._check_fitted()
        rows = as_rows(X, "X", self.n_features_in_)
        moves = WORK // self.n if self.moves is None else self.moves
        parts = [
            packed(search(form, self.learned_.gram, self.keyword_planes, moves, start), self.keyword_planes)
            for form, start in ahead(self._prepared(rows))
        ]
        return Codes.concat(parts) if parts else self._none(self.keyword_planes)

    def encode_queries(self, X: Any) -> Codes:
        """Codes of vectors [count, dims] to search with."""
        self._check_fitted()
        rows = as_rows(X, "X", self.n_features_in_)
        planes = self.query_planes
        parts = [
            Codes.from_values(nearest(product(block, self.learned_.query), planes), planes)
            for block in unit_blocks(rows)
        ]
        return Codes.concat(parts) if parts else self._none(self.query_planes)

    def transform(self, X: Any) -> npt.NDArray[np.int8]:
        """The keyword codes as odd integers [count, n], for what comes next in a pipeline."""
        self._check_fitted()
        rows = as_rows(X, "X", self.n_features_in_)
        if not len(rows):
            raise InputError("Found array with 0 sample(s) while a minimum of 1 is required by Binarizer.")
        return self.encode_keywords(rows).values().astype(np.int8)

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> npt.NDArray[np.int8]:
        """`fit`, then `transform`."""
        return self.fit(X, y, **params).transform(X)

    def inverse_transform(self, codes: Codes) -> Floats:
        """The vectors [count, dims] that keyword codes stand for: unit length, up to the rounding."""
        self._check_fitted()
        values = codes.values().astype(np.float32)
        back: Floats = product(values / lengths(values)[:, None], self.learned_.query.T)
        back += self.learned_.mean
        back /= np.maximum(lengths(back), np.float32(1e-12))[:, None]
        return back

    def error(self, X: Any) -> float:
        """What codes lose of vectors [count, dims] around the centre, as a part, in the metric learned."""
        self._check_fitted()
        lost = kept = 0.0
        for block in unit_blocks(as_rows(X, "X", self.n_features_in_)):
            form = terms(block, self.learned_)
            b = self.encode_keywords(block).values().astype(np.float32)
            b /= np.linalg.norm(b, axis=1, keepdims=True)
            inner = np.einsum("ij,ij->i", form.v, b)
            across, constant = constants(block, self.learned_)
            lost += float(np.einsum("ij,ij->", b @ self.learned_.gram - 2 * form.g, b) + inner @ inner)
            lost += float(constant.sum())
            kept += float(across.sum())
        return lost / kept

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """binarizer0, binarizer1, …: one name a column of `transform`."""
        self._check_fitted()
        return np.asarray([f"binarizer{i}" for i in range(self.n)], dtype=object)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors into `directory`."""
        self._check_fitted()
        store.write(directory, self._settings(), self._tensors())

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Self:
        """A fitted Binarizer that `save` wrote; every byte is checked."""
        settings, tensors = store.read(directory)
        try:
            binarizer = cls(**settings.pop("params"))
            binarizer._check_params()
            along = np.zeros(2, np.float32)  # files of version 1 have none
            learned = Learned(**{"along": along, **tensors})
            binarizer._set(int(settings["dims"]), int(settings["n"]), learned)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"{directory} does not hold the settings of a binarizer", hint=store.REPAIR
            ) from error
        return binarizer

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; `deep` is there for scikit-learn, no argument is an estimator."""
        return {name: self.__dict__[name] for name in PARAMETERS}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; they count from the next `fit` on."""
        for name, value in params.items():
            if name not in PARAMETERS:
                raise InputError(
                    f"Invalid parameter {name!r} for estimator Binarizer",
                    hint=f"valid parameters are {', '.join(PARAMETERS)}",
                )
            self.__dict__[name] = value
        return self

    def __repr__(self) -> str:
        params = self.get_params().items()
        given = [f"{name}={value!r}" for name, value in params if value != PARAMETERS[name]]
        return f"Binarizer({', '.join(given)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, Tags, TargetTags, TransformerTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=False),
            transformer_tags=TransformerTags(),
            input_tags=InputTags(),
        )

    def __sklearn_is_fitted__(self) -> bool:
        return "fingerprint_" in self.__dict__

    def _prepared(self, rows: Any) -> Iterator[tuple[Terms, Floats]]:
        """Blocks of rows as what the search for codes works on, and where it starts."""
        learned = self.learned_
        for block in unit_blocks(rows):
            start = product(block - learned.mean, learned.guess)
            yield terms(block, learned), rounded(start, self.keyword_planes)

    def _none(self, planes: int) -> Codes:
        return Codes(np.zeros((planes, 0, self.n // WORD), np.uint64), self.n)

    def _set(self, dims: int, n: int, learned: Learned) -> None:
        """Become fitted."""
        shapes = ((dims,), (dims, dims), (dims, n), (dims, n), (n, n), (dims, n), (2,))
        if tuple(array.shape for array in learned) != shapes:
            raise InputError(f"the tensors {Learned._fields} of a binarizer must be {shapes}")
        self.n_features_in_, self.n_, self.learned_ = dims, n, learned
        self.fingerprint_ = store.fingerprint(self._settings(), self._tensors())

    def _tensors(self) -> dict[str, Floats]:
        """The tensors to store; files of version 1, and so their fingerprints, have no `along`."""
        tensors = self.learned_._asdict()
        if not self.learned_.along.any():
            del tensors["along"]
        return tensors

    def _settings(self) -> dict[str, Any]:
        return {"params": self.get_params(), "dims": self.n_features_in_, "n": self.n_}

    def _check_fitted(self) -> None:
        if self.__sklearn_is_fitted__():
            return
        raise not_fitted(
            "this Binarizer is not fitted", hint="call fit(X) with your vectors, or Binarizer.load(directory)"
        )

    def _check_params(self) -> None:
        for name, low, high in (
            ("query_planes", 1, MAX_PLANES),
            ("keyword_planes", 1, MAX_KEYWORD_PLANES),
            ("dims", 1, None),
            ("rounds", 0, None),
            ("moves", 0, None),
            ("seed", 0, None),
        ):
            value = self.get_params()[name]
            if name in ("dims", "moves") and value is None:
                continue
            whole_number(name, value, low, high)
        if self.__dict__["n"] is not None:
            check_dimension(self.__dict__["n"])


PARAMETERS = {
    name: given.default
    for name, given in inspect.signature(Binarizer.__init__).parameters.items()
    if name != "self"
}


def not_fitted(message: str, hint: str) -> Exception:
    """InputError, and scikit-learn's NotFittedError where that is installed."""
    try:
        from sklearn.exceptions import NotFittedError
    except ImportError:
        return InputError(message, hint=hint)
    kind = type("NotFittedError", (InputError, NotFittedError), {})
    error: Exception = kind(message, hint=hint)
    return error


def default_n(dims: int) -> int:
    """`dims` rounded up to a multiple of 64, at most 1024."""
    return min(-(-dims // WORD) * WORD, MAX_N)


def shapes(code_bytes: int) -> list[tuple[int, int]]:
    """(n, planes) that take exactly so many bytes, most dimensions first."""
    found = [
        (8 * code_bytes // planes, planes)
        for planes in range(1, MAX_KEYWORD_PLANES + 1)
        if 8 * code_bytes % (planes * WORD) == 0 and 8 * code_bytes // planes <= MAX_N
    ]
    if not found:
        raise InputError(
            f"no code takes {code_bytes} bytes",
            hint="bytes must be n · planes / 8 with n a multiple of 64 up to 1024 and 1 to 4 planes",
        )
    return found


def best_shape(X: Any, code_bytes: int, seed: int = 0) -> tuple[int, int]:
    """The (n, planes) of `code_bytes` bytes whose codes keep vectors like those of X best."""
    possible = shapes(code_bytes)
    rows = sample(as_rows(X), TRIAL_ROWS, seed)
    if len(possible) == 1 or len(rows) < 100:
        return possible[0]
    held = max(len(rows) // 8, min(HELD_OUT, len(rows) // 4))
    rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    errors = {}
    for n, planes in possible:
        trial = Binarizer(n=n, keyword_planes=planes, rounds=TRIAL_ROUNDS, seed=seed).fit(rows[held:])
        errors[n, planes] = trial.error(rows[:held])
    return min(errors, key=errors.__getitem__)
