"""A build by many processes is the build by one, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rbegir
from rbegir.cluster.bulk import STATE, build, ranges, repeated
from rbegir.codes.planes import Codes
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.segment import CodeShape, Segment
from rbegir.read.pairs import Reading, read_texts
from tests.index.fakes import HashEncoder

from .conftest import equal, until, words

ROWS = 1500


def table(rows: int = ROWS, *, first: int = 0, ids: bool = True) -> pa.Table:
    """Texts, some of them unusable, with ids and attributes of several types."""
    rng = np.random.default_rng(first)
    texts: list[str | None] = list(words(rng, rows))
    for bad in range(0, rows, 37):
        texts[bad] = ("", None, " — ")[bad % 3]
    columns: dict[str, Any] = {
        "text": texts,
        "shop": [f"s{i % 13}" for i in range(rows)],
        "price": np.where(rng.random(rows) < 0.1, np.nan, rng.integers(0, 99, rows)),
        "lang": pa.array([("en", "de", None)[i] for i in rng.integers(0, 3, rows)]).dictionary_encode(),
    }
    if ids:
        columns["id"] = [f"k{first + i}" for i in range(rows)]
    return pa.table(columns)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.parquet"
    pq.write_table(table(), path, row_group_size=217)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file() and file.name != "LOCK"}


def alone(
    path: Path, texts: Path, encoder: HashEncoder, rows: int, tenant: str | None = None
) -> dict[str, int]:
    stream = read_texts(texts)
    rbegir.Index.build(path, encoder, stream, segment_rows=rows, tenant=tenant).close()
    return stream.skipped.to_dict()


@pytest.mark.parametrize("ids", [True, False])
def test_the_same_bytes_as_one_machine(nodes: Any, tmp_path: Path, encoder: HashEncoder, ids: bool) -> None:
    texts = tmp_path / "texts.parquet"
    pq.write_table(table(ids=ids), texts, row_group_size=217)
    steps: list[tuple[str, float]] = []
    made = build(
        tmp_path / "many.rbe",
        encoder,
        texts,
        segment_rows=300,
        tenant="shop" if ids else None,
        progress=lambda step, done: steps.append((step, done)),
    )
    skipped = alone(tmp_path / "one.rbe", texts, encoder, 300, "shop" if ids else None)
    assert contents(tmp_path / "many.rbe") == contents(tmp_path / "one.rbe")
    assert made.skipped == skipped
    assert (made.keywords, made.segments, made.resumed) == (ROWS - 41, 5, 0)
    assert [step for step, done in steps if done == 1.0] == ["counting", "encoding", "checking"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    rbegir.Index.open(tmp_path / "many.rbe", model=encoder).verify()


def test_many_small_chunks_and_files_give_the_same_answers(
    nodes: Any, tmp_path: Path, encoder: HashEncoder
) -> None:
    """One machine merges small segments, a cluster does not: other files, the same index."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(3):
        pq.write_table(table(400, first=400 * number), folder / f"part-{number}.parquet", row_group_size=90)
    pq.write_table(
        pa.concat_tables([pq.read_table(f) for f in sorted(folder.iterdir())]), tmp_path / "all.parquet"
    )
    build(tmp_path / "many.rbe", encoder, folder, segment_rows=64)
    alone(tmp_path / "one.rbe", tmp_path / "all.parquet", encoder, 64)
    queries = ["w1 w2", "w5"]
    with (
        rbegir.Index.open(tmp_path / "many.rbe", model=encoder) as many,
        rbegir.Index.open(tmp_path / "one.rbe", model=encoder) as one,
    ):
        assert many.info()["segments"] > one.info()["segments"]
        equal(many.search(queries, 2000), one.search(queries, 2000))
        equal(many.search(queries, 50, where="price < 30"), one.search(queries, 50, where="price < 30"))
        many.compact()
        one.compact()
        equal(many.search(queries, 2000), one.search(queries, 2000))


SCRIPT = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from rbegir.cluster.bulk import build
    from tests.index.fakes import HashEncoder

    class Stuck(HashEncoder):  # stops when four segments are there
        def __init__(self, stage):
            super().__init__()
            self.stage = stage

        def encode_keywords(self, texts):
            import time
            while len(list(Path(self.stage).glob("segment-*"))) >= 4:
                time.sleep(0.05)
            return super().encode_keywords(texts)

    build(sys.argv[1], Stuck(sys.argv[4]), sys.argv[2], address=sys.argv[3], segment_rows=100, workers=2)
    """
)


class Fatal(HashEncoder):
    """Kills the worker that it first encodes in, before its segment is there."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def encode_keywords(self, texts: list[str]) -> Codes:
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().encode_keywords(texts)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")


def test_killed_half_way_and_resumed(nodes: Any, tmp_path: Path, texts: Path, encoder: HashEncoder) -> None:
    """kill −9 of the whole build, then of a worker of the next run; the index is the uninterrupted one."""
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    out, stage = tmp_path / "ads.rbe", tmp_path / ".ads.rbe.building"
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    process = subprocess.Popen(
        [sys.executable, str(script), str(out), str(texts), nodes.address, str(stage)], env=environment
    )
    try:
        until(lambda: len(list(stage.glob("segment-*"))) >= 4 or process.poll() is not None)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    there = len(list(stage.glob("segment-*")))
    assert 4 <= there < 15
    assert not out.exists()
    (stage / ".chunk-99.left").write_bytes(b"cut short")
    fatal = Fatal(str(tmp_path / "died"))
    made = build(out, fatal, texts, segment_rows=100)
    assert (tmp_path / "died").exists(), "a worker was to die"
    assert made.resumed >= there
    assert made.segments == 15
    whole = build(tmp_path / "whole.rbe", encoder, texts, segment_rows=100)
    assert whole.resumed == 0
    assert contents(out) == contents(tmp_path / "whole.rbe")


def test_an_unfinished_build_of_something_else_is_refused(
    nodes: Any, tmp_path: Path, texts: Path, encoder: HashEncoder
) -> None:
    out = tmp_path / "ads.rbe"
    stage = tmp_path / ".ads.rbe.building"
    stage.mkdir()
    (stage / STATE).write_text(json.dumps({"identity": {"version": 1}}))
    with pytest.raises(
        MismatchError, match="an unfinished build of something else: other fingerprint, inputs"
    ):
        build(out, encoder, texts)
    (stage / STATE).unlink()
    build(out, encoder, texts)
    with pytest.raises(FileError, match="exists already"):
        build(out, encoder, texts)
    assert build(out, encoder, texts, overwrite=True).keywords == ROWS - 41


def test_ids_that_are_there_twice(nodes: Any, tmp_path: Path, encoder: HashEncoder) -> None:
    first = table(200)
    again = table(200, first=199)  # k199 is the last of the one and the first of the other
    rows = [{**row, "text": "w1"} for row in pa.concat_tables([first, again]).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "texts.parquet")
    with pytest.raises(InputError, match=r"id 'k199' is in the index already \(1 such ids\)"):
        build(tmp_path / "ads.rbe", encoder, tmp_path / "texts.parquet", segment_rows=200)
    assert not (tmp_path / "ads.rbe").exists()


def test_ranges_of_keys_cover_all_and_find_what_is_twice(tmp_path: Path, encoder: HashEncoder) -> None:
    """Against a plain set, with ranges so small that there are many."""
    rng = np.random.default_rng(4)
    paths: list[Path] = []
    lists: list[list[int]] = []
    for number in range(3):
        ids = rng.choice(
            np.concatenate([np.arange(-3000, 3000), rng.integers(-(2**62), 2**62, 3000)]), 2500, False
        )
        ids = np.unique(ids)
        lists.append(ids.tolist())
        with rbegir.Index.create(tmp_path / f"{number}.rbe", encoder) as index:
            index.add([f"w{i}" for i in range(len(ids))], ids)
        paths += sorted((tmp_path / f"{number}.rbe").glob("segment-*.rbs"))
    shape = CodeShape(64, 2)
    segments = [Segment(path, shape) for path in paths]
    cuts = ranges(segments, 1024)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == 1 << 64
    assert len(cuts) > 4
    found = [one for low, high in cuts for one in repeated((low, high), [str(p) for p in paths], shape)]
    counts = np.unique(np.concatenate(lists), return_counts=True)
    assert sorted(found) == counts[0][counts[1] > 1].tolist()


def test_bad_input(nodes: Any, tmp_path: Path, texts: Path, encoder: HashEncoder) -> None:
    with pytest.raises(InputError, match="a cluster reads Parquet"):
        build(tmp_path / "a.rbe", encoder, tmp_path / "texts.csv")
    with pytest.raises(FileError, match="does not exist"):
        build(tmp_path / "a.rbe", encoder, tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"holds no \.parquet file"):
        build(tmp_path / "a.rbe", encoder, tmp_path / "empty")
    shutil.copy(texts, tmp_path / "empty" / "a.parquet")
    pq.write_table(pa.table({"text": ["w1"]}), tmp_path / "empty" / "b.parquet")
    with pytest.raises(InputError, match="have different columns"):
        build(tmp_path / "a.rbe", encoder, tmp_path / "empty")
    with pytest.raises(InputError, match="no column 'title'"):
        build(tmp_path / "a.rbe", encoder, texts, reading=Reading("title"))
    with pytest.raises(InputError, match="segment_rows must be a whole number from 1"):
        build(tmp_path / "a.rbe", encoder, texts, segment_rows=0)
    with pytest.raises(InputError, match=r"texts\.parquet, row 1: "):
        build(tmp_path / "a.rbe", encoder, texts, reading=Reading(strict=True))
    pq.write_table(pa.table({"text": ["w1", None]}), tmp_path / "one.parquet")  # one row group: it fails last
    with pytest.raises(InputError, match=r"one\.parquet, row 2: "):
        build(tmp_path / "a.rbe", encoder, tmp_path / "one.parquet", reading=Reading(strict=True))
    pq.write_table(pa.table({"text": ["", "-"]}), tmp_path / "bad.parquet")
    with pytest.raises(InputError, match="holds no usable text"):
        build(tmp_path / "b.rbe", encoder, tmp_path / "bad.parquet")
    assert not (tmp_path / "a.rbe").exists()


def test_vectors_are_not_built_from_texts(tmp_path: Path, texts: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((100, 16)).astype(np.float32)
    binarizer = rbegir.Binarizer(16, n=64).fit(vectors)
    binarizer.save(tmp_path / "binarizer")
    for model in (binarizer, tmp_path / "binarizer"):
        with pytest.raises(InputError, match="Binarizer") as caught:
            build(tmp_path / "a.rbe", model, texts)
        assert "add_codes" in caught.value.hint
