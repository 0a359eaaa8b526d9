"""The accuracy benchmark: figures against a plain count, every cheap method, and a page that is current."""

from __future__ import annotations

import inspect
import json
import runpy
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from rbegir.cli.bench import app
from rbegir.encode.binarizer.learn import rotation
from rbegir.errors import FileError, InputError
from rbegir.lab.bench import accuracy, quantizers, residual
from rbegir.lab.bench.quantizers import top
from rbegir.lab.bench.residual import Residual

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = {  # (method, budget in bytes) → least recall@10 on `clustered`
    ("pq", 4): 0.57,
    ("opq", 4): 0.57,
    ("rq", 2): 0.365,
    ("prq", 2): 0.365,
    ("lsq", 2): 0.325,
    ("rabitq", 16): 0.53,
    ("turbovec", 16): 0.53,
    ("scalar", 16): 0.56,
    ("sign_rescore", 8): 0.99,
}
CHEAP = ("binarizer", "binarizer_reranked", "binarizer_start", "scalar", "sign_rescore")


def test_recalls_are_counts() -> None:
    truth = np.arange(100)[None]
    found = np.arange(100)[None].copy()
    found[0, :5] = np.arange(200, 205)  # five of the top 10 missed, the best among them
    assert accuracy.recalls(found, truth) == {"recall@10": 0.5, "recall@100": 0.95, "recall@1": 0.0}
    assert accuracy.recalls(truth[:, ::-1], truth)["recall@10"] == 0.0
    assert accuracy.recalls(truth[:, ::-1], truth)["recall@100"] == 1.0


def test_sizes_round_dimensions_up() -> None:
    assert accuracy.sizes(50, (1, 2), (16, 32)) == [8, 16, 32]
    assert accuracy.sizes(384, (2,), ()) == [96]


def test_levels_are_those_of_the_best_gaussian_quantiser() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4000, 64)).astype(np.float32)
    for bits, error in ((1, 0.363), (2, 0.1175), (3, 0.0345), (4, 0.0095)):  # Max, 1960
        outcome = quantizers.scalar(x, x, 8 * bits, 0)
        assert outcome is not None
        assert outcome.decoded is not None
        assert ((x - outcome.decoded) ** 2).mean() == pytest.approx(error, rel=0.03)


def test_books_learned_in_torch_are_as_good_as_those_of_faiss() -> None:
    rng = np.random.default_rng(4)
    x = (rng.standard_normal((3000, 24)) * np.arange(1, 25) ** -0.7).astype(np.float32)
    train, rest = x[:2000], x[2000:]
    index = faiss.index_factory(24, "RQ4x6")
    index.train(train)
    theirs = ((index.sa_decode(index.sa_encode(rest)) - rest) ** 2).mean()
    for seed in (0, 1):
        codec = Residual.learned(train, 4, "cpu", seed, codewords=64)
        assert [book.shape for book in codec.books] == [(64, 24)] * 4
        assert ((codec.decode(rest) - rest) ** 2).mean() == pytest.approx(theirs, rel=0.03)
    outcome = quantizers.residual_in_torch(train, rest, 2, 0, "cpu")
    assert outcome.code_bytes == 2
    assert outcome.decoded is not None
    assert ((outcome.decoded - rest) ** 2).mean() == pytest.approx(
        ((Residual.learned(train - train.mean(axis=0), 2, "cpu", 1).decode(rest) - rest) ** 2).mean(),
        rel=0.05,
    )


def test_an_empty_cluster_takes_half_of_the_largest() -> None:
    points = torch.tensor([[0.0], [1.0], [10.0], [11.0], [12.0]])
    found = residual._lloyd(points, torch.tensor([[0.0], [500.0], [600.0]]))
    assert sorted(round(float(c), 2) for c in found[:, 0]) == [0.5, 10.0, 11.5]


@pytest.mark.parametrize(("dims", "size"), [(48, 16), (50, 16), (64, 8), (64, 32)])
def test_rabitq_is_scored_as_its_own_search_does(dims: int, size: int) -> None:
    rng = np.random.default_rng(dims)
    bits = size // 8
    x = (rng.standard_normal((1500, dims)) * np.arange(1, dims + 1) ** -0.4 + 0.1).astype(np.float32)
    outcome = quantizers.rabitq(x[:400], x[400:], size, 3)
    assert outcome is not None
    turn = rotation(dims, 3)
    index = faiss.IndexRaBitQ(dims, faiss.METRIC_INNER_PRODUCT, bits)
    index.qb = 0
    index.train(x[:400] @ turn)
    index.add(x[400:] @ turn)
    assert outcome.bytes == index.code_size
    theirs = index.search(x[:30] @ turn, 20)[1]
    assert (outcome.find(x[:30], 20) == theirs).mean() > 0.99  # but for near ties


def clustered(apart: float = 0.0) -> accuracy.Drawn:
    """Unit vectors off the origin, of falling variance, in eight clusters, one after the other."""
    rng = np.random.default_rng(7)
    of = np.sort(rng.integers(0, 8, 3700))
    x = rng.standard_normal((3700, 16)) * np.arange(1, 17) ** -0.5 + 0.2
    x += apart * rng.standard_normal((8, 16))[of]
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    order = rng.permutation(3700)
    train, every = x[np.sort(order[:1500])], x[np.sort(order[1500:3500])]
    asked = x[order[3500:]]
    return accuracy.Drawn(train, every, asked, top(asked, every, 100), {})


def test_every_peer_keeps_the_recall_of_its_set_up() -> None:
    """A peer that is scored by the wrong metric or badly trained falls below its bound."""
    drawn, threads = clustered(), faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # threads only wait for each other on so few rows
    try:
        rows = [row for (m, size) in EXPECTED for row in accuracy._rows(m, drawn, size, 0)]
    finally:
        faiss.omp_set_num_threads(threads)
    found = {row["method"]: row for row in rows}
    assert {method for method, _ in EXPECTED} == set(quantizers.PEERS)
    for (method, _), least in EXPECTED.items():
        assert found[method]["recall@10"] > least, method
    for method in ("pq", "opq", "rq", "prq", "lsq", "scalar"):
        by = found[method]["recall@10 by score"]
        assert found[method]["metric"] == "cosine"
        assert by["cosine"] > by["inner product"]
    assert found["rq_16"]["recall@10"] > found["rq"]["recall@10"] - 0.01
    assert found["rq_32"]["setting"] == "RQ2x8, encoding beam 32"


def test_turbovec_is_calibrated_on_rows_from_all_over_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of a file may all be alike: calibrated on them, recall@10 is .05 instead of .40."""
    drawn = clustered(apart=1.0)
    monkeypatch.setattr(quantizers, "CALIBRATION_ROWS", 128)  # fewer than a cluster has
    (row,) = accuracy._rows("turbovec", drawn, 16, 0)
    assert row["recall@10"] > 0.3


def test_the_command_measures_and_prints_one_json(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.standard_normal((1500, 40)) * np.arange(1, 41) ** -0.5).astype(np.float16)
    np.save(tmp_path / "v.npy", vectors)
    options = ["--vectors", str(tmp_path / "v.npy"), "--bits", "1,2", "--queries-count", "50", "--seeds", "2"]
    run = CliRunner().invoke(app, ["accuracy", *options, "--methods", ",".join(CHEAP), "--json"])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert result["vectors"] == {
        "count": 725,
        "dims": 40,
        "queries": 50,
        "train_rows": 725,
        "learning": "rows apart from those searched",
    }
    found = {(row["method"], row["budget_bytes"]): row for row in result["summary"]}
    assert set(found) == {(m, b) for m in CHEAP for b in (8, 16)} - {("sign_rescore", 16)}
    for row in result["cells"]:
        assert row["bytes"] == row["code_bytes"] + row["factor_bytes"]
        assert 0 < row["recall@10"] <= 1
    ours, plain = (found[m, 16]["recall@10"] for m in ("binarizer", "scalar"))
    assert ours["low"] <= ours["mean"] <= ours["high"]
    ahead = found["scalar", 16]["ahead"]
    assert ahead["mean"] == pytest.approx(ours["mean"] - plain["mean"])
    assert "ahead" not in found["binarizer", 16]
    assert ours["mean"] > plain["mean"]
    table = CliRunner().invoke(
        app, ["accuracy", *options[:4], "--queries-count", "50", "--methods", "scalar"]
    )
    assert table.exit_code == 0
    assert "recall@10" in table.stdout


def test_the_interval_is_students() -> None:
    assert accuracy.spread([0.5]) == {"mean": 0.5, "low": 0.5, "high": 0.5, "half_width": None}
    three = accuracy.spread([0.1, 0.2, 0.3])
    assert three["half_width"] == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    two = accuracy.spread([0.1, 0.3])
    assert two["half_width"] == pytest.approx(12.71 * 0.1, rel=1e-3)


@pytest.mark.parametrize("given", [True, False])
def test_what_is_learned_from_is_not_searched(given: bool) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((1000, 8)).astype(np.float32)
    asked = vectors[:200] + 1 if given else None
    drawn = [accuracy.draw(vectors, asked, seed, 30, 300, 400, apart=True) for seed in (0, 1, 1)]

    def names(rows: np.ndarray) -> set[bytes]:
        return {row.tobytes() for row in rows}

    for part in drawn:
        assert (len(part.train), len(part.every), len(part.asked)) == (300, 400, 30)
        assert not names(part.train) & names(part.every)
        assert not names(part.asked) & (names(part.train) | names(part.every))
    assert names(drawn[0].asked) != names(drawn[1].asked)
    assert names(drawn[0].train) != names(drawn[1].train)
    assert np.array_equal(drawn[1].every, drawn[2].every)
    among = accuracy.draw(vectors, None, 0, 30, 300, 400, apart=False)
    nearest = (among.train @ among.every.T).max(axis=1)
    assert (nearest > 0.999999).all()


def test_a_result_grows_and_keeps_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).standard_normal((600, 16)).astype(np.float32)
    out = tmp_path / "r.json"
    options: dict[str, Any] = {"query_count": 20, "methods": ("scalar",), "out": out, "about": "noise"}
    first = accuracy.measure(vectors, **options)
    assert json.loads(out.read_text())["cells"] == first["cells"]
    grown = accuracy.measure(vectors, seeds=2, bits=(1, 2), **options)
    assert grown["cells"][0] == first["cells"][0]
    assert {(r["budget_bytes"], r["seed"]) for r in grown["cells"]} == {(8, 0), (8, 1), (16, 0), (16, 1)}
    with monkeypatch.context() as patch:  # nothing is measured again
        patch.setitem(quantizers.PEERS, "scalar", lambda *_: pytest.fail("measured again"))
        again = accuracy.measure(vectors, seeds=2, bits=(1, 2), **options)
    assert again["cells"] == grown["cells"]
    assert accuracy.measure(vectors, bits=(4,), budget_s=-1.0, **options)["cells"] == grown["cells"]
    with pytest.raises(InputError, match="holds figures of other vectors"):
        accuracy.measure(vectors[:500], seeds=3, **options)
    with monkeypatch.context() as patch:  # a run that ends while it writes
        patch.setattr(Path, "write_text", lambda path, text: path.write_bytes(text[:9].encode()) and 1 / 0)
        with pytest.raises(ZeroDivisionError):
            accuracy.measure(vectors, bits=(4,), **options)
    assert json.loads(out.read_text())["cells"] == grown["cells"]
    old = json.loads(out.read_text())
    del old["cells"][0]["metric"]  # scored before the cosine was among the scores: measured again
    out.write_text(json.dumps(old))
    fresh = accuracy.measure(vectors, **options)["cells"]
    assert fresh[-1]["metric"] == grown["cells"][0]["metric"]
    assert len(fresh) == len(grown["cells"])
    out.write_text("{}")
    with pytest.raises(FileError, match="is not a result of this benchmark"):
        accuracy.measure(vectors, **options)
    out.write_text("no JSON")
    with pytest.raises(FileError, match="cannot read earlier figures"):
        accuracy.measure(vectors, **options)


def test_a_row_is_written_before_wider_beams_are_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take many times as long, so a run that ends meanwhile keeps it."""
    vectors = np.random.default_rng(0).standard_normal((1200, 16)).astype(np.float32)
    monkeypatch.setattr(quantizers, "_device", lambda: "cpu")
    monkeypatch.setattr(quantizers, "BEAMS", (16, "wide"))  # FAISS refuses the second
    out = tmp_path / "r.json"
    with pytest.raises(TypeError):
        accuracy.measure(vectors, query_count=20, methods=("rq",), bits=(), byte_budgets=(2,), out=out)
    assert [row["method"] for row in json.loads(out.read_text())["cells"]] == ["rq", "rq_16"]


def test_a_run_that_ended_between_beams_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).standard_normal((1200, 16)).astype(np.float32)
    monkeypatch.setattr(quantizers, "_device", lambda: "cpu")
    options: dict[str, Any] = {"query_count": 20, "methods": ("rq",), "bits": (), "byte_budgets": (2,)}
    whole = accuracy.measure(vectors, **options)["cells"]
    for last in range(3):  # the row after which the run ends

        def end(row: dict[str, Any], last: str = whole[last]["method"]) -> None:
            if row["method"] == last:
                raise KeyboardInterrupt

        out = tmp_path / f"{last}.json"
        with pytest.raises(KeyboardInterrupt):
            accuracy.measure(vectors, **options, out=out, report=end)
        cells = accuracy.measure(vectors, **options, out=out)["cells"]
        assert [row["method"] for row in cells] == ["rq", "rq_16", "rq_32"]
        assert [row["recall@10"] for row in cells] == [row["recall@10"] for row in whole]
        assert {row["host"] for row in cells} == ({0} if last == 2 else {1}), "of one training"


def test_bad_arguments() -> None:
    few = np.ones((30, 8), np.float32)
    with pytest.raises(InputError, match="30 vectors are too few to draw 20 queries from"):
        accuracy.measure(few, query_count=20)
    with pytest.raises(InputError, match="unknown method 'magic'"):
        accuracy.measure(few, few, methods=("magic",))


def test_the_runs_over_the_sets_are_well_formed() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "vector_sets.py"))
    options = set(inspect.signature(accuracy.measure).parameters)
    for steps in ("small_steps", "lsq_steps", "large_steps"):
        for step in script[steps]():
            assert set(step) <= options
            assert set(step["methods"]) <= set(accuracy.METHODS)


def test_what_the_title_task_counts() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "vector_sets.py"))
    found = np.arange(30).reshape(3, 10)
    gains = script["ndcg"](found, np.array([0, 12, 5]))  # first, third, not found
    assert gains == pytest.approx([1, 0.5, 0])
    whole = np.ones(2000)
    ours = np.where(np.arange(2000) % 4, 1.0, 0.8)  # 0.95 of the whole, spread .0866
    figure = script["kept"](ours, whole)
    assert figure["kept"] == pytest.approx(0.95)
    assert figure["high"] - figure["low"] == pytest.approx(2 * 1.96 * 0.0866 / 2000**0.5, rel=0.15)
    assert figure["low"] < 0.95 < figure["high"]
