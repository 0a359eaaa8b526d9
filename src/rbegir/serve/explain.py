"""What a person wants to see of a hit: its bits, and how its rank changes plane by plane.

`planes` are the bits of a code as hexadecimal strings, one a plane, dimension 0 first: it is the highest bit
of the first digit, and a set bit means +1. `ranks[t−1]` is the rank of the keyword among all that pass the
filter when keywords are scored by their first t planes only (the query always by all of its own); the last
is its rank in the result. Ranks by fewer planes are looked up in the best DEPTH by those planes, and null
beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.codes.planes import Codes
from rbegir.errors import InputError
from rbegir.index.query import Filters
from rbegir.serve.batcher import Piece
from rbegir.serve.engine import Explaining
from rbegir.serve.schema import MAX_QUERY_PLANES

DEPTH = 10_000


def hex_planes(codes: Codes) -> list[list[str]]:
    """[count][planes] hexadecimal strings of n / 4 digits."""
    packed = np.packbits(codes.signs(), axis=2)  # [planes, count, n / 8], the highest bit first
    planes = [[row.tobytes().hex() for row in plane] for plane in packed]
    return [list(of_code) for of_code in zip(*planes, strict=True)]


def query_values(given: Sequence[list[str] | list[int]], n: int) -> npt.NDArray[np.int16]:
    """Codes as a request has them (hexadecimal planes, or n integers) → values [count, n]."""
    return np.concatenate([_values_of(code, n, f"codes.{number}") for number, code in enumerate(given)])


def _values_of(code: list[str] | list[int], n: int, argument: str) -> npt.NDArray[np.int16]:
    if not code or not isinstance(code[0], str):
        if len(code) != n:
            raise InputError(f"{argument} has {len(code)} integers, expected n = {n}")
        return np.array([code], np.int16)
    if len(code) > MAX_QUERY_PLANES:
        raise InputError(f"{argument} has {len(code)} planes, expected 1 to {MAX_QUERY_PLANES}")
    planes = [str(plane) for plane in code]
    for t, plane in enumerate(planes):
        if len(plane) != n // 4:
            raise InputError(f"{argument}.{t} has {len(plane)} digits, expected {n // 4} for n = {n}")
    raw = np.frombuffer(bytes.fromhex("".join(planes)), np.uint8).reshape(len(planes), 1, n // 8)
    return Codes.from_signs(np.unpackbits(raw, axis=2).astype(np.bool_)).values()


def query_planes(values: npt.NDArray[np.int16]) -> list[list[str]]:
    """The planes that odd integers stand for; a query given as other integers is shown by its sign."""
    shown: list[list[str]] = []
    for row in values:
        odd = bool(np.all(row % 2 != 0))
        planes = max(1, int(np.abs(row).max()).bit_length()) if odd else 1
        codes = Codes.from_values(row[None], planes) if odd else Codes.from_signs((row > 0)[None, None])
        shown += hex_planes(codes)
    return shown


def explain(engine: Explaining, piece: Piece, keyword_planes: int, filters: Filters) -> list[dict[str, Any]]:
    """For each query of a piece: `query_planes`, and for each hit `planes` and `ranks`."""
    values = piece.values[piece.start : piece.start + piece.count]
    k = min(piece.k, piece.hits.k)
    rows = piece.hits.rows[piece.start : piece.start + piece.count, :k]
    ids = piece.hits.ids[piece.start : piece.start + piece.count, :k]
    coarse = [
        engine.coarse_rows(values, DEPTH, planes=planes, **filters) for planes in range(1, keyword_planes)
    ]  # each [queries, ≤ DEPTH]
    explained: list[dict[str, Any]] = []
    for number, shown in enumerate(query_planes(values)):
        ranks = [{row: rank for rank, row in enumerate(found[number].tolist(), 1)} for found in coarse]
        hits = [
            {"planes": planes, "ranks": [*(of.get(row) for of in ranks), place]}
            for place, (planes, row) in enumerate(
                zip(hex_planes(engine.codes(ids[number])), rows[number].tolist(), strict=True), 1
            )
        ]
        explained.append({"query_planes": shown, "hits": hits})
    return explained
