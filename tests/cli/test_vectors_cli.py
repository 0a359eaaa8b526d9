"""`rbegir index build` and `add` with vectors instead of texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.encode.binarizer.binarizer import Binarizer
from rbegir.index import creation
from rbegir.index.exchange import transfer
from rbegir.index.exchange.files import import_npy
from rbegir.index.store import Index
from tests.cli.test_index_cli import model, rbegir
from tests.read.test_vectors import written

__all__ = ["model"]  # a fixture

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def vectors() -> Array:
    return np.random.default_rng(0).integers(0, 256, (700, 40)).astype(np.float32)


@pytest.mark.parametrize("suffix", [".npy", ".fvecs", ".bvecs"])
def test_a_file_of_vectors(
    tmp_path: Path, suffix: str, vectors: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The codes are those of one call, however few vectors are held in memory at a time."""
    width = 1 if suffix == ".bvecs" else 4
    monkeypatch.setattr(creation, "VECTOR_BYTES", 100 * 40 * width)
    file, out = written(tmp_path / f"v{suffix}", vectors), tmp_path / "v.rbe"
    done = rbegir("index", "build", file, "--out", out, "--metric", "l2", "--keyword-planes", 3, "--json")
    assert (done.status, done.json["keywords"], done.json["bytes_per_keyword"]) == (0, 700, 24)
    binarizer = Binarizer(40, keyword_planes=3, metric="l2").fit(vectors)
    with Index.open(out) as index:
        assert index.info()["expected"]["metric"] == "l2"
        assert index.codes(np.arange(700)) == binarizer.encode_keywords(vectors)
        assert index.search(vectors[:3], k=1).ids.tolist() == [[0], [1], [2]]
    added = rbegir("index", "add", out, written(tmp_path / f"w{suffix}", vectors[:65]), "--json")
    assert (added.json["added"], added.json["keywords"]) == (65, 765)
    reports: list[tuple[int, int]] = []
    monkeypatch.setattr(transfer, "ROWS", 300)
    with import_npy(
        file,
        tmp_path / "same.rbe",
        binarizer=binarizer,
        progress=lambda done, total: reports.append((done, total)),
    ) as index:
        assert reports == [(300, 700), (600, 700), (700, 700)]
        assert index.codes(np.arange(700)) == binarizer.encode_keywords(vectors)


def test_a_binarizer_that_is_there(tmp_path: Path, vectors: Array) -> None:
    binarizer = Binarizer(40).fit(vectors[:300])
    binarizer.save(tmp_path / "binarizer")
    file, out = written(tmp_path / "v.fvecs", vectors), tmp_path / "v.rbe"
    assert rbegir("index", "build", tmp_path / "binarizer", file, "--out", out).status == 0
    with Index.open(out) as index:
        assert index.model.fingerprint == binarizer.fingerprint
        assert index.codes(np.arange(700)) == binarizer.encode_keywords(vectors)


def test_bytes_choose_the_codes(tmp_path: Path, vectors: Array) -> None:
    file, out = written(tmp_path / "v.fvecs", vectors), tmp_path / "v.rbe"
    done = rbegir("index", "build", file, "--out", out, "--bytes", 16, "--json")
    assert (done.status, done.json["bytes_per_keyword"]) == (0, 16)
    chosen = Binarizer(40, bytes=16).fit(vectors)
    with Index.open(out) as index:
        assert index.model.fingerprint == chosen.fingerprint
        assert (index.model.n, index.model.keyword_planes) == (chosen.n, chosen.keyword_planes)


def test_a_column_of_vectors(tmp_path: Path, vectors: Array) -> None:
    columns = {
        "id": [f"p{i}" for i in range(700)],
        "text": [f"text {i}" for i in range(700)],
        "price": list(range(700)),
        "embedding": pa.FixedSizeListArray.from_arrays(vectors.ravel(), 40),
    }
    pq.write_table(pa.table(columns), tmp_path / "p.parquet", row_group_size=300)
    out, column = tmp_path / "p.rbe", ("--vector-column", "embedding")
    done = rbegir("index", "build", tmp_path / "p.parquet", *column, "--out", out, "--json")
    assert (done.status, done.json["attributes"]) == (0, {"price": "int64"})
    with Index.open(out) as index:
        hits = index.search(vectors[7], k=1)
        assert (hits.ids[0, 0], hits.texts[0, 0]) == ("p7", "text 7")  # type: ignore[index]
    again = rbegir("index", "add", out, tmp_path / "p.parquet", *column)
    assert again.err.splitlines()[0] == "error: id 'p0' is in the index already (700 such ids)"
    assert rbegir("index", "add", out, tmp_path / "p.parquet", *column, "--upsert").status == 0


def test_progress_moves_while_vectors_are_encoded(
    tmp_path: Path, vectors: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rbegir.encode.binarizer.vectors.BLOCK_VALUES", 100 * 40)
    binarizer = Binarizer(40, rounds=3)
    shares: list[float] = []
    binarizer.fit(vectors, notify=shares.append)
    assert shares == pytest.approx([1 / 3, 2 / 3, 1])
    reports: list[tuple[int, int]] = []
    with Index.create(tmp_path / "v.rbe", binarizer) as index:
        index.add(vectors, progress=lambda done, total: reports.append((done, total)))
    assert reports == [(done, 700) for done in range(100, 701, 100)]


def test_what_is_refused(tmp_path: Path, vectors: Array, model: Path) -> None:
    file, out = written(tmp_path / "v.fvecs", vectors), tmp_path / "v.rbe"
    binarizer, texts = tmp_path / "binarizer", tmp_path / "t.txt"
    Binarizer(40, rounds=0).fit(vectors).save(binarizer)
    texts.write_text("red shoes\n")
    for words, message in (
        ((binarizer, file, "--metric", "l2"), "are for a Binarizer that is fitted"),
        ((file, "--metric", "far"), "metric must be one of cosine, ip, l2, got 'far'"),
        ((model, texts, "--metric", "l2"), "--metric is for vectors"),
        ((model, texts, "--bytes", 16), "--bytes belong to --encoder and to vectors"),
        ((model, texts, "--cluster", "local", "--n", 64), "--bytes belong to --encoder and to vectors"),
        ((file, "--bytes", 13), "no code takes 13 bytes"),
        ((binarizer, file, "--bytes", 16), "--bytes and --metric are for a Binarizer that is fitted"),
        ((file, "--bytes", 16, "--keyword-planes", 2), "--keyword-planes and --bytes cannot both be given"),
        (("--encoder", "some", file), "vectors are encoded by a Binarizer"),
        ((model, file), "is not the config of a binarizer"),
        ((model, binarizer, file), "expected MODEL and TEXTS"),
    ):
        done = rbegir("index", "build", *words, "--out", out)
        assert done.status == 1
        assert message in done.err
        assert not out.exists()
    file.write_bytes(file.read_bytes()[:-1])
    assert "v.fvecs is cut short" in rbegir("index", "build", file, "--out", out).err
    assert rbegir("index", "build", model, texts, "--out", out).status == 0
    wrong = rbegir("index", "add", out, written(tmp_path / "w.fvecs", vectors))
    assert wrong.err.splitlines()[0] == "error: this index encodes texts, got vectors"


def test_accuracy_reads_such_files(tmp_path: Path, vectors: Array) -> None:
    file = written(tmp_path / "v.fvecs", vectors)
    words = ("--methods", "binarizer_start", "--queries-count", 20, "--json")
    done = rbegir("bench", "accuracy", "--vectors", file, "--queries", file, *words)
    assert done.status == 0, done.err
    assert json.loads(done.out)["vectors"]["dims"] == 40
