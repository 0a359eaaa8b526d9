"""Writes docs/reliability.md from the committed results of the torture chamber; a test keeps it current.

    python tools/reliability.py

The sentences are here, the figures are read from benchmarks/results/torture-*.json. An attempt without a
committed result is said to have none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reliability.md"

Json = dict[str, Any]


class Promise(NamedTuple):
    """A sentence, the tests that hold it, and the figures of its long run."""

    sentence: str
    tests: tuple[str, ...]
    attempt: str
    figures: Callable[[Json], str]


def load(attempt: str) -> Json | None:
    path = RESULTS / f"torture-{attempt}.json"
    found: Json | None = json.loads(path.read_text()) if path.exists() else None
    return found


def powerloss(r: Json) -> str:
    return (
        f"{r['cuts']:,} cuts (call × outcome) of {r['histories']:,} random histories, which left "
        f"{r['crash_points']:,} different disks, each opened and checked"
    )


def kill(r: Json) -> str:
    return (
        f"{r['kills']:,} kills in {r['seconds'] / 3600:.1f} hours, "
        f"{r['acknowledged_changes']:,} acknowledged changes"
    )


def bitrot(r: Json) -> str:
    parts = []
    for name, patient in r["patients"].items():
        if not patient["bits_flipped"]:
            continue  # the time was up before its turn
        whole = "every one of " if patient["complete"] and name == "small index" else ""
        parts.append(f"{name}: {whole}{patient['bits_flipped']:,} bits and {patient['files_cut']:,} lengths")
    return "; ".join(parts)


def salvage(r: Json) -> str:
    return (
        f"{sum(r['tries'].values()):,} damaged indexes, {r['keywords_damaged']:,} keywords in damaged blocks"
    )


def fuzz(r: Json) -> str:
    return f"{r['inputs']:,} hostile inputs at {len(r['by_door'])} doors"


def exact(r: Json) -> str:
    return f"{r['results']:,} query results in {r['worlds']:,} sets of keywords"


def resources(r: Json) -> str:
    real = ", ".join(name for name, said in r["for_real"].items() if said is not None)
    return f"{r['failing_calls']:,} failing calls with {len(r['by_error'])} errors of the system; for real: {real}"


def crowd(r: Json) -> str:
    counts = r["counts"]
    reads = counts["reads"] + counts["reads by threads"]
    return f"{reads:,} reads of {counts['versions']:,} versions, {counts['rivals refused']:,} rivals refused"


def soak(r: Json) -> str:
    counts, latency = r["counts"], r["latency_ms"]
    answered = sum(count for name, count in counts.items() if name.endswith(" answered"))
    grown = r["memory"]["grown_percent"]
    memory = "" if grown is None else f", memory {grown:+.1f} % in the calm half"
    return (
        f"{r['seconds'] / 3600:.1f} hours under load: {answered:,} requests answered, {counts.get('kills', 0)} kills, "
        f"{counts.get('times the disk was full', 0)} full disks, {counts.get('clock jumps', 0)} clock jumps, "
        f"{counts.get('slow clients', 0)} slow clients; slowest search {latency['search']['max'] / 1000:.1f} s"
        f"{memory}"
    )


PROMISES = (
    Promise(
        "What was acknowledged survives a power cut, and a change is there wholly or not at all.",
        ("tests/torture/test_powerloss.py",),
        "powerloss",
        powerloss,
    ),
    Promise(
        "The same when the process is killed at any moment.",
        ("tests/torture/test_attempts.py", "tests/index/test_crash.py"),
        "kill",
        kill,
    ),
    Promise(
        "A flipped bit or a cut file is noticed, or changes no answer; `verify` names the file and the block.",
        ("tests/torture/test_attempts.py", "tests/index/test_corruption.py"),
        "bitrot",
        bitrot,
    ),
    Promise(
        "`verify --salvage` brings back exactly the keywords that are intact, and tells what is lost.",
        ("tests/torture/test_salvage.py",),
        "salvage",
        salvage,
    ),
    Promise(
        "Hostile files and requests are refused in words: no crash, no hang, bounded memory, nothing run, "
        "nothing written elsewhere.",
        ("tests/torture/test_fuzz.py", "tests/torture/test_supply.py", "tests/serve/test_contract.py"),
        "fuzz",
        fuzz,
    ),
    Promise(
        "Hits are those of the specification, ties included, by every kernel and in every mode, while segments "
        "come and go.",
        ("tests/torture/test_attempts.py", "tests/index/test_stateful.py", "tests/search"),
        "exact",
        exact,
    ),
    Promise(
        "The same on a GPU.",
        ("tests/search/gpu",),
        "exact-gpu",
        exact,
    ),
    Promise(
        "A disk that is full, broken or read-only, no file handles, no memory: the change is refused with the "
        "reason, nothing is lost, and work goes on when there is room.",
        ("tests/torture/test_attempts.py",),
        "resources",
        resources,
    ),
    Promise(
        "Readers see one state and never an older one after a newer; a second writer is refused.",
        ("tests/torture/test_attempts.py", "tests/index/test_concurrency.py"),
        "crowd",
        crowd,
    ),
    Promise(
        "A service loses no acknowledged change and shows nothing that nobody wrote, whatever happens to it.",
        ("tests/torture/test_soak.py", "tests/serve/test_process.py"),
        "soak",
        soak,
    ),
)

HEAD = """# Trusted with data

What rbegir promises about your keywords, which test holds each promise, and what the last long run found. The page
is written by `tools/reliability.py` from `benchmarks/results/torture-*.json`; [SECURITY.md](../SECURITY.md) has the
exact words: what is durable when, what is checked when, and what is not promised.

"""

TAIL = """
A loss is any broken promise: a keyword that was acknowledged and is gone, one that nobody wrote, a wrong or
differently ordered hit, damage that goes unnoticed, an error that is not ours. The harness is itself tested: twelve
faults put in on purpose (a forgotten fsync, a rename before the data, a directory that is not synced …) are each
caught by `tests/torture/test_powerloss.py`, and every other attempt has a test that it notices a broken index.

## How it is tried

- **Power cuts**: all changes to an index go through a few calls (`src/rbegir/base/disk.py`). A random history of
  adds, replacements, deletes, compactions, builds, killed processes and failing calls is recorded once, then cut
  after every call. A simulated disk keeps what was synced; of the rest each 512-byte sector is there, lost, zero
  or garbage, in any order, and each change of a name has happened or has not. After each cut the index opens, holds
  an allowed state, verifies and takes new keywords.
- **Bit rot**: every bit of a small index is flipped and every file is cut at every byte; larger ones at random.
- **Hostile bytes**: coverage-guided fuzzing (atheris) of every loader, with right checksums around wrong contents,
  a limit on memory and time, and a watch that refuses to start processes, to unpickle and to write elsewhere. What
  was found once is kept under `tests/torture/corpus`.
- **Exactness**: keywords are planted around the queries and opposite to them, with the smallest norms, the largest and
  all between, one bit apart, equal by the hundred, sorted so that the first threshold of the scan misleads, for every
  dimension and number of planes; k and batches lie around every size at which the scan changes its way. Every
  instruction set answers (AVX-512 emulated where the CPU lacks it), and hits must equal a full sort of exact scores.
  Faults put into the native scan on purpose are found in seconds (`python -m torture.native_mutants`).
- **A mapped file that shrinks** would end a process with SIGBUS. The signal is caught: the reader gets an error,
  and nothing that was read from the hole is returned or written on.

## Run it yourself

```console
$ make torture
$ python -m torture --help > /dev/null || true
```

## When something is damaged

```console
$ rbegir index build model products.parquet --out products.rbe
$ rbegir index verify products.rbe --salvage saved.rbe --json
```

`verify` reads every byte and names each damaged file and block; `--salvage` copies every keyword whose bytes are all
in intact blocks to a new index and lists the rest by file and row. The same in Python:

```python
import rbegir

report = rbegir.Index.salvage("products.rbe", "again.rbe")
print(report["keywords"], report["lost"], report["segments"], report["deletes"])
```

Deletes that cannot be read are stated, with the number of keywords that may be back. If the manifest is lost it is
rebuilt from the segments; if the model is damaged the new index has none.
"""


def page() -> str:
    lines = ["| promise | held by | last long run | losses |", "|---|---|---|---|"]
    for promise in PROMISES:
        result = load(promise.attempt)
        tests = ", ".join(f"[{Path(test).name}](../{test})" for test in promise.tests)
        figures = "no result is committed" if result is None else promise.figures(result)
        losses = "" if result is None else str(result["losses"])
        lines.append(f"| {promise.sentence} | {tests} | {figures} | {losses} |")
    return HEAD + "\n".join(lines) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(page())
