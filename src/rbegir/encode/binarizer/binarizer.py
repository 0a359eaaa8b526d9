"""`Binarizer`: float vectors of any encoder in, codes out.

    binarizer = rbegir.Binarizer(384).fit(vectors)            # no labels needed
    index = rbegir.Index.create("titles.rbe", binarizer)
    index.add_codes(binarizer.encode_keywords(vectors))
    index.search_codes(binarizer.encode_queries(queries), k=10)

Keywords are ordered by the cosine of codes, as the metric orders their vectors, and scores estimate the
cosine, inner product or distance of the vectors (`scores`). A code depends on its vector and the Binarizer
alone: not on the vectors encoded with it, the number of threads or the CPU.

*scikit-learn.* The class follows its conventions without inheriting from it, since encoding is used where
scikit-learn is not installed: the constructor stores its arguments and nothing else, so `clone` works.

*Which n and how many planes* are best for a number of bytes depends on the data: 96 bytes are 768 × 1,
384 × 2, 256 × 3 or 192 × 4. For vectors that fill all their dimensions alike n = 2·dims with one plane is
best by far, for those whose variance lies in few directions n = dims with two. With `bytes`, fitting tries
each shape on a sample and keeps the one that finds the most of the true ten best among held-out vectors.

*On disk* a fitted Binarizer is a directory like that of a model (`rbegir.encode.directory`). `config.json`
holds the constructor's arguments and what fitting decided (dims, n, planes) as `binarizer`.
"""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.base.devices import ahead
from rbegir.base.progress import Progress, reported
from rbegir.codes.planes import MAX_KEYWORD_PLANES, MAX_N, MAX_PLANES, WORD, Codes, check_dimension
from rbegir.codes.score import KeyScores, cosines, keys
from rbegir.encode.binarizer import learn, vectors
from rbegir.encode.binarizer.learn import Learned, nearest
from rbegir.encode.binarizer.scores import Scoring, calibrated, uncalibrated
from rbegir.encode.binarizer.vectors import Floats, Space, as_rows, product, sample, unit_blocks
from rbegir.encode.directory import DirectoryKind, fingerprint, read_checked, write_pair
from rbegir.errors import CorruptError, InputError, whole_number

KIND = DirectoryKind(
    format="rbegir-binarizer",
    # 1 has no tensor `along`, 2 none of `Scoring`; both know only the cosine. 3 has no setting `effort`, and
    # its first readers do not know `steps`
    version=4,
    older=(1, 2, 3),
    noun="binarizer",
    article="a binarizer",
    find="pass the directory that Binarizer.save wrote",
    renew="fit the binarizer again",
    repair="copy the binarizer again, or fit it again",
)
MIN_ROWS = 2
WORK = 1 << 17  # moves · n of the search for a code
EFFORT = {"fast": 1 / 8, "default": 1, "best": 4}  # times the moves
SAMPLE_VALUES = 1 << 26  # of the rows that fitting looks at: 256 MB of float32
ENOUGH, HELD_OUT = 512, 512  # rows from which on some are held out, and how many of them are queries
AMONG = 8_192  # rows that held-out ones are searched among
MANY = 4 * AMONG  # rows from which on all of those are held out
TRIAL_ROWS, TRIAL_ROUNDS = MANY, 3  # of each choice that fitting tries
CLOSE = 0.03  # shapes this near each other in recall are compared again, on all rows with all rounds
AHEAD = 0.01  # how much more recall a choice needs to replace the plain one: about the error of a trial
BENDS = 0.0, 0.25  # κ of `vectors.Space` that fitting tries
PLAIN = learn.ALONG, learn.CENTRED  # w of errors along the vector, and the share of the mean taken away
ONE_PLANE = PLAIN, (2 * learn.ALONG, learn.CENTRED)  # that fitting tries for codes of one plane
LOW_RATE = PLAIN, (learn.ALONG, 1.0), (2.0, 1.0)  # that it tries for those with up to 1 bit per dimension

Notify = Callable[[float], None]


class Choice(NamedTuple):
    """The settings that fitting chooses by itself."""

    shape: tuple[int, int]  # n and planes
    bend: float  # κ of `vectors.Space`
    weight: float  # w of errors along the vector
    centred: float  # share of the mean that is taken away
    digits: int  # that write a number, or 0


class Binarizer:
    """Turns float vectors into codes of `n` dimensions, a scikit-learn transformer.

    dims               dimension of the vectors; None takes it from `fit`
    n                  dimension of the codes, a multiple of 64; None is `dims` rounded up (at most 1024)
    query_planes       bits per dimension of a query: 8 is as good as a float query, at the same speed
    keyword_planes     bits per dimension of a stored keyword: n · keyword_planes / 8 bytes each
    rounds             turns of learning; 0 is the start: a random rotation, rounded, one least squares
    moves              of the search for the best code of a keyword, beyond the nearest local optimum: more is
                       better and slower; None takes about the same time for any n, and less for digits, as
                       `effort` says
    seed               of the random rotation and of the sample that fitting looks at
    bytes              of a stored keyword: fitting chooses `keyword_planes`, and `n` if it is None
    metric             what orders keywords: "cosine", "ip" (inner product) or "l2" (Euclidean distance)
    effort             of encoding keywords: "fast" makes an eighth of the moves, "best" four times as many
    """

    def __init__(
        self,
        dims: int | None = None,
        n: int | None = None,
        query_planes: int = 8,
        keyword_planes: int = 2,
        rounds: int = learn.ROUNDS,
        moves: int | None = None,
        seed: int = 0,
        bytes: int | None = None,
        metric: str = "cosine",
        effort: str = "default",
    ) -> None:
        self.dims = dims
        self.n = n
        self.query_planes = query_planes
        self.keyword_planes = keyword_planes
        self.rounds = rounds
        self.moves = moves
        self.seed = seed
        self.bytes = bytes
        self.metric = metric
        self.effort = effort

    takes_vectors = True  # an index is searched with float vectors, not texts

    @property
    def n(self) -> int:
        """The dimension of the codes: as given, or as `fit` chose it."""
        if "shape_" in self.__dict__:
            return self.shape_[0]
        given: int | None = self.__dict__["n"]
        return given if given is not None else default_n(self.dims or 0)

    @n.setter
    def n(self, value: int | None) -> None:
        self.__dict__["n"] = value

    @property
    def keyword_planes(self) -> int:
        """Bits per dimension of a keyword: as given, or as `fit` chose it."""
        return self.shape_[1] if "shape_" in self.__dict__ else int(self.__dict__["keyword_planes"])

    @keyword_planes.setter
    def keyword_planes(self, value: int) -> None:
        self.__dict__["keyword_planes"] = value

    @property
    def expected(self) -> dict[str, Any]:
        """The figures measured on held-out vectors while fitting; None if there were too few to hold any out.

        metric                          what orders keywords
        score_error, …_interval         root mean square error of the scores of the ten best hits, and its
                                        95 % interval, for the lengths of the vectors as they are
        recall@10, …_interval           share of the ten nearest that are found, and its 95 % interval
        among                           how many vectors were searched; more make it harder
        """
        self._check_fitted()
        measured = self.scoring_.measured if self.scoring_ else np.full(7, np.nan)
        numbers = [None if np.isnan(value) else float(f"{value:.4g}") for value in measured]
        error, recall, among = numbers[:3], numbers[3:6], numbers[6]
        return {
            "metric": self.metric,
            "score_error": error[0],
            "score_error_interval": error[1:],
            "recall@10": recall[0],
            "recall@10_interval": recall[1:],
            "among": among and int(among),
        }

    @property
    def fingerprint(self) -> str:
        """Names the space of the codes; an index refuses those of another."""
        self._check_fitted()
        return self.fingerprint_

    def fit(self, X: Any, y: Any = None, *, notify: Notify | None = None, progress: Progress = None) -> Self:
        """Learn from vectors [count, dims]; of a large or memory-mapped array a sample is read.

        y may hold the vectors of queries, [2 or more, dims], for instance the one that belongs to each
        row: what queries look like decides which errors count. Labels (one-dimensional) are ignored.
        `notify` is called with the share of the work that is done. Without it `progress` is called with that
        share and 1, False for none; by default a bar is shown in a terminal.
        """
        self._check_params()
        rows = as_rows(X, "X", self.dims)
        dims = int(rows.shape[1])
        wanted = None if y is None or np.ndim(y) != 2 else as_rows(y, "y", dims)
        for name, given in (("X", rows), ("y", wanted)):
            if given is not None and len(given) < MIN_ROWS:
                raise InputError(f"{name} has n_samples={len(given)}, fitting needs at least {MIN_ROWS} rows")
        bring = vectors.unit if self.metric == "cosine" else vectors.plain
        most = max(SAMPLE_VALUES // dims, MIN_ROWS)
        seen = sample(rows, most, self.seed, bring=bring)  # [rows, dims]
        asked = None if wanted is None else sample(wanted, most, self.seed, "y", bring)
        with reported(progress, "fitting codes") as report:
            best = self._best(seen, asked, notify or (lambda share: report(share, 1.0)))
        self._set(best.space_, best.shape_, best.learned_, best.scoring_)
        return self

    def encode_keywords(self, X: Any, *, notify: Callable[[int, int], None] | None = None) -> Codes:
        """Codes of vectors [count, dims] to be stored; `notify` is called with (vectors encoded, all)."""
        rows = self._rows(X)
        gram, planes = self.learned_.gram, self.keyword_planes
        moves = self.moves
        if moves is None:
            moves = int(EFFORT[self.effort] * (self.n // 2 if len(self.learned_.steps) else WORK // self.n))
        parts, done = [], 0
        for form, start in ahead(self._prepared(rows)):
            found = learn.search(form, gram, planes, moves, start)
            parts.append(Codes.from_values(found.astype(np.int16), planes))
            done += len(found)
            if notify is not None:
                notify(done, len(rows))
        codes = Codes.concat(parts) if parts else self._none(planes)
        return Codes(codes.planes, codes.n, self.fingerprint)

    def encode_queries(self, X: Any) -> Codes:
        """Codes of vectors [count, dims] to search with."""
        rows = self._rows(X)
        planes, parts = self.query_planes, []
        for block in unit_blocks(rows, bring=self.space_.bring):
            values = nearest(product(self.space_.queries(block), self.learned_.query), planes)
            parts.append(Codes.from_values(values, planes))
        return Codes.concat(parts) if parts else self._none(planes)

    def key_scores(self, values: npt.NDArray[np.int16]) -> KeyScores:
        """The function from order keys [Q, k] of queries with these integers [Q, n] to scores."""
        self._check_fitted()
        if self.scoring_ is None:
            return cosines(values)
        return self.scoring_.of(values, self.learned_.mean, self.space_)

    def transform(self, X: Any) -> npt.NDArray[np.int8]:
        """The keyword codes as odd integers [count, n], for what comes next in a pipeline."""
        rows = self._rows(X)
        if not len(rows):
            raise InputError("Found array with 0 sample(s) while a minimum of 1 is required by Binarizer.")
        return self.encode_keywords(rows).values().astype(np.int8)

    def fit_transform(self, X: Any, y: Any = None, **params: Any) -> npt.NDArray[np.int8]:
        """`fit`, then `transform`."""
        return self.fit(X, y, **params).transform(X)

    def inverse_transform(self, codes: Codes) -> Floats:
        """The vectors [count, dims] that keyword codes stand for, of unit length for the cosine."""
        self._check_fitted()
        values = codes.values().astype(np.float32)
        back: Floats = product(values / vectors.lengths(values)[:, None], self.learned_.query.T)
        return self.space_.vectors(back + self.learned_.mean)

    def decoded_scores(self, X: Any, codes: Codes, of: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Scores [count] of the vectors that keyword codes stand for with queries [Q, dims], in floats.

        Code i is scored with query of[i].
        """
        rows, space = self._rows(X), self.space_
        queries = np.concatenate(list(unit_blocks(rows, bring=space.bring)))
        size = max(1, vectors.BLOCK_VALUES // max(self.n, self.n_features_in_))
        parts = [np.zeros(0)]
        for start in range(0, len(codes), size):
            decoded = self.inverse_transform(codes[start : start + size])
            parts.append(space.scores(queries[of[start : start + size]], decoded))
        return np.concatenate(parts)

    def error(self, X: Any) -> float:
        """The share of vectors [count, dims] that their codes lose, in the terms that `learn` minimises."""
        rows, learned = self._rows(X), self.learned_
        lost, kept = 0.0, 0.0
        weight, short, share = learned.along
        for block in unit_blocks(rows, bring=self.space_.bring):
            centred, queries = self.space_.keywords(block) - learned.mean, self.space_.queries(block)
            codes = learn.directions(self.encode_keywords(block).values().astype(np.float32))
            rest = centred - codes @ learned.query.T  # [count, dims] z − ẑ
            along = np.sum(queries * rest, axis=1) - short - share * np.sum(queries * centred, axis=1)
            lost += float(np.sum((rest @ learned.metric) ** 2) + weight * along @ along)
            kept += float(np.sum((centred @ learned.metric) ** 2))
        return lost / kept

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[np.object_]:
        """binarizer0, binarizer1, …: one name per column of `transform`."""
        self._check_fitted()
        return np.asarray([f"binarizer{i}" for i in range(self.n)], dtype=object)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write config.json and model.safetensors into `directory`, replacing those that are there."""
        self._check_fitted()
        write_pair(Path(directory), KIND, self._settings(), self._tensors())

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Self:
        """A fitted Binarizer that `save` wrote; every byte is checked."""
        settings, tensors = read_checked(Path(directory), KIND)
        try:
            binarizer = cls(**settings.pop("params"))
            binarizer._check_params()
            binarizer._restore(settings, tensors)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptError(
                f"{directory} does not hold the settings of a binarizer", hint=KIND.repair
            ) from error
        return binarizer

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments; `deep` changes nothing, since none of them is an estimator."""
        return {name: self.__dict__[name] for name in PARAMETERS}

    def set_params(self, **params: Any) -> Self:
        """Change arguments of the constructor; they take effect at the next `fit`."""
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

    def _choices(self, dims: int) -> list[Choice]:
        """The choices that fitting compares, the plain one first."""
        n, planes = self.__dict__["n"], self.__dict__["keyword_planes"]
        possible = [(n or default_n(dims), planes)]
        if self.bytes is not None:
            possible = [shape for shape in shapes(self.bytes) if n in (None, shape[0])]
            possible.sort(key=lambda shape: shape[1] != planes)  # the plain one first
            if not possible:
                raise InputError(
                    f"no code of n = {n} takes {self.bytes} bytes", hint="leave n out, and fitting chooses it"
                )
        bends = BENDS if self.metric == "l2" else (0.0,)
        may_digits = self.rounds > 0 and self.metric == "cosine"  # others need lengths
        return [
            Choice(shape, bend, *terms, digits)
            for shape in possible
            for bend in bends
            for terms in self._terms(dims, *shape)
            for digits in sorted({0, learn.digit_count(dims, *shape) if may_digits else 0})
        ]

    def _terms(self, dims: int, n: int, planes: int) -> tuple[tuple[float, float], ...]:
        """The pairs of w and the share of the mean that fitting tries for a shape, the plain one first."""
        if planes > 1 or self.rounds == 0:
            return (PLAIN,)
        if n <= dims:
            return LOW_RATE
        return ONE_PLANE if self.bytes is not None else (PLAIN,)

    def _best(self, seen: Floats, asked: Floats | None, notify: Notify) -> "Binarizer":
        """A copy fitted with the choice that finds most among held-out rows.

        All choices are tried on some of the rows with few rounds. That misleads where shapes are close, so
        the best of each of the two best shapes are then fitted as they would be kept, and compared.
        """
        choices, done = self._choices(seen.shape[1]), 0.0

        def fitted(choice: Choice, rows: Floats, rounds: int, share: float) -> Binarizer:
            nonlocal done
            copy, before = Binarizer(**self.get_params()), done
            copy._learn(rows, asked, choice, rounds, lambda part: notify(before + share * part))
            done += share
            return copy

        if len(choices) == 1 or len(seen) < ENOUGH:
            return fitted(choices[0], seen, self.rounds, 1.0)

        def found(copy: Binarizer, choice: Choice) -> float:
            plain = choice[:-1] == choices[0][:-1]  # digits are not more of a risk than learning
            return float(copy.expected["recall@10"]) + (AHEAD if plain else 0)

        some = seen[np.random.default_rng(self.seed).permutation(len(seen))[:TRIAL_ROWS]]
        rounds = min(self.rounds, TRIAL_ROUNDS)
        trials = len(choices) * len(some) * max(rounds, 1)
        whole = min(2, len({choice.shape for choice in choices})) * len(seen) * max(self.rounds, 1)
        share = trials / (trials + whole) / len(choices)
        tried = {choice: found(fitted(choice, some, rounds, share), choice) for choice in choices}
        ranked = sorted(choices, key=tried.__getitem__, reverse=True)
        shaped = [choice.shape for choice in ranked]
        best = [choice for place, choice in enumerate(ranked) if choice.shape not in shaped[:place]]
        left = [choice for choice in best[:2] if tried[choice] > tried[best[0]] - CLOSE]
        share = (1 - done) / len(left)
        finals = [fitted(choice, seen, self.rounds, share) for choice in left]
        every = len(some) == len(seen)  # then trials are as good, with other queries
        leads = [found(*one) + every * tried[one[1]] for one in zip(finals, left, strict=True)]
        return finals[int(np.argmax(leads))]

    def _learn(
        self,
        seen: Floats,
        asked: Floats | None,
        choice: Choice,
        rounds: int,
        notify: Notify,
    ) -> None:
        """Fit to these rows; some are held out to calibrate scores if there are enough.

        Of many rows all those that calibration looks at are held out, of few only its queries.
        """
        order = np.random.default_rng(self.seed).permutation(len(seen))
        held = min(HELD_OUT, len(seen) // 8) if len(seen) >= ENOUGH else 0
        if len(seen) >= MANY:
            held = AMONG
        rows = np.delete(seen, order[:held], axis=0) if held else seen
        space = Space.fit(self.metric, rows, choice.bend)
        keywords, queries = space.keywords(rows), space.queries(rows)
        centre = (choice.centred * keywords.mean(axis=0, dtype=np.float64)).astype(np.float32)
        likely = queries if asked is None else space.queries(asked)
        moment = learn.second_moment(likely, around_mean=self.metric != "l2")
        relative = self.metric != "cosine"
        learned = learn.learn(
            keywords,
            queries,
            centre,
            moment,
            *choice.shape,
            rounds,
            self.seed,
            relative=relative,
            digits=choice.digits,
            weight=choice.weight,
            notify=notify,
        )
        likely = likely[:AMONG]
        values = nearest(product(likely, learned.query), self.query_planes)
        self._set(space, choice.shape, learned, uncalibrated(learned.query, likely, values))
        if held:
            self._calibrate(seen[order[:AMONG]], asked, min(held, HELD_OUT))

    def _calibrate(self, rows: Floats, asked: Floats | None, held: int) -> None:
        """Calibrate the scores on rows, of which at least the first `held` were held out."""
        space, own = self.space_, np.zeros((1, len(rows)), np.bool_)
        queries = rows[:held]
        if asked is None:
            own = np.eye(held, len(rows), dtype=np.bool_)
        else:
            queries = sample(asked, HELD_OUT, self.seed, "y", space.bring)
        values = self.encode_queries(queries).values()
        order = keys(values, self.encode_keywords(rows))
        assert self.scoring_ is not None
        estimate = self.scoring_.of(values, self.learned_.mean, space, bounded=False)(order)
        scoring = calibrated(self.scoring_, estimate, space.truth(queries, rows), order, own)
        self._set(space, self.shape_, self.learned_, scoring)

    def _prepared(self, rows: Any) -> Iterator[tuple[learn.Terms, Floats]]:
        """The terms of blocks of rows, and where the search for their codes starts."""
        learned, space = self.learned_, self.space_
        for block in unit_blocks(rows, bring=space.bring):
            keywords = space.keywords(block)
            y, planes = product(keywords - learned.mean, learned.guess), self.keyword_planes
            digits = len(learned.steps) > 0
            start = learn.in_digits(y, planes, learned.steps) if digits else learn.rounded(y, planes)
            yield learn.terms(keywords, space.queries(block), learned), start

    def _rows(self, X: Any) -> Any:
        """Vectors [count, dims] to encode, once it is known that this is fitted."""
        self._check_fitted()
        return as_rows(X, "X", self.n_features_in_)

    def _none(self, planes: int) -> Codes:
        return Codes(np.zeros((planes, 0, self.n // WORD), np.uint64), self.n)

    def _set(self, space: Space, shape: tuple[int, int], learned: Learned, scoring: Scoring | None) -> None:
        """Store what fitting learned, and name it."""
        dims, n = len(space.shift) + (space.metric == "l2"), shape[0]
        shapes = ((dims,), (dims, dims), (dims, n), (dims, n), (n, n), (dims, n), (3,))
        if tuple(array.shape for array in learned[:-1]) != shapes or len(learned.steps) in (1, 2):
            raise InputError(f"the tensors {Learned._fields} of a binarizer must be {shapes}")
        self.n_features_in_, self.shape_ = len(space.shift), shape
        self.space_, self.learned_, self.scoring_ = space, learned, scoring
        sums = {name: _core.crc32c(array) for name, array in self._tensors().items()}
        self.fingerprint_ = fingerprint(self._settings(), sums)

    def _restore(self, settings: dict[str, Any], tensors: dict[str, Floats]) -> None:
        """Restore what `_settings` and `_tensors` returned, in this or an earlier version."""
        dims = int(settings["dims"])
        plain_space = np.append(np.zeros(dims, np.float32), np.asarray([1, 0], np.float32))
        *shift, scale, bend = tensors.pop("space", plain_space)
        names = set(Scoring._fields) & tensors.keys()
        scoring = Scoring(**{name: tensors.pop(name) for name in names}) if names else None
        along = tensors.pop("along", np.zeros(0, np.float32))
        learned = Learned(**tensors, along=np.append(along, np.zeros(3 - len(along), np.float32)))
        shape = int(settings["n"]), int(settings.get("keyword_planes", self.__dict__["keyword_planes"]))
        self._set(Space(self.metric, np.asarray(shift), scale, bend), shape, learned, scoring)

    def _tensors(self) -> dict[str, Floats]:
        """The tensors to store, except those at their defaults, so that old files keep their fingerprints."""
        tensors = {**self.learned_._asdict(), **(self.scoring_._asdict() if self.scoring_ else {})}
        tensors["along"] = np.trim_zeros(self.learned_.along, "b")
        if not len(tensors["along"]):
            del tensors["along"]
        if not len(tensors["steps"]):
            del tensors["steps"]
        if self.metric != "cosine":
            tensors["space"] = np.append(self.space_.shift, [self.space_.scale, self.space_.bend])
        return tensors

    def _settings(self) -> dict[str, Any]:
        """The settings to store: new ones only where they are not the default, for the same reason."""
        params = {
            name: value
            for name, value in self.get_params().items()
            if name not in ("bytes", "metric", "effort") or value != PARAMETERS[name]
        }
        settings = {"params": params, "dims": self.n_features_in_, "n": self.n}
        return settings if self.bytes is None else {**settings, "keyword_planes": self.keyword_planes}

    def _check_fitted(self) -> None:
        """Raise an InputError, which is scikit-learn's NotFittedError, too, where that is installed."""
        if self.__sklearn_is_fitted__():
            return
        kind: type[InputError] = InputError
        with suppress(ImportError):
            from sklearn.exceptions import NotFittedError

            kind = type("NotFittedError", (InputError, NotFittedError), {})
        hint = "call fit(X) with your vectors, or Binarizer.load(directory)"
        raise kind("this Binarizer is not fitted", hint=hint)

    def _check_params(self) -> None:
        given = self.get_params()
        whole_number("query_planes", given["query_planes"], 1, MAX_PLANES)
        whole_number("keyword_planes", given["keyword_planes"], 1, MAX_KEYWORD_PLANES)
        for name, low in (("dims", 1), ("rounds", 0), ("moves", 0), ("seed", 0), ("bytes", 8)):
            if given[name] is not None or name in ("rounds", "seed"):
                whole_number(name, given[name], low)
        if self.metric not in vectors.METRICS:
            raise InputError(
                f"metric must be one of {', '.join(vectors.METRICS)}, got {self.metric!r}",
                hint='"ip" is the inner product, "l2" the Euclidean distance',
            )
        if self.effort not in EFFORT:
            raise InputError(
                f"effort must be one of {', '.join(EFFORT)}, got {self.effort!r}",
                hint="moves= sets the number of moves itself",
            )
        if given["n"] is not None:
            check_dimension(given["n"])


PARAMETERS = {
    name: given.default
    for name, given in inspect.signature(Binarizer.__init__).parameters.items()
    if name != "self"
}


def default_n(dims: int) -> int:
    """`dims` rounded up to a multiple of 64, at most 1024."""
    return min(-(-dims // WORD) * WORD, MAX_N)


def shapes(code_bytes: int) -> list[tuple[int, int]]:
    """The shapes (n, planes) that take exactly this many bytes, most dimensions first."""
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
