"""Building an index with the processes of a Ray cluster.

    count    usable rows of every row group                                   a row group per task
    cut      chunks of `segment_rows` usable rows; the rows of each are now known
    make     each chunk: read ─ encode ─ one finished segment                 a chunk per task
    check    no id is there twice                                             a range of ids per task
    name     one manifest over all segments, and the directory gets its name

The unfinished index is `.ads.rbe.building`, with a file BUILD that names its input. A stopped build that is
run again with the same arguments makes only what is missing. A segment is written under a temporary name and
renamed to its chunk's number, and its rows are known beforehand. So a chunk can be made anywhere, in any
order and more than once (after a lost node, say): the file is always the same, and every row appears once.

The result is that of `Index.build`: the same rows, ids, codes and hits, and the same bytes as long as no add
would merge segments. Counting first costs a second pass over the text column, a few per cent of encoding it.
Giving out rows as chunks finish would make rows, ties and default ids depend on which machine was faster.
"""

import contextlib
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rbegir.base import disk
from rbegir.base.arguments import check_attributes, check_ids, check_tenants, check_texts, refuse_repeats
from rbegir.cluster.pool import root_cause
from rbegir.cluster.session import Session, import_ray
from rbegir.encode.encoder import Encoder, Savable, encode_keywords, load_encoder
from rbegir.errors import ClusterError, FileError, InputError, MismatchError, RbegirError, whole_number
from rbegir.index.creation import SEGMENT_ROWS, keywords_of, make, staged
from rbegir.index.keys import STRIDE
from rbegir.index.manifest import MODEL, Manifest, check_adds, commit, first_manifest, prepare, read_manifest
from rbegir.index.segment import MAX_ROWS, CodeShape, Entry, KeywordRows, LiveRows, Segment, write_segment
from rbegir.read.pairs import Reading
from rbegir.read.parquet import Group, Slice, count_usable, cut, find_files, find_groups, read_chunk

STATE = "BUILD"
TEMPORARY = ".chunk-"
AHEAD = 1024  # tasks that are submitted before they can run
RANGE = 1 << 24  # ids that one task sorts: 128 MB of keys

Keys = npt.NDArray[np.uint64]
Progress = Callable[[str, float], None]  # (what is being done, the fraction that is)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Task:
    """A chunk to be done."""

    number: int
    first_row: int
    slices: tuple[Slice, ...]

    @property
    def rows(self) -> int:
        return sum(part.count for part in self.slices)

    @property
    def file(self) -> str:
        return f"segment-{self.number:08d}.rbs"


@dataclass(frozen=True)
class Built:
    """The result of a build."""

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
    tenant: str | None = None,
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
    manifest = first_manifest(encoder, tenant=tenant)
    check_adds(encoder, manifest)
    identity = {
        "version": 1,
        "fingerprint": encoder.fingerprint,
        "inputs": [[str(f), f.stat().st_size, f.stat().st_mtime_ns] for f in files],
        "reading": asdict(reading),
        "segment_rows": segment_rows,
        **({} if tenant is None else {"tenant": tenant}),
    }
    target = Path(path).absolute()
    with staged(target, overwrite=overwrite, resumable=True) as writer:
        stage = writer.directory
        state = _resume(stage, identity)
        with contextlib.closing(Session(address)):
            if state is None:
                make(stage, manifest, encoder)
                state = {"identity": identity, **_count(groups, reading, progress)}
                with disk.staged(stage / STATE) as new:
                    new.write_text(json.dumps(state))
            chunks = cut(list(zip(groups, state["usable"], strict=True)), segment_rows)
            first_rows = accumulate((sum(part.count for part in chunk) for chunk in chunks), initial=0)
            numbered = enumerate(zip(first_rows, chunks, strict=False))
            tasks = [Task(number, row, tuple(chunk)) for number, (row, chunk) in numbered]
            if not tasks:
                raise InputError(f"{texts} holds no usable text: {state['skipped'] or 'it has no rows'}")
            shape = manifest.shape
            todo = [task for task in tasks if not is_done(stage / task.file, task, shape)]
            stored = None if isinstance(encoder, Savable) else encoder
            rows = sum(task.rows for task in tasks)
            done = rows - sum(task.rows for task in todo)
            progress("encoding", done / rows)
            for task, _ in _each(make_segment, todo, str(stage), manifest, reading, stored, workers=workers):
                done += task.rows
                progress("encoding", done / rows)
            progress("checking", 0.0)
            segments = [Segment(stage / task.file, shape) for task in tasks]
            refuse_repeated_ids(segments)
        _finish(stage, segments)
    writer.close()
    (target / STATE).unlink()
    progress("checking", 1.0)
    return Built(rows, len(tasks), len(tasks) - len(todo), state["skipped"])


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


def _count(groups: Sequence[Group], reading: Reading, progress: Progress) -> dict[str, Any]:
    """The usable rows of each row group, and the reasons of the others."""
    usable: dict[Group, int] = {}
    skipped: Counter[str] = Counter()
    for group, (count, reasons) in _each(count_usable, groups, reading):
        usable[group] = count
        skipped.update(reasons)
        progress("counting", len(usable) / len(groups))
    return {"usable": [usable[group] for group in groups], "skipped": dict(skipped)}


def make_segment(
    task: Task, stage: str, manifest: Manifest, reading: Reading, encoder: Encoder | None = None
) -> None:
    """Write the segment of a task, unless it is there. Without an encoder, with the one that is stored."""
    directory = Path(stage)
    final = directory / task.file
    if is_done(final, task, manifest.shape):
        return
    if not directory.is_dir():
        raise FileError(
            f"{os.uname().nodename} does not see {directory}",
            hint="build into a directory that every node mounts at the same path",
        )
    texts, ids, attributes = keywords_of(read_chunk(task.slices, reading))
    given = check_texts(texts)
    wanted = None if ids is None else check_ids(ids)
    if wanted is not None:
        refuse_repeats(wanted)
    columns = {"text": given, **check_attributes(attributes, len(given), {})}
    check_tenants(columns, manifest.tenant)
    codes = encode_keywords(encoder or stored_encoder(stage), given)
    rows = LiveRows(KeywordRows(codes, task.first_row, wanted, columns), None)
    temporary = directory / f"{TEMPORARY}{task.number}.{os.urandom(6).hex()}"
    with disk.explained("write to", directory):
        try:
            write_segment(temporary, [rows], manifest.shape, manifest.tenant)
            disk.rename(temporary, final)
        finally:
            temporary.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def stored_encoder(directory: str) -> Encoder:
    """The model of a build, opened once per process; with one thread, as every core has its own process."""
    return load_encoder(Path(directory) / MODEL, threads=1)


def is_done(path: Path, task: Task, shape: CodeShape) -> bool:
    """Whether the segment of a task is there, complete."""
    try:
        segment = Segment(path, shape)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if (segment.count, segment.first_row) != (task.rows, task.first_row):
        raise InputError(f"{path} is not the segment that belongs there", hint="remove it and start again")
    return True


def _each(
    function: Callable[..., Any], items: Sequence[Item], *common: Any, workers: int | None = None
) -> Iterator[tuple[Item, Any]]:
    """(item, function(item, *common)) for every item, as they finish; a process that dies is replaced.

    If items fail, the error of the first of them is raised.
    """
    ray = import_ray()
    remote = ray.remote(num_cpus=1, max_retries=-1)(function)
    shared = [ray.put(value) for value in common]
    waiting = deque(range(len(items)))
    running: dict[Any, int] = {}
    failed: dict[int, RbegirError] = {}
    try:
        while running or waiting or failed:
            while waiting and not failed and len(running) < (workers or AHEAD):
                number = waiting.popleft()
                running[remote.remote(items[number], *shared)] = number
            if failed and min(failed) < min(running.values(), default=len(items)):
                raise failed[min(failed)]
            (done,), _ = ray.wait(list(running))
            number = running.pop(done)
            try:
                result = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if not isinstance(error.cause, RbegirError):
                    raise
                failed[number] = error.cause
            else:
                yield items[number], result
    except ray.exceptions.RayError as error:
        reason = root_cause(error)
        raise ClusterError(
            f"the build was interrupted: {reason}",
            hint="install rbegir with its extra [cluster] on every node"
            if "No module named" in reason
            else "run the same command again; it resumes where it stopped",
        ) from error
    finally:
        for reference in running if ray.is_initialized() else ():
            ray.cancel(reference)


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


def refuse_repeated_ids(segments: Sequence[Segment], *, size: int = RANGE) -> None:
    """Raise InputError if an id is in more than one segment.

    Every segment has its ids as ascending 64-bit keys (`index.keys`). The key space is cut into ranges of
    about `size` keys, at quantiles taken from the fences (every 512th key). A task takes one range: the keys
    of all segments in it, sorted together; equal neighbours are the same id, or two strings with the same
    hash, which the ids themselves decide. Inside a segment ids were compared when it was made.
    """
    if len(segments) < 2 or not segments[0].has_ids:
        return
    paths, shape = [str(segment.path) for segment in segments], segments[0].shape
    found = _each(repeated, ranges(segments, size), paths, shape)
    twice = sorted({one for _, some in found for one in some}, key=str)
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


def repeated(keys_of: tuple[int, int], paths: Sequence[str], shape: CodeShape) -> list[Any]:
    """Ids with keys in [low, high) that are in more than one of the segments."""
    low, high = keys_of
    parts: list[tuple[Segment, int, Keys]] = []  # with the first of its keys that are in the range
    for segment in (Segment(Path(path), shape) for path in paths):
        own = _section(segment, "id.keys")
        first = int(np.searchsorted(own, np.uint64(low)))
        last = len(own) if high == 1 << 64 else int(np.searchsorted(own, np.uint64(high)))
        parts.append((segment, first, own[first:last]))
    keys = np.sort(np.concatenate([own for _, _, own in parts]))
    suspects = np.unique(keys[1:][keys[1:] == keys[:-1]])
    seen: Counter[Any] = Counter()
    for segment, first, own in parts:
        places = first + np.flatnonzero(np.isin(own, suspects))
        positions = np.asarray(_section(segment, "id.order")[places], np.int64)
        seen.update(segment.ids(positions).to_pylist())
    return [one for one, count in seen.items() if count > 1]


def _section(segment: Segment, name: str) -> Any:
    kinds = {"id.keys": "<u8", "id.fences": "<u8", "id.order": "<u4"}
    section = segment.file.section(name)
    return section.view(kinds[name], section.bytes // np.dtype(kinds[name]).itemsize)
