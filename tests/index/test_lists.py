"""Attributes that are lists: stored, read back, filtered, exported, served and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rbegir
from rbegir.errors import CorruptError, InputError, MismatchError
from rbegir.index import columns
from rbegir.index.exchange.files import export_parquet
from rbegir.index.store import Index
from rbegir.read.pairs import read_texts
from tests.index.fakes import HashEncoder

ENCODER = HashEncoder()


def some_lists(count: int, seed: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    words = ["red", "", "it's", "größe", "x" * 300]

    def lists(options: list[Any]) -> list[Any]:
        drawn = [[options[i] for i in rng.integers(len(options), size=rng.integers(5))] for _ in range(count)]
        return [None if rng.random() < 0.2 else one for one in drawn]

    return {"tags": lists(words), "nums": lists([-9, 0, 2, 7])}


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_stored_is_read_back(tmp_path: Path, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through merges, updates, deletes and compaction; also with 64-bit offsets."""
    if wide:
        monkeypatch.setattr(columns, "INT32_LIMIT", 100)
    wanted: dict[int, dict[str, Any]] = {}
    with Index.create(tmp_path / "x.rbe", ENCODER) as index:
        for step, count in enumerate([1, 700, 64, 3, 65, 1]):
            ids = [1000 * step + i for i in range(count)]
            made = some_lists(count, step)
            numbers = pa.array(made["nums"], pa.list_(pa.int64()))
            given: Any = made if step % 2 else pa.table({**made, "nums": numbers})
            index.add([f"w{i}" for i in ids], ids, None if step == 3 else given)
            for i, one in enumerate(ids):
                wanted[one] = {name: None if step == 3 else made[name][i] for name in made}
        index.update([1000, 1001], {"tags": [["new"], None]})
        wanted[1000]["tags"], wanted[1001]["tags"] = ["new"], None
        for one in range(1100, 1200):
            del wanted[one]
        assert index.delete(list(range(1100, 1200))) == 100
        for _ in range(2):
            found = {row["id"]: {"tags": row["tags"], "nums": row["nums"]} for row in index.rows()}
            assert found == wanted
            hits = index.search("w", len(wanted))
            assert {hit.id: dict(hit.attributes or {}) for hit in hits[0]} == wanted
            having = [one for one, row in wanted.items() if "red" in (row["tags"] or [])]
            found_ids = index.search("w", 9999, where="contains(tags, 'red')").ids[0].tolist()
            assert sorted(found_ids) == sorted(having)
            index.verify()
            index.compact()


def test_files_in_and_out(tmp_path: Path) -> None:
    made = some_lists(50, 1)
    table = pa.table({"text": [f"w{i}" for i in range(50)], "place": [{"x": 1}] * 50, **made})
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"the type struct<x: int64>, which cannot be stored") as refused:
        Index.build(tmp_path / "x.rbe", ENCODER, read_texts(tmp_path / "in.parquet"))
    assert "--columns" in refused.value.hint
    with pytest.raises(InputError, match="has no attribute 'tag'"):
        read_texts(tmp_path / "in.parquet", columns=["tag"])
    lines = [json.dumps({"text": f"w{i}", **{name: of[i] for name, of in made.items()}}) for i in range(50)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    for name in ("in.parquet", "in.jsonl"):
        stream = read_texts(tmp_path / name, columns=["tags", "nums"])
        with Index.build(tmp_path / "x.rbe", ENCODER, stream, overwrite=True) as index:
            assert index.info()["attributes"] == {"tags": "list<item: string>", "nums": "list<item: int64>"}
            assert [row["tags"] for row in index.rows()] == made["tags"]
            (tmp_path / "out.parquet").unlink(missing_ok=True)
            export_parquet(index, tmp_path / "out.parquet")
        assert pq.read_table(tmp_path / "out.parquet")["nums"].to_pylist() == made["nums"]


def test_refusals(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", ENCODER) as index:

        def add(values: Any) -> None:
            index.add(["w"], attributes={"tags": values})

        with pytest.raises(InputError, match=r"attributes\['tags'\] holds None"):
            add([["a", None]])
        with pytest.raises(InputError, match=r"list<item: double>, which cannot be stored"):
            add([[0.5]])
        with pytest.raises(InputError, match=r"list<item: list<item: string>>, which cannot be stored"):
            add([[["a"]]])
        with pytest.raises(InputError, match=r"attributes\['tags'\]\[0\] has more than 32767 bytes"):
            add([["x"] * 20_000])
        add([["x"] * 100])
        add([[]])  # of the type that is known
        with pytest.raises(MismatchError, match="list<item: int64>, in this index it is list<item: string>"):
            add([[3]])
        with pytest.raises(MismatchError, match="has the type string, in this index it is list"):
            add(["a"])
        assert index.count("contains(tags, 'x')") == 1


def test_a_list_that_points_past_its_items_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets with right checksums and wrong values raise, and never read elsewhere."""
    right = columns._write_offsets

    def wrong(writer: Any, name: str, dtype: Any, chunks: Any, length: Any) -> None:
        if not name.endswith("lists"):
            return right(writer, name, dtype, chunks, length)
        writer.section(name, np.array(made, "<i8"))
        return None

    monkeypatch.setattr(columns, "_write_offsets", wrong)
    made: list[int] = []
    for number, made[:] in enumerate(([0, 3, 2], [0, 2, 2**40], [0, -1, 3], [-5, 1, 3], [0, 1, 4])):
        for values in (["a", "b", "c"], [1, 2, 3]):
            path = tmp_path / f"{number}-{values[0]}.rbe"
            with Index.create(path, ENCODER) as index:
                index.add(["v", "w"], attributes={"tags": [values, []]})
                with pytest.raises(CorruptError):
                    index.search("w", 2)
                with pytest.raises(CorruptError):
                    index.verify()


def test_over_http(tmp_path: Path) -> None:
    from tests.serve.conftest import listening

    with Index.create(tmp_path / "x.rbe", ENCODER) as index:
        index.add(["w"], [0], {"tags": [["red", "blue"]]})
    with (
        listening(rbegir.Index.open(tmp_path / "x.rbe", model=ENCODER)) as address,
        rbegir.Client(address) as client,
    ):
        client.upsert(["v", "u"], [1, 2], {"tags": [["red"], []], "sizes": [[38, 39], None]})
        body = {"keywords": [{"id": 3, "text": "t", "attributes": {"tags": ["green"], "sizes": []}}]}
        assert httpx.post(f"{address}/v1/keywords", json=body).status_code == 200
        body["keywords"][0]["attributes"] = {"tags": [["red"]]}  # type: ignore[dict-item]
        assert httpx.post(f"{address}/v1/keywords", json=body).status_code == 422
        hits = client.search("w", 9, where="contains(tags, 'red')")
        assert sorted((hit.id, hit.attributes["tags"], hit.attributes["sizes"]) for hit in hits[0]) == [  # type: ignore[index]
            (0, ["red", "blue"], None),
            (1, ["red"], [38, 39]),
        ]
        asked = {"queries": ["w"], "where": "sizes in (39, 40)"}
        (found,) = httpx.post(f"{address}/v1/search", json=asked).json()["results"]
        assert [(hit["id"], hit["attributes"]) for hit in found["hits"]] == [
            (1, {"tags": ["red"], "sizes": [38, 39]})
        ]
        assert client.get([3]) == [{"id": 3, "text": "t", "tags": ["green"], "sizes": []}]
