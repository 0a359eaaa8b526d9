"""The whole of `rbegir reproduce` as functions: make the runs, gather them, write the results.

out/runs/*.json       one per run, what a later call resumes from
out/results.json      all of them with the dataset, the machine and the scale: the input of a report
out/reproduction.md   the report · out/img/*.svg its pictures

Runs are made in the order of their tiers, in one process or several: a small model leaves much of a large GPU
idle, and three processes on one card made 1.6 times as many models per minute as one. Models that draw the
same batches can be trained side by side in one process, which saves CPU cores, not GPU time.
"""

import json
import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from rbegir.base import disk
from rbegir.errors import CorruptError, FileError, InputError, RbegirError
from rbegir.lab.bench.host import describe, device_name
from rbegir.lab.figures import Json
from rbegir.lab.reproduce import report, runs
from rbegir.lab.reproduce.dataset import Dataset
from rbegir.lab.reproduce.rows import FULL, SMALL, TABLES, ModelRow, Scale, chosen, rows
from rbegir.lab.reproduce.runs import Laboratory, ReproduceJob
from rbegir.lab.reproduce.tables import tables_of as tables_of
from rbegir.training.step import resolve_device

RESULTS = "results.json"
PACKAGES = ("torch", "pyarrow", "scikit-learn", "faiss-cpu", "turbovec")
FIRST = 2  # tiers that are made with every seed before any other


@dataclass(frozen=True)
class Request:
    """The tables to make, where, and how large."""

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
    """Make the missing runs and write the results → the results."""
    if request.seeds is not None and request.seeds < 1:
        raise InputError(f"seeds must be at least 1, got {request.seeds}")
    if request.seconds is not None and not request.seconds > 0:
        raise InputError(f"seconds must be more than 0, got {request.seconds:g}")
    if request.out.exists() and not request.out.is_dir():
        raise FileError(f"out must be a folder, but {request.out} is a file", hint="choose another path")
    names = tuple(name for name in request.rows if name not in runs.BASELINES)
    wanted = chosen(request.scale, request.tables, names) if names or not request.rows else []
    needed = not request.rows and bool({"5", "bytes"} & set(request.tables))
    baselines = [name for name in runs.BASELINES if needed or name in request.rows]
    if not (find_spec("faiss") and find_spec("turbovec")):
        say("faiss and turbovec are not both installed: no quantisers beside the codes")
        wanted = [replace(row, studies=tuple(s for s in row.studies if s != "quantisers")) for row in wanted]
    data = runs.load_scaled(request.data, request.scale)
    until = time.time() + (request.seconds or 1e9)
    restore(request.out)
    todo = jobs(request, wanted, data, baselines)
    say(f"{len(todo)} runs to make, under {request.out}")
    for number, line in enumerate(run(groups(todo, request.together), request, data, until), start=1):
        say(f"{number}/{len(todo)} {line}")
        gather(request, data)
    return gather(request, data)


def restore(out: Path) -> None:
    """Write the files of runs that only results.json has, so that it alone is enough to resume elsewhere."""
    path = out / RESULTS
    for run in read_results(path)["runs"] if path.exists() else []:
        if not runs.path_of(out, run["row"], run["seed"]).exists():
            runs.write(out, run)


def jobs(
    request: Request, wanted: list[ModelRow], data: Dataset, baselines: Sequence[str]
) -> list[ReproduceJob]:
    """The runs that are still to be made, in order."""
    seeds = request.seeds or request.scale.seeds

    def turn(job: tuple[int, int]) -> tuple[int, int, int]:
        """Every seed of the first tiers; then one more seed of a tier is worth as much as one more tier."""
        seed, number = job
        tier = wanted[number].tier
        return (tier, seed, number) if tier < FIRST else (tier + seed, tier, number)

    def made(job: ReproduceJob) -> bool:
        found = runs.read(runs.path_of(request.out, job.name, job.seed))
        studies = set(job.row.studies) if job.row else set()
        same = found.get("identity") == runs.identity(job.row, job.seed, data, request.scale)
        return same and studies <= set(found.get("done", []))

    ordered = sorted(((seed, number) for number in range(len(wanted)) for seed in range(seeds)), key=turn)
    every = [ReproduceJob(wanted[number].name, seed, wanted[number]) for seed, number in ordered]
    every += [ReproduceJob(name, 0, None) for name in baselines]
    return [job for job in every if not made(job)]


def groups(todo: list[ReproduceJob], most: int) -> list[list[ReproduceJob]]:
    """Jobs whose models draw the same batches, in the order of the first of each group."""
    alike: dict[object, list[ReproduceJob]] = {}
    for job in todo:
        s = job.row.settings if job.row else None
        batches = s and (job.seed, s.epochs, s.batch_size, s.word_dropout, s.gram_dropout, s.negatives)
        alike.setdefault(batches or job, []).append(job)
    found = [jobs[at : at + most] for jobs in alike.values() for at in range(0, len(jobs), most)]
    return sorted(found, key=lambda group: todo.index(group[0]))


def run(todo: list[list[ReproduceJob]], request: Request, data: Dataset, until: float) -> Iterator[str]:
    """Make runs in this process, or in several on one device; yields a line about each."""
    if request.workers == 1 or len(todo) <= 1:
        laboratory = Laboratory(data, request.scale, request.device, request.out, until)
        for group in todo:
            yield from laboratory.run(group)
        return
    spawn = multiprocessing.get_context("spawn")
    failures = []
    with ProcessPoolExecutor(min(request.workers, len(todo)), spawn, _start, (request, until)) as pool:
        for done in as_completed([pool.submit(_run, group) for group in todo]):
            try:
                yield from done.result()
            except Exception as error:  # the others continue
                failures.append("".join(traceback.format_exception(error, limit=-3)))
    if failures:
        raise RbegirError(f"a run failed: {failures[0]}")


_laboratory: Laboratory  # of a worker process


def _start(request: Request, until: float) -> None:
    global _laboratory
    data = runs.load_scaled(request.data, request.scale)
    _laboratory = Laboratory(data, request.scale, request.device, request.out, until)


def _run(group: list[ReproduceJob]) -> list[str]:
    return list(_laboratory.run(group))


def gather(request: Request, data: Dataset) -> Json:
    """All runs under `out` that are of this data and scale, as one result, written beside them.

    A request for baselines alone only replaces them in the result that is there, whatever its models are of.
    """
    path = request.out / RESULTS
    known = {**dict.fromkeys(runs.BASELINES), **{row.name: row for row in rows(request.scale)}}
    every = (runs.read(path) for path in sorted((request.out / "runs").glob("*.json")))
    found = [
        run
        for run in every
        if run["row"] in known
        and run.get("identity") == runs.identity(known[run["row"]], run["seed"], data, request.scale)
    ]
    result: Json = {
        "host": describe(PACKAGES),
        "device": device_name(str(resolve_device(request.device))),
        "scale": request.scale.name,
        "dataset": data.describe(),
        "runs": found,
    }
    if request.rows and set(request.rows) <= set(runs.BASELINES) and path.exists():
        earlier = read_results(path)
        if earlier["dataset"] == result["dataset"]:
            fresh = {run["row"]: run for run in found if run["row"] in request.rows}
            merged = [*fresh.values(), *(run for run in earlier["runs"] if run["row"] not in fresh)]
            merged.sort(key=lambda run: runs.path_of(path, run["row"], run["seed"]))
            result = {**earlier, "runs": merged}
    try:
        request.out.mkdir(parents=True, exist_ok=True)
        with disk.staged(path) as stage:
            stage.write_text(dumps(result))
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}") from None
    return result


def dumps(result: Json) -> str:
    """A result as JSON text with one run per line."""
    lines = ",\n".join(f"  {json.dumps(run)}" for run in result["runs"])
    rest = {key: value for key, value in result.items() if key != "runs"}
    head = json.dumps(rest, indent=1).removesuffix("\n}")
    return f'{head},\n "runs": [\n{lines}\n ]\n}}\n'


def read_results(path: Path) -> Json:
    """A file that `gather` wrote."""
    try:
        result: Json = json.loads(path.read_text())
        missing = {"host", "device", "scale", "dataset", "runs"} - set(result)
        if not missing:
            report.page(result)  # fails if the file lacks anything that a page needs
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        missing = {"runs"}
    if missing:
        raise CorruptError(f"{path} does not hold results", hint="give a results.json of `rbegir reproduce`")
    return result


def write_report(results: Sequence[Json], folder: Path) -> Path:
    """A page per result, and the pictures of the first → the first page."""
    path = folder / "reproduction.md"
    if not all(result["runs"] for result in results):
        raise InputError("there is no run to report on", hint="make runs first, or give them more seconds")
    try:
        report.draw(results[0], folder / "img")
        path.write_text(report.page(results[0]))
        for result in results[1:]:
            (folder / f"reproduction-{result['scale']}.md").write_text(report.page(result, pictures=False))
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror}", hint="--out must be a folder, or a path for a new one"
        ) from None
    return path
