"""Every committed result says from which commit, when, on which machine and with which seeds it comes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
Json = dict[str, Any]

EARLIER = "measured before results recorded the family and model of the CPU"
OTHER = "the GPU benchmark recorded only the card and the versions"
# What a file lacks, and why. Measure again and remove the entry; a new result needs none.
LACKING: dict[str, dict[str, str]] = {
    "generalisations": {"cpu_model": EARLIER},
    "reproduce-small": {"cpu_model": EARLIER},
    "scan-gpu": {"cpu": OTHER, "cpu_model": OTHER, "isa": OTHER},
    "torture-bitrot": {"cpu_model": EARLIER},
    "torture-crowd": {"cpu_model": EARLIER},
    "torture-fuzz": {"cpu_model": EARLIER},
    "torture-salvage": {"cpu_model": EARLIER},
    "upgrade": {"cpu_model": EARLIER},
}
SEEDED = {
    "torture": "",
    "accuracy-vectors": "cells",
    "accuracy-title": "rows",
    "reproduce": "runs",
    "upgrade": "runs",
}


def hosts(part: Any) -> Iterator[Json]:
    """Every description of a machine in a result."""
    if isinstance(part, list):
        for one in part:
            yield from hosts(one)
    elif isinstance(part, dict):
        yield from [part["host"]] if isinstance(part.get("host"), dict) else []
        yield from part.get("hosts", [])
        for name, inner in part.items():
            yield from hosts(inner) if name not in ("host", "hosts") else []


def commits(result: Json) -> Iterator[str | None]:
    """Those of the machines, and of runs that have one of their own."""
    yield from (host.get("commit") for host in hosts(result))
    yield from (run["commit"] for run in result.get("runs", []) if "commit" in run)


def lacking(name: str, result: Json) -> set[str]:
    machines = list(hosts(result))
    found = {field for field in ("cpu", "cpu_model", "isa") if not all(field in host for host in machines)}
    if not all("time" in host or "date" in host for host in machines):
        found.add("time")
    if not all("versions" in host or "torch" in host for host in machines):
        found.add("versions")
    known = list(commits(result))
    if not known or not all(known):
        found.add("commit")
    if any(commit.endswith("+") for commit in known if commit):
        found.add("clean")
    for prefix, part in SEEDED.items():
        if name.startswith(prefix) and not all("seed" in one for one in (result[part] if part else [result])):
            found.add("seed")
    return found


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_says_where_it_comes_from(path: Path) -> None:
    assert lacking(path.stem, json.loads(path.read_text())) == set(LACKING.get(path.stem, ())), (
        "measure it again from a clean tree; if it lacks less than before, shorten LACKING"
    )


def test_this_repository_holds_the_commits_that_results_name() -> None:
    root = RESULTS.parents[1]
    results = [json.loads(path.read_text()) for path in RESULTS.glob("*.json")]
    named = {commit.removesuffix("+") for result in results for commit in commits(result) if commit}

    def git(*command: str, given: str = "") -> str:
        done = subprocess.run(["git", *command], cwd=root, input=given, capture_output=True, text=True)
        return done.stdout.strip()

    if git("rev-parse", "--is-shallow-repository") == "false":  # only a full clone can tell
        found = git("cat-file", "--batch-check", given="\n".join(f"{name}^{{commit}}" for name in named))
        assert not [line for line in found.splitlines() if line.endswith(" missing")]


def test_only_results_that_exist_are_excused() -> None:
    assert set(LACKING) <= {path.stem for path in RESULTS.glob("*.json")}


def test_what_is_lacking_is_found() -> None:
    whole = {"cpu": "x", "cpu_model": "1", "isa": "avx2", "time": "2026", "versions": {}, "commit": "abc"}
    assert lacking("scan", {"host": whole}) == set()
    assert lacking("torture-x", {"host": whole}) == {"seed"}
    assert lacking("scan", {"hosts": [whole, {**whole, "commit": None}]}) == {"commit"}
    assert lacking("reproduce-x", {"host": whole, "runs": [{"seed": 0, "commit": "abc+"}]}) == {"clean"}
    assert lacking("scan", {"part": {"host": {"commit": "abc"}}}) == {
        "cpu",
        "cpu_model",
        "isa",
        "time",
        "versions",
    }
    assert lacking("scan", {}) == {"commit"}
