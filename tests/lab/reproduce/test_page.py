"""The committed page is the one that the committed results make, and has its pictures."""

from __future__ import annotations

import re
from pathlib import Path

from rbegir.lab.reproduce.job import read_results, tables_of
from rbegir.lab.reproduce.report import page
from rbegir.lab.reproduce.rows import FULL, rows

ROOT = Path(__file__).resolve().parents[3]
RESULTS = [ROOT / "benchmarks" / "results" / f"reproduce-{name}.json" for name in ("full", "small")]


def test_the_page_is_current() -> None:
    wanted = page([read_results(path) for path in RESULTS])
    found = (ROOT / "docs" / "reproduction.md").read_text()
    files = " --report ".join(str(path.relative_to(ROOT)) for path in RESULTS)
    assert found == wanted, f"run: rbegir reproduce --report {files} --out docs"
    for picture in re.findall(r"\]\((img/[^)]+)\)", found):
        assert (ROOT / "docs" / picture).exists()


def test_a_later_run_can_go_on_from_the_committed_results() -> None:
    known = {row.name for row in rows(FULL)} | {"bm25"}
    runs = read_results(RESULTS[0])["runs"]
    assert {run["row"] for run in runs} <= known
    assert len({(run["row"], run["seed"]) for run in runs}) == len(runs)


def test_figures_are_plausible() -> None:
    """Against a mix-up of rows: what must be larger is larger by far more than any spread."""
    (table,) = tables_of(read_results(RESULTS[0]), ["bytes"])
    recall = {row["model"]: row["recall@10"]["mean"] for row in table["rows"]}
    assert (
        recall["m_1: float CLSM"]
        > recall["rbe*"]
        > recall["m_3: 128-d, one bit"]
        > recall["m_2: 64-d, one bit"]
    )
    assert all(0.2 < value < 0.8 for value in recall.values())
