"""MaxSim equals plain NumPy, to the last bit, whatever the index went through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rbegir
from rbegir._native import _core, available_isas
from rbegir.codes.planes import Codes
from rbegir.errors import InputError
from rbegir.index.store import Index
from tests.index.fakes import HashEncoder, random_codes

Row = tuple[float, Any, int]  # score, item, id


def expected(
    codes: Codes, query: npt.NDArray[np.int16], items: list[Any], passes: npt.NDArray[np.bool_]
) -> list[Row]:
    """All items in order. Of items that share a name, keywords that pass count; ids are rows."""
    values = codes.values().astype(np.float64)
    matches = query.astype(np.float64) @ values.T * (1 / np.sqrt((values**2).sum(axis=1)))  # [vectors, rows]
    norms = np.sqrt((query.astype(np.float64) ** 2).sum(axis=1))
    inverse = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    rows_of: dict[Any, list[int]] = {}
    for row, item in enumerate(items):
        if item != "deleted":
            rows_of.setdefault(("alone", row) if item is None else item, []).append(row)
    found = []
    for rows in rows_of.values():
        if kept := [row for row in rows if passes[row]]:
            best, score = matches[:, kept].max(axis=1) * inverse, 0.0
            for start in range(0, len(best), 32):
                block = np.zeros(32)
                block[: len(best[start : start + 32])] = best[start : start + 32]
                while len(block) > 1:
                    block = block[: len(block) // 2] + block[len(block) // 2 :]
                score += float(block[0])
            found.append((-score, rows[0], items[rows[0]], kept[0]))
    return [(-score, item, row) for score, _, item, row in sorted(found, key=lambda one: one[:2])]


def rows(table: Any) -> list[Row]:
    columns = table.to_pydict()
    assert columns["rank"] == list(range(1, len(table) + 1))
    return list(zip(columns["score"], columns["item"], columns["id"], strict=True))


@pytest.mark.parametrize(
    ("n", "planes", "count", "names"),
    [
        (64, 2, 400, 40),
        (64, 1, 65, 1),  # all keywords are of one item
        (64, 4, 63, 63),  # and of an item each
        (128, 3, 64, 9),
        (1024, 4, 130, 20),
        (192, 2, 1, 1),
        (64, 2, 1500, 900),  # items for several threads
    ],
)
def test_equal_to_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, planes: int, count: int, names: int
) -> None:
    rng = np.random.default_rng(n + count)
    codes = random_codes(max(1, count // 3), n, planes)[rng.integers(0, max(1, count // 3), count)]  # ties
    items: list[Any] = [f"{number % names}" for number in rng.permutation(count)]
    items[1:-1:7] = [None] * len(items[1:-1:7])
    flag = rng.integers(0, 4, count)
    with Index.create(tmp_path / "x.rbe", n=n, keyword_planes=planes, threads=3) as index:
        for part in np.split(np.arange(count), [count // 5, count // 2]):
            attributes = {"document": [items[i] for i in part], "flag": flag[part].tolist()}
            index.add_codes(codes[part], attributes=attributes)
        for deleted in ([], list(range(2, count, 3))):
            index.delete(deleted)
            for row in deleted:
                items[row] = "deleted"
            for isa in available_isas():
                monkeypatch.setenv("RBEGIR_ISA", isa)
                for vectors, most, where in (
                    (1, 7, None),
                    (5, 255, "flag < 2"),
                    (32, 3, None),
                    (33, 7, "flag < 2"),
                    (40, 255, None),
                ):
                    query = rng.integers(-most, most + 1, (vectors, n)).astype(np.int16)
                    query[vectors // 2] = 0
                    whole = expected(codes, query, items, flag < (4 if where is None else 2))
                    k = int(rng.choice([1, 6, 1000]))
                    assert rows(index.maxsim(query, k, item="document", where=where)) == whole[:k]


def test_queries_in_every_form(tmp_path: Path) -> None:
    model = HashEncoder()
    texts = [f"w{number}" for number in range(30)]
    with Index.create(tmp_path / "x.rbe", model, tenant="shop") as index:
        documents, shops = [i // 3 for i in range(30)], [i % 2 for i in range(30)]
        index.add(texts, attributes={"document": documents, "shop": shops})
        one = rows(index.maxsim(["w4", "w5"], 3, item="document"))
        assert one[0][1] == 1
        codes = model.encode_queries(["w4", "w5"])
        assert rows(index.maxsim(codes, 3, item="document")) == one
        assert rows(index.maxsim(codes.values(), 3, item="document")) == one
        several = index.maxsim([["w4", "w5"], codes, ["w20"]], 3, item="document")
        assert several["query"].to_pylist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert rows(several.slice(0, 3)) == rows(several.slice(3, 3)) == one
        assert several["item"].to_pylist()[6] == 6
        own = index.maxsim("w4", 30, item="document", tenant=1)
        assert all(number % 2 for number in own["id"].to_pylist())
        single = index.search("w4", 30, item="document", tenant=1)
        assert own["item"].to_pylist() == [hit.attributes["document"] for hit in single[0] if hit.attributes]
        assert np.allclose(own["score"], single.scores[0], rtol=0, atol=1e-6)
        assert len(index.maxsim("w4", 3, item="document", where="id < 0")) == 0
        index.delete(list(range(29)))
        assert index.maxsim("w4", 3, item="document")["id"].to_pylist() == [29]


def test_refusals(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add(["a", "b"], attributes={"document": ["x", None]})
        with pytest.raises(InputError, match="item must be an attribute, got 'id'"):
            index.maxsim("a", item="id")
        with pytest.raises(InputError, match="maxsim takes one filter for all queries"):
            index.maxsim("a", item="document", where=["id < 1"])
        with pytest.raises(InputError, match="query 1 has no vectors"):
            index.maxsim([["a"], np.zeros((0, 64), np.int8)], item="document")
        for empty in ([], (), np.zeros((0, 64), np.int8), np.zeros((0, 64)), [[]]):
            with pytest.raises(InputError, match="query 0 has no vectors"):
                index.maxsim(empty, item="document")
        with pytest.raises(rbegir.RbegirError, match="k must be"):
            index.maxsim("a", 0, item="document")
    binarizer = rbegir.Binarizer(64).fit(np.random.default_rng(1).standard_normal((90, 64)))
    for index in (
        Index.create(tmp_path / "y.rbe", n=64, keyword_planes=2),
        Index.create(tmp_path / "z.rbe", binarizer),
    ):
        with index, pytest.raises(InputError, match="query 0 has no vectors"):
            index.maxsim([], item="document")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planes": 5}, "n, planes or threads out of range"),
        ({"starts": np.array([0, 2, 1, 3])}, "starts must be"),
        ({"starts": np.array([0, 1, 2, 4])}, "starts must be"),
        ({"parts": [(np.zeros(64, np.uint8), 3, None, 0)]}, "packed is too small for its count"),
        ({"parts": [(np.zeros(512, np.uint8), 3, np.zeros(0, np.uint64), 0)]}, "mask is too small"),
        ({"parts": [(np.zeros(512, np.uint8), 3, None, 0)] * 2}, "parts must be in order"),
    ],
)
def test_the_native_call_reads_nothing_outside_its_buffers(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "parts": [(np.zeros(512, np.uint8), 3, None, 0)],
        "values": np.ones((1, 64), np.int16),
        "order": np.array([0, 2, 99]),  # a position outside all parts is no candidate
        "starts": np.array([0, 1, 2, 3]),
        "scores": np.empty(3),
        "first": np.empty(3, np.int64),
        "planes": 1,
        "threads": 1,
        "isa": "portable",
    }
    _core.maxsim(**given)
    assert given["first"].tolist() == [0, 2, -1]
    assert given["scores"].tolist() == [-1, -1, 0]
    with pytest.raises(ValueError, match=message):
        _core.maxsim(**{**given, **change})
