"""Building an index with the processes of a Ray cluster.

    count    usable rows of every row group                                   Ray Data
    cut      chunks of `segment_rows` usable rows; the rows of each are now known
    make     each chunk: read ─ encode ─ one finished segment                 Ray Data, one chunk per core
    check    no id is there twice                                             a range of ids per task
    name     one manifest over all segments, and the directory gets its name

The unfinished index is `.ads.rbe.building`, with a file BUILD that names its input. A build that was stopped
can be run again with the same arguments and makes only what is missing.

The result is that of `Index.build`: same rows, ids, codes and hits, and the same bytes as long as no add
would merge segments. Counting first costs a second pass over the text column, a few per cent of encoding it.
Giving rows out as chunks finish would make rows, ties and default ids depend on which machine was faster.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rbegir.base import disk
from rbegir.base.checks import whole_number
from rbegir.cluster.chunk import TEMPORARY, SegmentMaker, Task, count_row, is_done, raise_first
from rbegir.cluster.pool import root_cause
from rbegir.cluster.session import Session, import_ray
from rbegir.encode.encoder import Encoder, Savable, load_encoder
from rbegir.errors import ClusterError, InputError, MismatchError
from rbegir.index.creation import SEGMENT_ROWS, make, staged
from rbegir.index.keys import STRIDE
from rbegir.index.manifest import NAME, Manifest, check_adds, commit, first_manifest, prepare, read_manifest
from rbegir.index.segment import MAX_ROWS, CodeShape, Entry, Segment
from rbegir.read.parquet import Group, Reading, Slice, cut, find_files, find_groups

STATE = "BUILD"
RANGE = 1 << 24  # ids that one task sorts: 128 MB of keys

Keys = npt.NDArray[np.uint64]
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
    encoder = load_encoder(Path(model)) if isinstance(model, str | Path) else model
    files = find_files(texts)
    groups = find_groups(files, reading)
    manifest = first_manifest(encoder, None, None, None, None)
    check_adds(encoder, manifest)
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
            _make(SegmentMaker(str(stage), shape, reading, stored), tasks, todo, workers, progress)
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
    """The counts of an earlier run; None, and an empty directory, if there is nothing to resume."""
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
    with disk.staged(stage / STATE) as new:
        new.write_text(json.dumps(state))


def _tasks(chunks: Sequence[Sequence[Slice]]) -> list[Task]:
    tasks: list[Task] = []
    row = 0
    for number, chunk in enumerate(chunks):
        tasks.append(Task(number, row, tuple(chunk)))
        row += tasks[-1].rows
    return tasks


def _count(groups: Sequence[Group], reading: Reading, progress: Progress) -> dict[str, Any]:
    """The usable rows of each row group, and the reasons of the others."""
    items = [{"number": n, "slice": asdict(Slice(group, 0, 0))} for n, group in enumerate(groups)]
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
    maker: SegmentMaker, tasks: Sequence[Task], todo: Sequence[Task], workers: int | None, progress: Progress
) -> None:
    """Make the segments of the tasks that are not there yet."""
    rows = {task.number: task.rows for task in tasks}
    total, done = sum(rows.values()), sum(rows.values()) - sum(task.rows for task in todo)
    progress("encoding", done / total)
    items = [
        {"number": t.number, "first_row": t.first_row, "slices": [asdict(part) for part in t.slices]}
        for t in todo
    ]
    for row in _stream(items, maker, workers):
        raise_first([row])
        done += rows[int(row["number"])]
        progress("encoding", done / total)


def _stream(
    items: Sequence[dict[str, Any]], function: Callable[[dict[str, Any]], dict[str, Any]], workers: int | None
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


def refuse_repeated_ids(segments: Sequence[Segment], *, size: int = RANGE) -> None:
    """Raise InputError if an id is in more than one segment.

    Every segment has its ids as ascending 64-bit keys (`index.keys`). The key space is cut into ranges of
    about `size` keys, at quantiles taken from the fences (every 512th key). A task takes one range: the keys
    of all segments in it, sorted together; equal neighbours are the same id, or two strings with the same
    hash, which the ids themselves decide. Inside a segment ids were compared when it was made.
    """
    if len(segments) < 2 or not segments[0].has_ids:
        return
    ray = import_ray()
    paths, shape = [str(segment.path) for segment in segments], segments[0].shape
    remote = ray.remote(num_cpus=1)(repeated)
    found = ray.get([remote.remote(paths, shape, low, high) for low, high in ranges(segments, size)])
    twice = sorted({one for some in found for one in some}, key=str)
    if twice:
        raise InputError(
            f"id {twice[0]!r} is in the index already ({len(twice)} such ids)",
            hint="give every id once; remove the unfinished build, then start again with other input",
        )


def ranges(segments: Sequence[Segment], size: int) -> list[tuple[int, int]]:
    """[low, high) of keys, about `size` keys each, together all keys."""
    fences = np.sort(np.concatenate([_section(segment, "id.fences") for segment in segments]))
    total = sum(segment.count for segment in segments)
    step = max(1, size // STRIDE)
    inner = [int(key) for key in np.unique(fences[step::step])] if total > size else []
    borders = [0, *(key for key in inner if key), 1 << 64]
    return list(pairwise(borders))


def repeated(paths: Sequence[str], shape: CodeShape, low: int, high: int) -> list[Any]:
    """Ids with keys in [low, high) that are in more than one of the segments."""
    segments = [Segment(Path(path), shape) for path in paths]
    keys: list[Keys] = []
    numbers: list[npt.NDArray[np.int64]] = []
    places: list[npt.NDArray[np.int64]] = []
    for number, segment in enumerate(segments):
        own = _section(segment, "id.keys")
        first = int(np.searchsorted(own, np.uint64(low), "left"))
        last = len(own) if high == 1 << 64 else int(np.searchsorted(own, np.uint64(high), "left"))
        keys.append(own[first:last])
        numbers.append(np.full(last - first, number))
        places.append(np.arange(first, last))
    joined, of, place = np.concatenate(keys), np.concatenate(numbers), np.concatenate(places)
    order = np.argsort(joined, kind="stable")
    same = np.flatnonzero(joined[order][1:] == joined[order][:-1])
    suspects = np.unique(np.concatenate([order[same], order[same + 1]])) if same.size else np.zeros(0, int)
    seen: dict[Any, int] = {}
    for index in suspects:
        segment = segments[of[index]]
        position = np.asarray(_section(segment, "id.order")[place[index : index + 1]], np.int64)
        one = segment.ids(position)[0].as_py()
        seen[one] = seen.get(one, 0) + 1
    return [one for one, count in seen.items() if count > 1]


def _section(segment: Segment, name: str) -> Any:
    kinds = {"id.keys": "<u8", "id.fences": "<u8", "id.order": "<u4"}
    section = segment.file.section(name)
    return section.view(kinds[name], section.bytes // np.dtype(kinds[name]).itemsize)
