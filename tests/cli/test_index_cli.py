"""`rbegir index` and `rbegir search`, as a shell sees them: stdout, stderr, exit status."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.cli import demo, main
from rbegir.cli.options import print_table
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.model import Model
from rbegir.encode.clsm.presets import ModelConfig, tensor_shapes
from rbegir.index.store import Index

TEXTS = ["red running shoes", "blue running shoes", "green tea", "black tea", "cheap flights to rome"]


COLUMNS = "200"  # of the terminal


class Done(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON value and nothing else."""
        return json.loads(self.out)


def rbegir(*arguments: object) -> Done:
    """The command in this process; any exception but the exit fails the test."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["rbegir", *map(str, arguments)])
        patch.setenv("COLUMNS", COLUMNS)
        with pytest.raises(SystemExit) as exit_:
            main()
    return Done(int(exit_.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of the smallest size: random, but it knows equal texts."""
    path = tmp_path_factory.mktemp("cli") / "model"
    config = ModelConfig(conv=16, hash_buckets=64)
    rng = np.random.default_rng(3)
    tensors = {
        name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in tensor_shapes(config).items()
    }
    for name in tensors:
        if name.startswith("keyword."):  # one tower for both sides, so that a text finds itself
            twin = tensors[name.replace("keyword.", "query.", 1)]
            tensors[name] = twin[: tensors[name].shape[0]]
    checkpoint.write(path, config, tensors)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "products.parquet"
    prices = [9.5, None, 3.0, 4.0, 49.0, 1.0, 1.0]
    columns = {"name": [*TEXTS, None, "!!!"], "sku": [f"p{i}" for i in range(7)], "price": prices}
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def built(model: Path, table: Path, tmp_path: Path) -> Path:
    path = tmp_path / "products.rbe"
    names = ["--text-column", "name", "--id-column", "sku"]
    done = rbegir("index", "build", model, table, "--out", path, *names, "--json")
    assert done.status == 0, done.err
    facts = done.json
    assert facts["keywords"] == 5
    assert facts["bytes_per_keyword"] == 16
    assert facts["attributes"] == {"price": "double"}
    assert facts["has_model"] is True
    assert sum(facts["skipped"].values()) == 2
    assert "skipped 2 of 7 rows" in done.err
    assert "hint: --strict" in done.err
    return path


def test_build_search_change_and_look(built: Path, tmp_path: Path) -> None:
    done = rbegir("search", built, *TEXTS[:2], "-k", 2, "--json")
    assert done.status == 0, done.err
    first, second = done.json
    assert (first["query"], second["query"]) == (TEXTS[0], TEXTS[1])
    assert first["hits"][0] == {
        "id": "p0", "text": TEXTS[0], "score": first["hits"][0]["score"],
        "code_score": first["hits"][0]["score"], "attributes": {"price": 9.5},
    }  # fmt: skip
    assert 0.9 < first["hits"][0]["score"] <= 1.0
    assert second["hits"][0]["id"] == "p1"
    filtered = rbegir("search", built, TEXTS[0], "--where", "price < 5 and id != 'p3'", "--json").json
    assert [hit["id"] for hit in filtered[0]["hits"]] == ["p2"]

    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "p0", "text": "crimson shoes", "price": 1}\n{"id": "p9", "text": "white tea"}\n')
    refused = rbegir("index", "add", built, more)
    assert refused.status == 1
    assert refused.err.splitlines()[-2:] == [
        "error: id 'p0' is in the index already (1 such ids)",
        "hint: use upsert to replace keywords",
    ]
    added = rbegir("index", "add", built, more, "--upsert", "--json")
    assert (added.json["added"], added.json["keywords"]) == (2, 6)
    assert rbegir("search", built, "crimson shoes", "-k", 1, "--json").json[0]["hits"][0]["id"] == "p0"

    listed = tmp_path / "ids"
    listed.write_text("p9\nnope\n")
    assert rbegir("index", "delete", built, "p1", "--from", listed, "--json").json["deleted_now"] == 2
    facts = rbegir("index", "info", built, "--json").json
    assert (facts["keywords"], facts["deleted"]) == (4, 3)
    assert rbegir("index", "compact", built, "--json").json["deleted"] == 0
    assert rbegir("index", "verify", built, "--json").json == {"ok": True, "damage": []}


def test_count_and_update(built: Path, tmp_path: Path) -> None:
    assert rbegir("index", "count", built).out == "5\n"
    assert rbegir("index", "count", built, "--where", "price < 9", "--json").json == {"keywords": 2}
    changes = tmp_path / "changes.csv"
    changes.write_text("id,price,text,color\np1,0.5,not stored,red\np2,,neither,blue\n")
    done = rbegir("index", "update", built, changes, "--columns", "price", "--json")
    assert done.status == 0, done.err
    assert (done.json["updated"], done.json["keywords"]) == (2, 5)
    assert done.json["attributes"] == {"price": "double"}
    with Index.open(built, read_only=True) as index:
        assert index.get(["p1", "p2"]) == [
            {"id": "p1", "text": TEXTS[1], "price": 0.5},
            {"id": "p2", "text": TEXTS[2], "price": None},
        ]
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"sku": "p0", "color": "red"}\n{"sku": "p4", "color": "blue"}\n')
    assert rbegir("index", "update", built, rows, "--id-column", "sku", "--json").json["updated"] == 2
    assert rbegir("index", "count", built, "--where", "color = 'red'").out == "1\n"
    for text, error in (
        ('{"sku": "p0"}\n', f"error: {rows} has no attributes"),
        (
            '{"id": "p0", "color": "red"}\n',
            f"error: {rows} has no column 'sku'; its columns are 'id', 'color'",
        ),
        ('{"sku": "p77", "color": "red"}\n', "error: id 'p77' is not in the index"),
    ):
        rows.write_text(text)
        refused = rbegir("index", "update", built, rows, "--id-column", "sku")
        assert refused.status == 1
        assert refused.err.splitlines()[-2 if "hint" in refused.err else -1] == error


def test_texts_of_hits_stay_readable_beside_many_attributes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Index.create(tmp_path / "wide.rbe", Model.load(model)) as index:
        names = ("manufacturer", "category", "warehouse", "delivery", "warranty", "condition")
        index.add(["waterproof trail running shoes"], attributes={name: [f"some {name}"] for name in names})
    monkeypatch.setattr("tests.cli.test_index_cli.COLUMNS", "80")
    out = rbegir("search", tmp_path / "wide.rbe", "shoes").out
    assert "waterproof trail running" in out
    assert max(map(len, out.splitlines())) <= 80


def test_tenants_on_the_command_line(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "shops.rbe"
    with Index.create(path, Model.load(model), tenant="shop") as index:
        index.add(TEXTS, attributes={"shop": [7, 8, 7, 7, 8]})
    assert rbegir("index", "count", path, "--tenant", 8).out == "2\n"
    out = tmp_path / "pairs.parquet"
    done = rbegir("join", path, "--k", 1, "--tenant", 7, "--where", "id > 0", "--out", out, "--json")
    assert (done.json["queries"], done.json["keywords"], done.json["pairs"]) == (2, 2, 2)
    assert pq.read_table(out)["id"].to_pylist() == [2, 3]


def test_a_process_of_its_own(built: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from rbegir.cli import main; main()",
        "search",
        str(built),
        "tea",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [hit["id"] for hit in json.loads(done.stdout)[0]["hits"]]
    assert done.stderr == ""


def test_for_people(built: Path) -> None:
    shown = rbegir("search", built, TEXTS[3], "-k", 1)
    assert shown.status == 0
    assert TEXTS[3] in shown.out
    assert "p3" in shown.out
    assert "price" in shown.out
    assert "keywords" in rbegir("index", "info", built).out
    assert "every byte is as it was written" in rbegir("index", "verify", built).out


@pytest.mark.parametrize("options", [["--mode", "paper"], ["--planes", "1"]])
def test_other_ways_to_search(built: Path, options: list[str]) -> None:
    (result,) = rbegir("search", built, TEXTS[2], "-k", 1, *options, "--json").json
    assert result["hits"][0]["id"] == "p2"
    key = "expected_recall" if "paper" in options else "recall"
    assert 0 < result[key] <= 1
    assert "recall" in rbegir("search", built, TEXTS[2], "-k", 1, *options).out


def test_pages_and_everything_above_a_score(built: Path) -> None:
    """Pages continue for each query on its own."""

    def search(*options: object) -> Any:
        done = rbegir("search", built, "shoes", "tea", "--no-rerank", "--json", *options)
        assert done.status == 0, done.err
        return done.json

    whole, page = search("-k", 5), search("-k", 2)
    seen: list[list[Any]] = [[], []]
    while any(result["hits"] for result in page):
        seen = [old + result["hits"] for old, result in zip(seen, page, strict=True)]
        page = search("-k", 2, *(word for result in page for word in ("--after", result["cursor"])))
    assert seen == [result["hits"] for result in whole]
    least = whole[0]["hits"][2]["code_score"]
    assert [result["hits"] for result in search("--min-score", least)] == [
        [hit for hit in result["hits"] if hit["code_score"] >= least] for result in whole
    ]
    assert [result["hits"] for result in search("--min-score", 1.5)] == [[], []]


def test_damage(built: Path) -> None:
    segment = next(built.glob("segment-*.rbs"))
    data = bytearray(segment.read_bytes())
    data[100] ^= 4
    segment.write_bytes(data)
    done = rbegir("index", "verify", built, "--json")
    assert done.status == 1
    assert done.json["ok"] is False
    assert f"{segment} is damaged: block 0" in done.json["damage"][0]
    shown = rbegir("index", "verify", built)
    assert shown.status == 1
    assert f"damaged: {segment} is damaged: block 0" in shown.err
    searched = rbegir("search", built, "tea")
    assert searched.status == 1
    assert searched.err.startswith(f"error: {segment} is damaged: block 0")
    assert "hint: restore the file from a copy" in searched.err


def test_lines_and_row_ids(model: Path, tmp_path: Path) -> None:
    lines = tmp_path / "titles.txt"
    lines.write_text("\n".join(TEXTS) + "\n")
    path = tmp_path / "titles.rbe"
    assert rbegir("index", "build", model, lines, "--out", path).status == 0
    hit = rbegir("search", path, TEXTS[4], "-k", 1, "--json").json[0]["hits"][0]
    assert hit == {"id": 4, "score": hit["score"], "code_score": hit["score"], "text": TEXTS[4]}
    shown = subprocess.run(
        [sys.executable, "-m", "rbegir", "search", path, "café", "--json"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert json.loads(shown.stdout.decode("ascii"))[0]["query"] == "café"
    bad = rbegir("index", "delete", path, "4", "four")
    assert bad.status == 1
    assert "error: the ids of this index are 64-bit whole numbers, got 'four'" in bad.err
    for odd in ("0_4", "04", "+4", "٤", str(2**63)):  # none of which is 4
        assert rbegir("index", "delete", path, odd).status == 1
    assert rbegir("index", "delete", path, "4", "--json").json["keywords"] == 4
    again = rbegir("index", "build", model, lines, "--out", path)
    assert again.status == 1
    assert again.err.splitlines()[-2] == f"error: {path} exists already"
    assert (
        rbegir("index", "build", model, lines, "--out", path, "--overwrite", "--json").json["keywords"] == 5
    )


def test_ids_that_come_twice(model: Path, tmp_path: Path) -> None:
    file, path = tmp_path / "log.csv", tmp_path / "log.rbe"
    file.write_text('id,text\na,red tea\nb,"a ""quoted"" shoe"\n\na,green tea\n')
    refused = rbegir("index", "build", model, file, "--out", path)
    assert refused.status == 1
    assert "ids holds 'a' more than once" in refused.err
    assert "upsert" in refused.err
    assert rbegir("index", "build", model, file, "--out", path, "--upsert", "--json").json["keywords"] == 2
    with Index.open(path, read_only=True) as index:
        assert [record["text"] for record in index.get(["a", "b"]) if record] == [
            "green tea",
            'a "quoted" shoe',
        ]
    assert rbegir("index", "add", path, file, "--upsert", "--json").json["keywords"] == 2
    lines = tmp_path / "lines.txt"
    lines.write_text("no id\n")
    assert "name their column with --id-column" in rbegir("index", "add", path, lines).err
    mixed = rbegir("index", "build", model, file, "--out", path, "--upsert", "--cluster", "local")
    assert "--cluster refuses duplicate ids" in mixed.err


def test_an_index_whose_model_is_gone(built: Path) -> None:
    shutil.rmtree(built / "model")
    done = rbegir("search", built, "tea")
    assert done.err.splitlines() == [
        f"error: the model of {built} is gone: there is no {built / 'model'}",
        "hint: copy the model that the index was built with there",
    ]


def test_errors_are_one_line_and_a_hint(built: Path, tmp_path: Path) -> None:
    for arguments, message, hint in [
        (["search", tmp_path / "no", "x"], "there is no such directory", "create one with"),
        (["search", built, "x", "-k", "0"], "k must be a whole number of at least 1, got 0", ""),
        (
            ["search", built, "x", "--where", "cost < 3"],
            "there is no column 'cost'",
            "the columns are: id, price, text",
        ),
        (["search", built, "x", "--device", "cuda"], "torch finds no GPU", "use device='cpu'"),
        (["search", built, "x", "--mode", "fast"], "mode must be one of exact, paper", ""),
        (["search", built, "???"], "", ""),
        (["index", "delete", built], "there are no ids to delete", "--from FILE"),
        (["index", "delete", built, "--from", tmp_path / "no"], "no cannot be read: No such file", ""),
        (["index", "verify", tmp_path], "it has no MANIFEST", "create one with"),
        (["index", "info", __file__], "it is a file, and an index is a directory", "create one with"),
        (
            ["index", "build", built, "--out", tmp_path / "x"],
            f"expected MODEL and TEXTS, got {built}",
            "MODEL is",
        ),
    ]:
        done = rbegir(*arguments)
        assert done.status == 1
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert message in done.err
        assert hint in done.err
        assert len(done.err.splitlines()) <= 2


def test_a_locked_index_says_who_holds_it(built: Path) -> None:
    with Index.open(built) as index:
        index.delete(["p0"])
        done = rbegir("index", "compact", built)
        assert done.status == 1
        assert f"is being written by process {os.getpid()}" in done.err
        assert rbegir("search", built, "tea", "--json").status == 0


def test_what_is_stored_gives_no_orders_to_the_terminal(model: Path, tmp_path: Path) -> None:
    orders = "\x1b]0;pwned\x07 tea \x1b[2J\x9b31m\x7f \u202egnp.exe \u2066x\n"
    path = tmp_path / "x.rbe"
    with Index.create(path, Model.load(model), id_type="string") as index:
        index.add([orders], ids=["[red]\x1b[31m"], attributes={"\x1b[5mblink": [orders]})
    for more in ([], ["--json"]):
        done = rbegir("search", path, "tea", *more)
        assert done.status == 0, done.err
        assert not set(done.out) & (set(orders) - set(map(chr, range(32, 127))) - {"\n"})
        assert "pwned" in done.out
        assert "[red]" in done.out  # shown, and no markup
    (found,) = done.json
    assert found["hits"][0]["text"] == orders
    assert found["hits"][0]["attributes"] == {"\x1b[5mblink": orders}
    refused = rbegir("search", path, "tea", "--where", "\x1b[31m")
    assert refused.status == 1
    assert "\x1b" not in refused.err


def test_hostile_names_and_texts_are_shown_as_they_are_by_every_command(model: Path, tmp_path: Path) -> None:
    orders, unsafe = "\x1b]0;pwned\x07 tea [/x] \x9b31m\u202e", set("\x1b\x07\x9b\u202e")
    path, rows = tmp_path / "x.rbe", tmp_path / "rows.parquet"
    columns = {"id": ["a", "b"], "text": [orders, "tea"], "[/x]": [1, 2], orders: ["[/x]", orders]}
    pq.write_table(pa.table(columns), rows)
    commands: list[list[object]] = [
        ["index", "build", model, rows, "--out", path],
        ["index", "info", path],
        ["index", "add", path, rows, "--upsert"],
        ["index", "delete", path, "b"],
        ["index", "compact", path],
        ["search", path, orders],
        ["index", "verify", path],
        ["index", "backup", path, tmp_path / "copy.rbe"],
    ]
    for command in commands:
        done = rbegir(*command)
        assert done.status == 0, done.err
        assert not unsafe & set(done.out + done.err), command
        if command[1] not in ("verify", "backup"):
            assert "[/x]" in done.out, command
    assert rbegir("index", "info", path, "--json").json["attributes"] == {"[/x]": "int64", orders: "string"}


def test_tables_show_cells_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"[/x]": "[/y]", "b\x1b": "\x1b[31m"}, {"[/x]": "[bold]z", "b\x1b": "c"}]
    print_table(["[/x]", "b\x1b"], rows)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("[/x]", "[/y]", "[bold]z"))
    assert "\x1b" not in shown


def test_the_demo_shows_texts_as_they_are(model: Path, tmp_path: Path) -> None:
    odd = "tea [/x] \x1b]0;pwned"
    with Index.create(tmp_path / "x.rbe", Model.load(model)) as index:
        index.add([odd])
        hits = index.search([odd], 1)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
        patch.setenv("COLUMNS", COLUMNS)
        patch.setattr("rbegir.evaluate.evaluator.report_table", lambda _: "")
        demo._show({}, [odd], [odd], hits, hits)
    assert out.getvalue().count("tea [/x] \\u001b]0;pwned") == 5
    assert "\x1b" not in out.getvalue()


def test_join_writes_the_neighbors_of_every_keyword(built: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.parquet"
    done = rbegir("join", built, "--k", 2, "--texts", "--out", out, "--json")
    assert (done.status, done.json) == (0, {"pairs": 10, "queries": 5, "keywords": 5, "resumed_queries": 0})
    with Index.open(built, read_only=True) as index:
        assert pq.read_table(out) == index.neighbors(2, texts=True)
        again = rbegir("join", built, built, "--min-score", 0.5, "--out", tmp_path / "other.parquet")
        assert (again.status, again.err) == (0, "")
        assert pq.read_table(tmp_path / "other.parquet") == index.join(index, min_score=0.5)
    refused = rbegir("join", built, "--out", tmp_path / "nothing.parquet")
    assert (refused.status, refused.err.splitlines()[0]) == (1, "error: a join needs k, min_score or both")
    assert "exists already" in rbegir("join", built, "--k", 2, "--out", out).err


def test_tenants(model: Path, table: Path, tmp_path: Path) -> None:
    path = tmp_path / "products.rbe"
    ids = ["--text-column", "name", "--tenant", "sku"]
    refused = rbegir("index", "build", model, table, "--out", path, *ids[:-1], "price")
    assert "error: attributes['price'] must be strings or 64-bit integers" in refused.err
    assert rbegir("index", "build", model, table, "--out", path, *ids, "--json").json["tenant"] == "sku"
    found = rbegir("search", path, TEXTS[0], "--tenant", "p3", "--json").json
    assert [hit["text"] for hit in found[0]["hits"]] == [TEXTS[3]]
    found = rbegir("search", path, TEXTS[0], "--item", "sku", "-k", "4", "--json").json
    assert len({hit["attributes"]["sku"] for hit in found[0]["hits"]}) == 4
    assert rbegir("index", "delete", path, "--tenant", "p3", "--json").json["deleted_now"] == 1
    assert rbegir("index", "delete", path, "0", "1", "--tenant", "p1", "--json").json["deleted_now"] == 1
    assert rbegir("index", "info", path, "--json").json["keywords"] == 3


def test_backup_and_delete_by_filter(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.rbe"
    done = rbegir("index", "backup", built, copy, "--json")
    assert (done.status, done.json["keywords"], done.json["copied"]) == (0, 5, 1)
    assert rbegir("index", "delete", built, "--where", "price < 5", "--json").json["deleted_now"] == 2
    assert rbegir("index", "backup", built, copy).out == f"{copy}: 3 keywords; 1 of 2 files copied\n"
    assert rbegir("index", "verify", copy).status == 0
    both = rbegir("index", "delete", built, "p1", "--where", "price < 5")
    assert both.err.splitlines()[0] == "error: delete needs ids or where, and not both"
    (tmp_path / "no ids").write_text("")
    for given in (["--where", "price > 1"], ["--where", "price > 1", "--tenant", "a"]):
        refused = rbegir("index", "delete", built, "--from", tmp_path / "no ids", *given)
        assert refused.err.splitlines()[0] == "error: delete needs ids or where, and not both"


def test_the_bar_shows_what_is_encoded(
    model: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def report(bar: Any, done: float, total: float) -> None:
        shares.append(done / total)

    monkeypatch.setattr("rbegir.base.progress._LateBar.report", report)
    monkeypatch.setattr("rbegir.encode.encoder.ENCODE_ROWS", 2)
    path = tmp_path / "products.rbe"
    names = ["--text-column", "name", "--id-column", "sku"]
    rbegir("index", "build", model, table, "--out", path, *names)
    assert shares == pytest.approx([0.4, 0.8, 1, 1])
    shares.clear()
    rbegir("index", "add", path, table, *names, "--upsert")
    assert shares == pytest.approx([0.4, 0.8, 1, 1])
