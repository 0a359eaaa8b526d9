"""The whole on a toy: runs, going on after an interruption, tables, report, command line."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from rbegir import cli
from rbegir.errors import CorruptError, FileError, InputError
from rbegir.lab.reproduce import job, report, runs
from rbegir.lab.reproduce.job import Request, make, read_results, tables_of, write_report
from rbegir.lab.reproduce.rows import FULL, TABLES, chosen, rows
from rbegir.lab.reproduce.runs import ReproduceJob

from .conftest import NAMES, TOY, Json


def test_every_run_is_measured(result: Json) -> None:
    found = {(run["row"], run["seed"]): run for run in result["runs"]}  # type: ignore[index, attr-defined]
    assert set(found) == {(name, seed) for name in NAMES[:-1] for seed in (0, 1)} | {("bm25", 0)}
    figures = found["rbe_star", 0]["figures"]
    for name in ("log_loss", "roc_auc", "recall@1", "recall@10", "recall@100"):
        low, high = figures[name]["interval"]
        assert low <= figures[name]["value"] <= high
    assert figures["recall@1"]["value"] <= figures["recall@10"]["value"] <= figures["recall@100"]["value"]
    assert set(figures["labels"]) == {"SemSearch_ES", "QALD2", "all"}
    studies = found["rbe_star", 0]["studies"]
    assert studies["selection"]["recall"] == pytest.approx(studies["selection"]["expected"], abs=0.1)
    assert sum(studies["top_five"]["found"]["all titles"].values()) == 5 * studies["top_five"]["queries"]
    headline = studies["top_five"]["headline"]
    assert sum(headline["found"]["all titles"].values()) == 5 * headline["queries"]
    assert figures["recall@100"]["value"] <= figures["recall@1000"]["value"]
    assert headline["queries"] == studies["top_five"]["queries"]  # every slice of the toy asks all of them
    assert found["bm25", 0]["recall@100"] <= found["bm25", 0]["recall@1000"]
    assert sum(found["bm25", 0]["headline_top_five"].values()) == 5 * headline["queries"]
    quantised = {one["name"]: one for one in found["m_1", 0]["studies"]["quantisers"]}
    assert quantised["FAISS RaBitQ, 1 bit"]["bytes"] == 16
    assert quantised["FAISS RaBitQ, 2 bit"]["bytes"] > 16
    assert {"turbovec, 2 bit", "rotation and 2-bit scalar", "sign of a rotation"} < set(quantised)


def test_it_goes_on_where_it_was(request_: Request, result: Json, tmp_path: Path) -> None:
    out = tmp_path / "elsewhere"
    out.mkdir()
    (out / "results.json").write_text(job.dumps(result))  # all that has to be moved to another machine
    lines: list[str] = []
    again = make(replace(request_, out=out), lines.append)
    assert lines == [f"0 runs to make, under {out}"]
    assert again["runs"] == result["runs"]
    runs.path_of(out, "m_3", 1).unlink()
    (out / "results.json").unlink()
    make(replace(request_, out=out), lines.append)
    assert lines[1] == f"1 runs to make, under {out}"
    assert lines[2].startswith("1/1 m_3, seed 1: ")
    longer = replace(TOY, epochs=1)
    make(replace(request_, out=out, rows=("m_3",), seeds=1, size=longer), lines.append)
    assert lines[3] == f"1 runs to make, under {out}", (
        "a run of other settings must not be taken for this one"
    )


def test_baselines_are_replaced_in_a_result_of_another_machine(
    request_: Request, result: Json, tmp_path: Path
) -> None:
    given = json.loads(job.dumps(result))
    given["device"] = "a card"
    for run in given["runs"]:
        run["identity"] = "of another recipe"
    (tmp_path / "results.json").write_text(job.dumps(given))
    alone = replace(request_, out=tmp_path, rows=("bm25",))
    made = make(alone, lambda line: None)
    assert made == read_results(tmp_path / "results.json")
    fresh = next(run for run in result["runs"] if run["row"] == "bm25")  # type: ignore[attr-defined]
    got = next(run for run in made["runs"] if run["row"] == "bm25")
    assert {**got, "host": None} == {**fresh, "host": None}
    assert got["host"]["cpus"] > 0
    kept = [run if run["row"] != "bm25" else got for run in given["runs"]]
    assert made == {**given, "runs": kept}, "models keep their figures, and their card its name"
    given["dataset"]["corpus"] += 1
    (tmp_path / "results.json").write_text(job.dumps(given))
    assert [run["row"] for run in make(alone, lambda line: None)["runs"]] == ["bm25"]


def test_results_survive_an_end_in_the_middle_of_a_write(
    request_: Request, result: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    path.write_text(job.dumps(result))
    data = runs.load_scaled(request_.data, TOY)
    monkeypatch.setattr(Path, "write_text", lambda path, text: path.write_bytes(text[:9].encode()) and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        job.gather(replace(request_, out=tmp_path), data)
    assert read_results(path)["runs"] == result["runs"]


def test_no_run_starts_that_would_end_too_late(request_: Request, tmp_path: Path) -> None:
    lines: list[str] = []
    made = make(replace(request_, out=tmp_path, seconds=1.0), lines.append)
    assert len(lines) == 1
    assert made["runs"] == []
    with pytest.raises(InputError, match="there is no run to report on"):
        write_report([made], tmp_path)


def test_two_processes_share_the_work(request_: Request, tmp_path: Path) -> None:
    lines: list[str] = []
    made = make(replace(request_, out=tmp_path, rows=("m_3",), workers=2), lines.append)
    assert sorted(line.split(": AUC")[0][4:] for line in lines[1:]) == ["m_3, seed 0", "m_3, seed 1"]
    assert [run["seed"] for run in made["runs"]] == [0, 1]


def test_the_first_tier_has_every_seed_before_the_second_begins(tmp_path: Path, folder: Path) -> None:
    from rbegir.lab.reproduce.dataset import load

    request = Request(out=tmp_path, seeds=3, size=TOY)
    todo = job.jobs(request, rows(TOY), load(folder), baselines=["bm25"])
    turns = [(each.row.tier, each.seed) for each in todo if each.row]
    first = [(0, seed) for seed in range(3)] + [(1, seed) for seed in range(3)]
    last = [(2, 0), (2, 1), (3, 0), (2, 2), (3, 1), (3, 2)]
    assert list(dict.fromkeys(turns)) == first + last
    assert len(todo) == 3 * len(rows(TOY)) + 1
    assert todo[-1].name == "bm25"


def test_models_of_the_same_batches_go_together() -> None:
    every = [ReproduceJob(row.name, seed, row) for seed in range(2) for row in rows(FULL)]
    every.append(ReproduceJob("bm25", 0, None))
    found = job.groups(every, 3)
    assert sorted(each.name + str(each.seed) for group in found for each in group) == sorted(
        each.name + str(each.seed) for each in every
    )
    assert [each.name for each in found[0]] == ["rbe_star", "m_1", "m_3"]
    assert max(map(len, found)) == 3
    for group in found:
        assert len({each.seed for each in group}) == 1
        settings = [each.row.settings for each in group if each.row is not None]
        assert len({(s.epochs, s.word_dropout, s.gram_dropout, s.negatives) for s in settings}) <= 1
    assert [each.name for each in found[-1]] == ["bm25"]


def test_tables(result: Json) -> None:
    tables = {table["table"]: table for table in tables_of(result)}
    assert tuple(tables) == TABLES
    star = next(row for row in tables["1"]["rows"] if row["model"] == "rbe*")
    runs_of = [run for run in result["runs"] if run["row"] == "rbe_star"]  # type: ignore[attr-defined]
    values = [run["figures"]["roc_auc"]["value"] for run in runs_of]
    assert star["roc_auc"]["mean"] == pytest.approx(sum(values) / 2)
    assert star["roc_auc"]["seeds"] == 2
    assert star["paper_auc"] == 0.8005
    assert star["command"] == 'rbegir reproduce --rows "rbe_star" --data DIR'
    assert tables["6"]["rows"][-1]["ours"] == tables["6"]["rows"][-1]["paper"] == "0.99969"
    claims = [order["claim"] for order in tables["4"]["orderings"]]
    assert claims == ["rbe*: weights help"], "orderings of rows that were not made are left out"
    sizes = [row["bytes"] for row in tables["bytes"]["rows"] if row["bytes"] is not None]
    assert sizes == sorted(sizes)
    json.dumps(tables)


def test_the_report_and_its_pictures(result: Json, tmp_path: Path) -> None:
    path = write_report([result], tmp_path)
    page = path.read_text()
    assert "| rbe*, all titles, 16 bytes each |" in page
    assert "made by editors, not clicks" in page
    assert page == report.page(result)
    assert "### Table 3" not in page
    assert "Not made." in page
    for name in ("auc-bits", "recall-bytes", "recall-corpus", "loss"):
        assert (f"(img/reproduce-{name}.svg)" in page) == (name != "auc-bits"), "table 2 was not made"
        ElementTree.parse(tmp_path / "img" / f"reproduce-{name}.svg")


def test_the_command(
    result: Json, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.json"
    path.write_text(job.dumps(result))
    assert read_results(path) == json.loads(json.dumps(result))
    monkeypatch.setattr(sys, "argv", ["rbegir", "reproduce", "1", "6", "--report", str(path), "--json"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert [table["table"] for table in printed] == ["1", "6"]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown table '9'"):
        chosen(FULL, ("9",))
    with pytest.raises(InputError, match="unknown row 'rbe_9'"):
        chosen(FULL, TABLES, ("rbe_9",))
    path = tmp_path / "results.json"
    whole = {"host": {}, "device": "cpu", "scale": "full", "dataset": {"name": "x"}}
    for content in (
        "{", "{}", "[]",
        *(json.dumps({**whole, "runs": many}) for many in ("text", [{"row": "x"}], [{"row": "m_1"}])),
        json.dumps({**whole, "dataset": {}, "runs": [{"row": "rbe_star", "seed": 0, "figures": {}}]}),
    ):  # fmt: skip
        path.write_text(content)
        with pytest.raises(CorruptError, match="does not hold results"):
            read_results(path)
    for changes, message in (
        ({"seeds": 0}, "seeds must be at least 1, got 0"),
        ({"seconds": 0.0}, "seconds must be more than 0, got 0"),
        ({"seconds": float("nan")}, "seconds must be more than 0, got nan"),
    ):
        with pytest.raises(InputError, match=message):
            make(Request(out=tmp_path / "out", **changes), print)  # type: ignore[arg-type]
    with pytest.raises(FileError, match=r"out must be a folder, but .* is a file"):
        make(Request(out=path), print)
    assert not (tmp_path / "out").exists()


def test_a_report_is_not_written_over_a_file(result: Json, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileError, match=r"cannot write .*: (Not a directory|File exists)"):
        write_report([result], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_runs_of_other_data_are_left_out(request_: Request, result: Json, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(job.dumps(result))
    other = replace(TOY, corpus=200)
    again = make(replace(request_, out=tmp_path, rows=("m_3",), seeds=1, size=other), print)
    assert [(run["row"], run["seed"]) for run in again["runs"]] == [("m_3", 0)]


def test_bm25_does_not_depend_on_how_models_are_trained(
    request_: Request, result: Json, tmp_path: Path
) -> None:
    (tmp_path / "results.json").write_text(job.dumps(result))
    longer = replace(TOY, epochs=1)
    again = make(replace(request_, out=tmp_path, rows=("m_3",), seeds=1, size=longer), print)
    assert [(run["row"], run["seed"]) for run in again["runs"]] == [("bm25", 0), ("m_3", 0)]
