"""What travels between a client and the shards, and how. Every answer names the view that it is about.

Left to itself Ray takes objects apart and looks at every array in them, for each shard again: 0.3 ms per call
with a few small arrays, more than the scan of a small shard. Numbers, texts, bytes and lists go through its
fast path, so that is what `pack` makes of a message, once for all shards:

    an array             ["array", dtype, shape, bytes]
    an array of objects  ["objects", shape, its values]
    a message            ["message", name of its class, its fields]
    a tuple, a dict      ["tuple", values], ["dict", keys, values]

Anything else (filters of pyarrow, errors) is left to Ray.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rbegir.cluster.view import Places
from rbegir.errors import RbegirError
from rbegir.search.request import SearchRequest

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scan:
    """A question: the best k of each query among the keywords that pass the filters of `request`."""

    values: npt.NDArray[np.int16]  # [Q, n]
    request: SearchRequest  # k and the filters; the other options concern the client alone
    planes: int | None = None  # rank by these many planes, and give the key of all planes beside
    seconds: float = 60.0  # how long the client waits for the answer
    # columns to send along with what is found; None: not even rows and ids
    names: tuple[str, ...] | None = None

    @cached_property
    def group(self) -> Any:
        """Scans of one group can share a pass over the codes."""
        return self.request.share_key(), self.planes


@dataclass(frozen=True)
class Answer:
    """What all answers have in common."""

    view: str


@dataclass(frozen=True)
class Columns(Answer):
    """What is stored of some keywords, in the order in which they were asked for."""

    rows: npt.NDArray[np.int64]
    ids: npt.NDArray[Any]
    columns: dict[str, npt.NDArray[np.object_]]


@dataclass(frozen=True)
class Found(Answer):
    """The best of one shard, in total order."""

    keys: Keys  # [Q, m]
    places: Places  # [Q, m]
    full: Keys | None = None  # [Q, m] keys of all planes, where `keys` are of the first ones
    counted: int = 0  # keywords of the segments that have candidates, whether they pass or not
    columns: Columns | None = None  # of the places one after the other, if the question asked for them


@dataclass(frozen=True)
class FoundWords(Answer):
    """The best of one shard by lexical score, as in `search.rerank.WordHits`."""

    places: Places  # [Q, m], −1 where there is no further one
    scores: npt.NDArray[np.float32]  # [Q, m]
    keys: Keys  # [Q, m]


@dataclass(frozen=True)
class SegmentShares(Answer):
    """The segments with candidates: {number in the whole index: whether all its keywords are candidates}."""

    whole: dict[int, bool]


@dataclass(frozen=True)
class ThreadCounts(Answer):
    """Candidates per thread of the published search, segment by segment."""

    parts: list[tuple[int, npt.NDArray[np.uint32]]]  # the first thread, and the counts from it on


@dataclass(frozen=True)
class Records(Answer):
    """Keywords by id; None for ids that this shard does not have."""

    records: list[dict[str, Any] | None]


@dataclass(frozen=True)
class Coded(Answer):
    """The codes of those of the wanted ids that this shard has."""

    found: npt.NDArray[np.int64]  # which of them
    planes: npt.NDArray[np.uint64]  # [planes, found, words]


@dataclass(frozen=True)
class Ready(Answer):
    """The shard has opened and checked its share."""

    keywords: int


@dataclass(frozen=True)
class Failure(Answer):
    """Why there is no answer.

    busy    the queue is full: another replica may have room
    late    the client's time was up before the work began
    gone    a file of the view is not there: the index has moved on, or this node does not see it
    error   anything else; the question may be wrong, or this node may be
    """

    kind: Literal["busy", "late", "gone", "error"]
    error: RbegirError
    node: str


@dataclass(frozen=True)
class About:
    """A shard process in words, and whether it can do what it was made for."""

    node: str
    pid: int
    rbegir: str
    layout: int
    format: int
    error: RbegirError | None = field(default=None)


MESSAGES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        SearchRequest, Scan, Columns, Found, FoundWords, SegmentShares, ThreadCounts, Records, Coded, Ready,
        Failure, About,
    )
}  # fmt: skip


def pack(value: Any) -> Any:
    """A message in plain values."""
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ["objects", list(value.shape), [pack(one) for one in value.ravel()]]
        return ["array", value.dtype.str, list(value.shape), value.tobytes()]
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is tuple:
        return ["tuple", [pack(one) for one in value]]
    if type(value) is list:
        return ["list", [pack(one) for one in value]]
    if type(value) is dict:
        return ["dict", [pack(key) for key in value], [pack(one) for one in value.values()]]
    if type(value).__name__ in MESSAGES:
        return ["message", type(value).__name__, [pack(getattr(value, f.name)) for f in fields(value)]]
    return value


def unpack(plain: Any) -> Any:
    """The message again. Arrays are read-only."""
    if type(plain) is not list:
        return plain
    match plain:
        case ["array", dtype, shape, data]:
            return np.ndarray(shape, dtype, data)
        case ["objects", shape, values]:
            array = np.empty(len(values), object)
            for i, one in enumerate(values):
                array[i] = unpack(one)
            return array.reshape(shape)
        case ["tuple", values]:
            return tuple(unpack(one) for one in values)
        case ["list", values]:
            return [unpack(one) for one in values]
        case ["dict", keys, values]:
            return {unpack(key): unpack(value) for key, value in zip(keys, values, strict=True)}
        case ["message", name, values]:
            return MESSAGES[name](*(unpack(one) for one in values))
    raise TypeError(f"not a packed message: {plain!r}")
