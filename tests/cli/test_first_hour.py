"""What a newcomer meets first: odd inputs, missing packages, and what objects show of themselves."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rbegir.base.arguments import MAX_TEXT_BYTES, check_texts
from rbegir.client.clients import AsyncClient, Client
from rbegir.cluster.client import Cluster
from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.encode.clsm.model import Model
from rbegir.errors import InputError, MismatchError
from rbegir.index.generations import Generations
from rbegir.index.store import Index
from rbegir.read.pairs import read_pairs, read_texts
from rbegir.search.request import OPTIONS
from tests.cli.test_index_cli import model, rbegir
from tests.index.fakes import HashEncoder

__all__ = ["model"]  # a fixture


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def ids_of(path: Path, **options: Any) -> list[Any]:
    return [key for batch in read_texts(path, **options) for key in batch["id"].to_pylist()]


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_ids_with_leading_zeros_stay_as_they_are(tmp_path: Path, suffix: str) -> None:
    def rows(*ids: str) -> Path:
        mark = "," if suffix == "csv" else "\t"
        lines = [f"text{mark}id", *(f"word {i}{mark}{key}" for i, key in enumerate(ids))]
        return written(tmp_path / f"x.{suffix}", "\n".join(lines) + "\n")

    assert ids_of(rows("00123", "7")) == ["00123", "7"]
    assert ids_of(rows("123", "-7", "0")) == [123, -7, 0]
    assert ids_of(rows("1e3", "4")) == ["1e3", "4"]
    assert ids_of(rows("123", "7"), id_type="string") == ["123", "7"]
    assert ids_of(rows("00123", "7"), id_type="int64") == [123, 7]
    stream = read_texts(rows("1", "", "3"))
    assert [key for batch in stream for key in batch["id"].to_pylist()] == [1, 3]
    assert stream.skipped.to_dict() == {"missing field or null": 1}
    with pytest.raises(InputError, match=r"has an id that is not a whole number: .*p1"):
        ids_of(rows("p1", "7"), id_type="int64")


def test_the_command_keeps_ids_too(model: Path, tmp_path: Path) -> None:
    table = written(tmp_path / "x.csv", "id,text,price\n00123,red shoes,3\n00007,green tea,4\n")
    out = tmp_path / "x.rbe"
    assert rbegir("index", "build", model, table, "--out", out, "--json").json["id_type"] == "string"
    more = written(tmp_path / "more.csv", "id,text\n5,black tea\n")  # strings, as those of the index
    assert rbegir("index", "add", out, more, "--json").json["added"] == 1
    numbers = rbegir(
        "index", "build", model, table, "--out", tmp_path / "y.rbe", "--id-type", "int64", "--json"
    )
    assert numbers.json["id_type"] == "int64"
    wrong = rbegir("index", "build", model, table, "--out", tmp_path / "z.rbe", "--id-type", "int")
    assert wrong.err.splitlines()[0] == "error: --id-type must be int64 or string, got 'int'"


def test_a_text_that_is_too_long_is_skipped_and_counted(model: Path, tmp_path: Path) -> None:
    long = "long " * (MAX_TEXT_BYTES // 5 + 1)
    texts = written(tmp_path / "x.txt", f"red shoes\n{long}\ngreen tea\n")
    done = rbegir("index", "build", model, texts, "--out", tmp_path / "x.rbe", "--json")
    assert (done.status, done.json["keywords"]) == (0, 2)
    assert done.json["skipped"] == {"a text of more than 32,767 bytes": 1}
    rows = [{"text": "tea", "about": long}, {"text": "hat", "about": "short"}]
    table = written(tmp_path / "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [batch["text"].to_pylist() for batch in read_texts(table)] == [["hat"]]
    strict = rbegir("index", "build", model, texts, "--out", tmp_path / "y.rbe", "--strict")
    assert "x.txt, line 2: a text of more than 32,767 bytes" in strict.err


def test_standard_input(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))

    out = tmp_path / "x.rbe"
    typed("red shoes\ngreen tea\n")
    assert rbegir("index", "build", model, "-", "--out", out, "--json").json["keywords"] == 2
    typed("black tea")
    assert rbegir("index", "add", out, "-", "--json").json["added"] == 1
    typed("green tea\n\nred shoes\n")
    found = rbegir("search", out, "-", "-k", 1, "--no-rerank", "--json").json
    assert [(result["query"], result["hits"][0]["id"]) for result in found] == [
        ("green tea", 1),
        ("red shoes", 0),
    ]
    typed("")
    assert rbegir("index", "add", out, "-").err.splitlines()[0] == "error: standard input is empty"


def test_the_columns_of_hits(model: Path, tmp_path: Path) -> None:
    table = written(tmp_path / "x.csv", "text,price,lang\nred shoes,3,en\ngreen tea,4,de\n")
    out = tmp_path / "x.rbe"
    rbegir("index", "build", model, table, "--out", out)
    everything, one, none = (
        rbegir("search", out, "red shoes", *more).out
        for more in ((), ("--columns", "lang"), ("--columns", ""))
    )
    assert ("price" in everything, "lang" in everything) == (True, True)
    assert ("price" in one, "lang" in one) == (False, True)
    assert ("price" in none, "lang" in none) == (False, False)
    wrong = rbegir("search", out, "red shoes", "--columns", "prise")
    assert wrong.err.splitlines() == ["error: hits have no attribute 'prise'", "hint: --columns: price, lang"]


BLOCKED = """
import sys

names = sys.argv[1].split(",")

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
sys.argv[:2] = ["rbegir"]
from rbegir.cli import main
main()
"""
EXTRAS = "torch,scipy,sklearn,pandas,safetensors,ray,starlette,uvicorn,httpx,matplotlib,jinja2,faiss,triton"


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("train pairs.csv --out m", "training needs torch"),
        ("eval model --pairs pairs.csv", "this evaluation needs scipy"),
        ("eval model --pairs pairs.csv --gamma 9 --baseline", "this evaluation needs scipy"),
        ("eval model --pairs pairs.csv --gamma 9", None),
        ("bench train", "this command needs torch, which is not installed"),
        ("bench hits", "this command needs torch, which is not installed"),
        ("upgrade x.rbe pairs.csv --out m", "training needs torch"),
        ("demo", "the demo, which trains a model, needs torch"),
        ("reproduce", "training the models of the tables needs torch"),
        ("serve x.rbe", "the service needs starlette"),
        ("index build model pairs.csv --text-column query --out x.rbe", None),
    ],
)
def test_a_missing_package_is_named(model: Path, tmp_path: Path, command: str, needs: str | None) -> None:
    (tmp_path / "model").symlink_to(model)
    written(tmp_path / "pairs.csv", "query,keyword\nred hat,hat\ngreen tea,tea\n")
    arguments = [sys.executable, "-c", BLOCKED, EXTRAS, *command.split()]
    done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    if needs is None:
        assert done.returncode == 0
    else:
        error, hint = done.stderr.splitlines()
        assert (done.returncode, error) == (1, f"error: {needs}")
        assert hint.startswith("hint: pip install 'rbegir[")


@pytest.fixture(scope="module")
def vectors() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)


def test_vectors(tmp_path: Path, vectors: np.ndarray[Any, Any]) -> None:
    binarizer = Binarizer(64).fit(vectors)
    with Index.create(tmp_path / "x.rbe", binarizer) as index:
        assert index.add(vectors[:5]).tolist() == [0, 1, 2, 3, 4]
        assert index.upsert(vectors[5:7], [4, 99], {"price": [1, 2]}).tolist() == [4, 99]
        assert index.codes([0, 4, 99]) == binarizer.encode_keywords(vectors[[0, 5, 6]])
        assert (
            index.search(vectors[2], k=1).ids.tolist()
            == index.search(vectors[2:3], k=1).ids.tolist()
            == [[2]]
        )
        assert index.search(np.zeros(64, np.float32), k=2).ids.shape == (1, 2)
        assert index.add(np.zeros((1, 64), np.float32)).tolist() == [7]
        assert index.add([], ids=[]).tolist() == []
        with pytest.raises(InputError, match="Binarizer encodes vectors"):
            index.add(["a text"])
        other = Binarizer(64, seed=5).fit(vectors[::-1] * np.linspace(1, 2, 64, dtype=np.float32))
        with pytest.raises(MismatchError, match="the codes were made for an index with the fingerprint"):
            index.add_codes(other.encode_keywords(vectors[:3]))
        assert len(index.add_codes(binarizer.encode_keywords(vectors[:3])[1:])) == 2
    with Index.create(tmp_path / "y.rbe", n=64, keyword_planes=2) as bare:
        assert len(bare.add_codes(other.encode_keywords(vectors[:3]))) == 3


def test_a_single_vector_and_lists_of_numbers_are_taken(
    tmp_path: Path, vectors: np.ndarray[Any, Any]
) -> None:
    binarizer = Binarizer(64).fit(vectors)
    with Index.create(tmp_path / "x.rbe", binarizer) as index:
        assert index.add(vectors[:3].tolist(), attributes={"item": [0, 0, 1]}).tolist() == [0, 1, 2]
        assert index.add(list(vectors[3:5])).tolist() == [3, 4]
        assert index.add(vectors[5].tolist()).tolist() == [5]
        assert index.upsert(vectors[6], [6]).tolist() == [6]
        assert index.codes(range(7)) == binarizer.encode_keywords(vectors[:7])
        single, several = index.search(vectors[2:3], k=3), index.search(vectors[:2], k=3)
        for one in (vectors[2], vectors[2].tolist(), vectors[2].astype(object), [vectors[2]]):
            assert index.search(one, k=3).ids.tolist() == single.ids.tolist()
        for more in (vectors[:2].tolist(), list(vectors[:2]), tuple(map(tuple, vectors[:2].tolist()))):
            assert index.search(more, k=3).scores.tolist() == several.scores.tolist()
        values = binarizer.encode_queries(vectors[2:3]).values()
        assert index.search_codes(values[0], k=3).ids.tolist() == single.ids.tolist()
        assert next(index.scan(values[0], -1.0)).equals(next(index.scan(vectors[2].tolist(), -1.0)))
        assert (
            index.coarse_rows(values[0], 3, planes=1).tolist()
            == index.coarse_rows(values, 3, planes=1).tolist()
        )
        ranked = index.maxsim(vectors[:2], 1, item="item", where="item is not null")
        assert index.maxsim(vectors[:2].tolist(), 1, item="item", where="item is not null").equals(ranked)
        both = index.maxsim([vectors[:2], vectors[2]], 1, item="item", where="item is not null")
        assert both["item"].to_pylist() == [0, 1]
        for wrong in ([[0.5, 0.5], [0.5]], [[]], [True]):
            with pytest.raises(InputError):
                index.search(wrong)  # type: ignore[arg-type]
            with pytest.raises(InputError):
                index.add(wrong)  # type: ignore[arg-type]
        assert len(index) == 7


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    wrong: Any = {"top_k": 3}
    codes = np.ones((1, 64), np.int8)
    cluster = object.__new__(Cluster)  # options are checked before anything else
    with (
        Index.create(tmp_path / "x.rbe", HashEncoder()) as index,
        Generations([tmp_path / "x.rbe"], HashEncoder(), read_only=True) as generations,
        Client("http://127.0.0.1:9") as client,
    ):
        waiting = AsyncClient("http://127.0.0.1:9")
        for opened in (index, generations, client, cluster, waiting):
            for search, query in ((opened.search, "a"), (opened.search_codes, codes)):
                with pytest.raises(InputError, match="search has no option 'top_k'") as caught:
                    asyncio.run(search(query, **wrong))  # type: ignore[arg-type]
                assert "its options are k, where, " in caught.value.hint
        asyncio.run(waiting.close())
        for method, ask in {
            "scan": lambda options: index.scan("a", 0.5, **options),
            "maxsim": lambda options: index.maxsim("a", item="document", **options),
            "coarse_rows": lambda options: index.coarse_rows(codes, 3, planes=1, **options),
        }.items():
            for options in (wrong, {"mode": "paper"}):
                with pytest.raises(
                    InputError, match=f"{method} has no option '{next(iter(options))}'"
                ) as caught:
                    ask(options)
                assert caught.value.hint == "its options are where, allow, deny, must, tenant"
        with pytest.raises(InputError, match="coarse_rows has no option 'top_k'"):
            cluster.coarse_rows(codes, 3, planes=1, **wrong)


def test_help_lists_the_options_of_every_search() -> None:
    for opened in (Index, Generations, Client, AsyncClient, Cluster):
        for method in (opened.search, opened.search_codes):
            for name in OPTIONS:
                assert name == "k" or f"            {name}: {OPTIONS[name][1]}" in (method.__doc__ or "")


def test_what_objects_show_of_themselves(model: Path, tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add(["<b>bold</b>", "plain"], attributes={"price": [1, None]})
        page = index.search("plain", k=2)._repr_html_()
    assert "<p>Hits(1 queries × 2)</p>" in page
    assert "<tr><th>query</th><th>rank</th><th>id</th><th>score</th><th>text</th><th>price</th></tr>" in page
    assert "<td>&lt;b&gt;bold&lt;/b&gt;</td><td>1</td></tr>" in page
    assert page.count("<tr>") == 3
    loaded = Model.load(model)
    planes = "3 query planes, 2 keyword planes"
    wanted = f"Model({str(model)!r}, n = 64, {planes}, fingerprint {loaded.fingerprint[:8]})"
    assert repr(loaded) == wanted


def test_pairs_in_memory() -> None:
    pandas = pytest.importorskip("pandas")
    pairs = [("red hat", "hats"), ("green tea", "teas")]
    columns = {"query": [query for query, _ in pairs], "keyword": [keyword for _, keyword in pairs]}
    for given in (
        pairs,
        [list(pair) for pair in pairs],
        [dict(zip(columns, pair, strict=True)) for pair in pairs],
        pa.table(columns),
        pandas.DataFrame(columns),
    ):
        stream = read_pairs(given)
        for _ in range(2):  # each epoch reads it again
            assert stream.read_all().to_pydict() == {**columns, "weight": [1.0, 1.0]}
        folder = stream.path.parent
        del stream
        assert not folder.exists()
    weighted = read_pairs([("red hat", "hats", 2.5)]).read_all()
    assert weighted["weight"].to_pylist() == [2.5]
    assert read_texts(["red hat", "green tea"]).read_all()["text"].to_pylist() == ["red hat", "green tea"]
    for wrong in (7, [], [1, 2], [("a", "b"), ("c",)]):
        with pytest.raises(
            InputError, match="expected a path, a DataFrame, an Arrow table or a list of rows"
        ):
            read_pairs(wrong)
    with pytest.raises(InputError, match="the rows do not make a table"):
        read_pairs([("a", 1), ("b", "c")])


def test_texts_in_memory() -> None:
    pandas = pytest.importorskip("pandas")
    names = ["Müller GmbH", "Acme Inc"]
    frame = pandas.DataFrame({"name": [*names, None]})
    gaps = [*names, float("nan")], (*names, None), [*names, pandas.NA]
    numpy_column = frame["name"].to_numpy(dtype=object)
    for given in (
        *gaps,
        frame["name"],
        numpy_column,
        pa.array([*names, None]),
        pa.chunked_array([names, [None]]),
    ):
        stream = read_texts(given)
        assert stream.read_all().to_pydict() == {"text": names}
        assert stream.skipped.to_dict() == {"missing field or null": 1}
    rows = read_texts([{"text": "a"}, {"text": "b", "id": 3}], id_type="int64").read_all()
    assert rows.to_pydict() == {"text": ["a", "b"], "id": [None, 3]}


def test_a_table_in_place_of_texts_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="texts must be a list of texts, got DataFrame") as caught:
        check_texts(pandas.DataFrame({"name": ["a"]}))
    assert caught.value.hint == "give one of its columns"
    with pytest.raises(InputError, match=r"texts\[1\] is None, expected a text"):
        check_texts(["a", float("nan")])


class ArrowStream:
    """All that a DataFrame of polars or a relation of DuckDB is known by here."""

    def __init__(self, table: pa.Table | pa.ChunkedArray) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self._table)

    def to_dict(self) -> None:
        raise AssertionError("this is not pandas")

    columns = property(to_dict)


def test_whatever_offers_an_arrow_stream(tmp_path: Path) -> None:
    views = pa.array(["red hat", "green tea"], pa.string_view())  # as polars has them
    categories = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.uint32()), views)
    tags = pa.array([["new"], []], pa.large_list(pa.string_view()))
    table = pa.table({"text": views, "id": [7, 8], "tags": tags})
    assert read_texts(ArrowStream(table)).read_all()["text"].to_pylist() == ["red hat", "green tea"]
    pairs = read_pairs(ArrowStream(pa.table({"query": views, "keyword": categories})))
    assert pairs.read_all()["keyword"].to_pylist() == ["red hat", "green tea"]
    wanted = [
        {"id": 7, "text": "red hat", "tags": ["new"]},
        {"id": 8, "text": "green tea", "tags": []},
    ]
    with Index.build(tmp_path / "x.rbe", HashEncoder(), ArrowStream(table)) as index:  # type: ignore[arg-type]
        assert list(index.rows()) == wanted
    with Index.create(tmp_path / "y.rbe", HashEncoder()) as index:
        texts, ids = ArrowStream(pa.chunked_array([categories])), ArrowStream(table["id"])
        index.add(texts, ids, ArrowStream(table.select(["tags"])))  # type: ignore[arg-type]
        assert list(index.rows()) == wanted
