"""The whole of `rbegir reproduce` as functions: make the runs, gather them, write the results.

out/runs/*.json       one per run, what a later call resumes from
out/results.json      all of them with the dataset, the machine and the scale: what a report is made from
out/reproduction.md   the report · out/img/*.svg its pictures
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from rbegir.errors import CorruptError, FileError, InputError
from rbegir.lab.bench.host import describe, device_name
from rbegir.lab.markdown import Json
from rbegir.lab.reproduce import runs
from rbegir.lab.reproduce.dataset import FOLDER, Dataset, load
from rbegir.lab.reproduce.results import Results, TableMaker
from rbegir.lab.reproduce.rows import FULL, SMALL, TABLES, Scale, chosen, rows
from rbegir.lab.reproduce.tables import table
from rbegir.training.step import resolve_device

RESULTS = "results.json"
PACKAGES = ("torch", "pyarrow", "scikit-learn", "faiss-cpu", "turbovec", "bm25s")


@dataclass(frozen=True)
class Request:
    """What was asked for."""

    tables: tuple[str, ...] = TABLES
    rows: tuple[str, ...] = ()  # these rows alone, whatever table they belong to
    data: Path | None = None  # None: the shipped sample
    out: Path = Path("rbegir-tables")
    seeds: int | None = None
    device: str = "auto"
    small: bool = False
    workers: int = 1
    together: int = 1  # models that a process trains side by side
    seconds: float | None = None
    size: Scale | None = None  # another scale than full or small

    @property
    def scale(self) -> Scale:
        return self.size or (SMALL if self.small or self.data is None else FULL)


def make(request: Request, say: Callable[[str], None]) -> Json:
    """Make what is missing of the runs and write the results → the results."""
    if request.seeds is not None and request.seeds < 1:
        raise InputError(f"seeds must be at least 1, got {request.seeds}")
    if request.seconds is not None and not request.seconds > 0:
        raise InputError(f"seconds must be more than 0, got {request.seconds:g}")
    if request.out.exists() and not request.out.is_dir():
        raise FileError(f"out must be a folder, but {request.out} is a file", hint="choose another path")
    scale, bm25 = request.scale, runs.BM25
    names = tuple(name for name in request.rows if name != bm25)
    wanted = chosen(scale, request.tables, names) if names or not request.rows else []
    with_bm25 = bm25 in request.rows or (not request.rows and bool({"5", "bytes"} & set(request.tables)))
    if not _installed("faiss", "turbovec"):
        say("faiss and turbovec are not both installed: no quantisers beside the codes")
        wanted = [replace(row, studies=tuple(s for s in row.studies if s != "quantisers")) for row in wanted]
    if with_bm25 and not _installed("bm25s"):
        say("bm25s is not installed: no BM25")
        with_bm25 = False
    data = load(request.data)
    until = time.time() + (request.seconds or 1e9)
    restore(request.out)
    layout = runs.RunLayout(scale, request.device, request.out, until)
    todo = runs.jobs(wanted, request.seeds or scale.seeds, data, layout, bm25=with_bm25)
    say(f"{len(todo)} runs to make, under {request.out}")
    grouped = runs.groups(todo, request.together)
    if request.workers > 1 and len(grouped) > 1:
        lines = runs.run_in_processes(grouped, request.data, layout, request.workers)
    else:
        lines = runs.run_here(grouped, data, layout)
    for number, line in enumerate(lines, start=1):
        say(f"{number}/{len(todo)} {line}")
        gather(request, data)
    return gather(request, data)


def _installed(*packages: str) -> bool:
    return all(find_spec(package) is not None for package in packages)


def restore(out: Path) -> None:
    """Make files of runs that only results.json has: it alone is enough to go on from, elsewhere too."""
    path = out / RESULTS
    for run in read_results(path)["runs"] if path.exists() else []:
        place = runs.path_of(out, run["row"], run["seed"])
        if not place.exists():
            runs.write(place, run)


def gather(request: Request, data: Dataset) -> Json:
    """All runs under `out` that are of this data and scale, as one result, written beside them."""
    small = runs.cut_down(data, request.scale)
    wanted = {row.name: row for row in rows(request.scale)}
    every = [run for path in sorted((request.out / "runs").glob("*.json")) if (run := runs.read(path))]
    found = [
        run for run in every if run.get("identity") == runs.identity_of(run, wanted, small, request.scale)
    ]
    result: Json = {
        "host": describe(PACKAGES),
        "device": device_name(str(resolve_device(request.device))),
        "scale": request.scale.name,
        "dataset": small.describe(),
        "runs": found,
    }
    try:
        request.out.mkdir(parents=True, exist_ok=True)
        (request.out / RESULTS).write_text(dumps(result))
    except OSError as error:
        raise FileError(f"cannot write {request.out / RESULTS}: {error.strerror}") from None
    return result


def dumps(result: Json) -> str:
    """A result as JSON text with one run per line."""
    lines = ",\n".join(f"  {json.dumps(run)}" for run in result["runs"])
    rest = {key: value for key, value in result.items() if key != "runs"}
    head = json.dumps(rest, indent=1).removesuffix("\n}")
    return f'{head},\n "runs": [\n{lines}\n ]\n}}\n'


def tables_of(result: Json, keys: Sequence[str] = TABLES) -> list[Json]:
    """The tables of a result, one object each."""
    other = replace(FULL, short=None)  # all rows for as long
    scale = {scale.name: scale for scale in (FULL, SMALL)}.get(result["scale"], other)
    options = " --data DIR" if result["dataset"]["name"] == FOLDER else ""
    options += " --small" if scale is SMALL and options else ""
    maker = TableMaker(Results(result["runs"]), scale, options)
    return [table(key, maker) for key in keys]


def read_results(path: Path) -> Json:
    """A file that `gather` wrote."""
    from rbegir.lab.reproduce import report

    try:
        result: Json = json.loads(path.read_text())
        missing = {"host", "device", "scale", "dataset", "runs"} - set(result)
        if not missing:
            report.page([result])  # whatever a page needs and the file does not have is found out here
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        missing = {"runs"}
    if missing:
        raise CorruptError(f"{path} does not hold results", hint="give a results.json of `rbegir reproduce`")
    return result


def write_report(results: Sequence[Json], folder: Path) -> Path:
    """The page of one or more results, and the pictures of the first → the page."""
    from rbegir.lab.reproduce import report

    path = folder / "reproduction.md"
    if not all(result["runs"] for result in results):
        raise InputError("there is no run to report on", hint="make runs first, or give them more seconds")
    try:
        report.draw(results[0], folder / "img")
        path.write_text(report.page(results))
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror}", hint="--out must be a folder, or a path for a new one"
        ) from None
    return path
