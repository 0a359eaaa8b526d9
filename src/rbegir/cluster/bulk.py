"""Building an index with the processes of a Ray cluster.

    count    usable rows of every row group                                   Ray Data
    cut      pieces of `segment_rows` usable rows; the rows of each are now known
    make     each piece: read ─ encode ─ one finished segment                 Ray Data, a piece a core
    check    no id is there twice
    name     one manifest over all segments, and the directory gets its name

What is made stands in `.ads.rbe.building` beside the place where the index will be, with a file BUILD that
says of what. A build that was stopped, or whose machines failed, is run again with the same arguments and
does only what is missing. A process holds one piece in memory; `segment_rows` bounds it.

The result is that of `Index.build`: same rows, ids, codes, answers. As long as no add would merge segments
(pieces of more than 2¹⁹ rows, which is the default, or fewer than eight pieces) it is the same byte for byte.

Counting first costs a second pass over the text column, a few per cent of encoding it. The alternative,
giving rows out as pieces finish, would make rows, ties and default ids depend on which machine was faster.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rbegir.base import disk
from rbegir.base.checks import whole_number
from rbegir.cluster.engine import Session, import_ray
from rbegir.cluster.piece import TEMPORARY, TableMaker, Task, count_row, is_done, raise_first
from rbegir.cluster.pool import root_cause
from rbegir.cluster.unique import refuse_repeated_ids
from rbegir.encode.clsm.model import Model
from rbegir.encode.encoder import Encoder, Savable
from rbegir.errors import ClusterError, InputError, MismatchError
from rbegir.index.creation import SEGMENT_ROWS, make, staged
from rbegir.index.manifest import NAME, Manifest, commit, prepare, read_manifest
from rbegir.index.model import first_manifest
from rbegir.index.segment import MAX_ROWS, CodeShape, Entry, Segment
from rbegir.read.parquet import Group, Reading, Slice, cut, find_files, find_groups

STATE = "BUILD"

Progress = Callable[[str, float], None]  # (what is being done, the fraction that is)


@dataclass(frozen=True)
class Built:
    """What a build has made."""

    path: Path
    keywords: int
    segments: int
    resumed: int  # segments that an earlier run had made
    skipped: dict[str, int]  # rows that were left out, by reason


def build(
    path: str | Path,
    model: Encoder | str | Path,
    texts: str | Path,
    *,
    address: str | None = None,
    reading: Reading | None = None,
    overwrite: bool = False,
    segment_rows: int = SEGMENT_ROWS,
    workers: int | None = None,
    progress: Progress = lambda step, done: None,
) -> Built:
    """A new index from a Parquet file or a directory of them, made by a Ray cluster; see `Cluster.open` for
    `address`. `path`, `texts` and the model must be seen by every node. `workers` is the most processes."""
    whole_number("segment_rows", segment_rows, 1, MAX_ROWS)
    reading = reading or Reading()
    encoder = Model.load(model) if isinstance(model, str | Path) else model
    files = find_files(texts)
    groups = find_groups(files, reading)
    manifest = first_manifest(encoder, None, None, None, None)
    identity = {
        "version": 1,
        "fingerprint": encoder.fingerprint,
        "inputs": [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in files],
        "reading": asdict(reading),
        "segment_rows": segment_rows,
    }
    target = Path(path).absolute()
    with staged(target, overwrite=overwrite, resumable=True) as writer:
        stage = writer.directory
        state = _resume(stage, identity)
        session = Session(address)
        try:
            if state is None:
                make(stage, manifest, encoder)
                state = _count(groups, reading, progress)
                _save(stage, {"identity": identity, **state})
            usable = list(zip(groups, state["usable"], strict=True))
            tasks = _tasks(cut(usable, segment_rows))
            if not tasks:
                raise InputError(f"{texts} holds no usable text: {state['skipped'] or 'it has no rows'}")
            shape = manifest.shape
            todo = [task for task in tasks if not is_done(stage / task.file, task, shape)]
            stored = None if isinstance(encoder, Savable) else encoder
            _make(stage, shape, reading, stored, tasks, todo, workers, progress)
            progress("checking", 0.0)
            segments = [Segment(stage / task.file, shape) for task in tasks]
            refuse_repeated_ids(segments)
        finally:
            session.close()
        _finish(stage, segments)
    writer.close()
    (target / STATE).unlink()
    progress("checking", 1.0)
    rows = sum(task.rows for task in tasks)
    return Built(target, rows, len(tasks), len(tasks) - len(todo), state["skipped"])


def _resume(stage: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """What an earlier run has counted; None, and an empty stage, if there is nothing to go on with."""
    path = stage / STATE
    if not path.exists():
        for left in stage.iterdir():
            if left.name != "LOCK":
                disk.remove_tree(left) if left.is_dir() else disk.unlink(left)
        return None
    try:
        state: dict[str, Any] = json.loads(path.read_text())
    except ValueError:
        state = {}
    if state.get("identity") != identity:
        changed = [key for key in identity if (state.get("identity") or {}).get(key) != identity[key]]
        raise MismatchError(
            f"{stage} holds an unfinished build of something else: other {', '.join(changed)}",
            hint="finish it with the same arguments, or remove that directory",
        )
    read_manifest(stage)
    for left in stage.glob(f"{TEMPORARY}*"):
        disk.unlink(left)
    return state


def _save(stage: Path, state: dict[str, Any]) -> None:
    new = stage / f"{STATE}.new"
    new.write_text(json.dumps(state))
    disk.replace(new, stage / STATE)


def _tasks(pieces: Sequence[Sequence[Slice]]) -> list[Task]:
    tasks: list[Task] = []
    row = 0
    for number, piece in enumerate(pieces):
        tasks.append(Task(number, row, tuple(piece)))
        row += tasks[-1].rows
    return tasks


def _count(groups: Sequence[Group], reading: Reading, progress: Progress) -> dict[str, Any]:
    """The usable rows of each row group, and the reasons of the others."""
    items = [{"number": n, "slice": Slice(group, 0, 0).to_dict()} for n, group in enumerate(groups)]
    rows: list[dict[str, Any]] = []
    for row in _stream(items, partial(count_row, reading=reading), None):
        rows.append(row)
        progress("counting", len(rows) / len(groups))
    raise_first(rows)
    skipped: Counter[str] = Counter()
    for row in rows:
        skipped.update(dict(zip(row["reasons"], map(int, row["counts"]), strict=True)))
    rows.sort(key=lambda row: int(row["number"]))
    return {"usable": [int(row["usable"]) for row in rows], "skipped": dict(skipped)}


def _make(
    stage: Path,
    shape: CodeShape,
    reading: Reading,
    encoder: Encoder | None,
    tasks: Sequence[Task],
    todo: Sequence[Task],
    workers: int | None,
    progress: Progress,
) -> None:
    """Make the segments of the tasks that are not there yet."""
    rows = {task.number: task.rows for task in tasks}
    total, done = sum(rows.values()), sum(rows.values()) - sum(task.rows for task in todo)
    progress("encoding", done / total)
    items = [
        {"number": t.number, "first_row": t.first_row, "slices": [part.to_dict() for part in t.slices]}
        for t in todo
    ]
    for row in _stream(items, TableMaker(str(stage), shape, reading, encoder), workers):
        raise_first([row])
        done += rows[int(row["number"])]
        progress("encoding", done / total)


def _stream(
    items: Sequence[dict[str, Any]],
    function: Callable[[dict[str, Any]], dict[str, Any]],
    workers: int | None,
) -> Iterator[dict[str, Any]]:
    """The results of a function for every item, as they come; a process that dies is replaced."""
    if not items:
        return
    ray = import_ray()
    from ray import data as ray_data
    from ray.data.exceptions import RayDataUserCodeException

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray_data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    try:
        data = ray_data.from_items(list(items), override_num_blocks=len(items))
        yield from data.map(function, num_cpus=1, concurrency=workers).iter_rows()
    except (ray.exceptions.RayError, RayDataUserCodeException) as error:
        reason = root_cause(error)
        raise ClusterError(
            f"the build was interrupted: {reason}",
            hint="install rbegir with its extra [cluster] on every node"
            if "No module named" in reason
            else "run the same command again; it goes on where it was stopped",
        ) from error


def _finish(stage: Path, segments: Sequence[Segment]) -> None:
    """One manifest over all segments, as if they had been added one after the other."""
    manifest = read_manifest(stage)
    columns: dict[str, str] = {}
    entries: list[Entry] = []
    for segment in segments:
        columns |= {name: str(dtype) for name, dtype in segment.types.items() if name != "text"}
        stamp = segment.file.stamp
        entries.append(
            Entry(segment.path.name, stamp, segment.count, segment.first_row, segment.last_row, None, 0)
        )
    final: Manifest = replace(
        manifest,
        generation=len(entries),
        id_type=segments[0].id_type,
        next_row=entries[-1].last_row + 1,
        next_file=len(entries),
        columns=columns,
        segments=tuple(entries),
    )
    prepare(stage, final)
    commit(stage)
    assert (stage / NAME).exists()
