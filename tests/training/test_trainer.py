"""Training end to end: it learns, repeats itself, keeps the best epoch, and refuses bad input."""

from __future__ import annotations

import inspect
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pyarrow as pa
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import rbegir
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ESTIMATORS, PRESETS, Estimator
from rbegir.errors import DeviceError, FileError, FullError, InputError
from rbegir.evaluate import scorers
from rbegir.evaluate.retrieval import Targets
from rbegir.evaluate.scorers import ModelScorer
from rbegir.read.pairs import read_pairs
from rbegir.training import trainer
from rbegir.training.config import TrainConfig
from rbegir.training.loop import lr_scale
from rbegir.training.step import resolve_device
from rbegir.training.trainer import TrainResult, run

from .conftest import SMALL, TRAINED

QUICK = {"config": SMALL, "device": "cpu", "batch_size": 200, "rerank": False}


def test_it_learns(pairs_file: Path, tmp_path: Path) -> None:
    drawn = TrainConfig(epochs=1, lr=1e-9, table_lr=1e-9, spelling_start=False)
    untrained = run(pairs_file, **QUICK, settings=drawn)
    result = run(pairs_file, **{**QUICK, "rerank": True}, epochs=10, out=tmp_path / "model")
    assert result.recall["reranked"]["recall@10"] >= result.recall["codes"]["recall@10"] - 0.1
    before, after = untrained.to_dict(), result.to_dict()
    assert after["roc_auc"] > max(0.9, before["roc_auc"] + 0.1)
    assert after["log_loss"] < before["log_loss"] - 0.3
    losses = [entry["loss"] for entry in result.history]
    assert losses == sorted(losses, reverse=True)
    assert result.pairs + result.valid_pairs == 3000
    assert result.pairs_per_s > 0

    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == [
        "config.json",
        "log",
        "model.safetensors",
        "rerank",
    ]
    log = EventAccumulator(str(tmp_path / "model" / "log")).Reload()
    figures = [event.value for event in log.Scalars("valid_roc_auc")]
    assert figures == pytest.approx([entry["roc_auc"] for entry in result.history])
    config, _, extra = checkpoint.read(tmp_path / "model")
    assert config == SMALL
    assert extra["gamma"] == result.gamma
    assert extra["training"]["history"] == result.history


_stored = checkpoint.write


@pytest.mark.parametrize(("whole", "tolerance"), [(True, 2e-4), (False, 1e-3)])
def test_the_model_gives_the_codes_that_training_measured(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch, whole: bool, tolerance: float
) -> None:
    """Validation ran in torch, `Model` runs without: the figures agree to the last tie; with tables that are
    rounded to bytes, nearly."""
    monkeypatch.setattr(checkpoint, "write", lambda *args, **more: _stored(*args, **{**more, "whole": whole}))
    result = run(pairs_file, **QUICK, epochs=2, valid=pairs_file)
    from rbegir.evaluate.groups import sample_groups
    from rbegir.evaluate.metrics import fit_gamma, group_auc, log_loss
    from rbegir.read.pairs import read_pairs

    groups = sample_groups(read_pairs(pairs_file).read_all())
    scores = groups.scores(
        result.model.embed_queries(groups.queries), result.model.embed_keywords(groups.keywords)
    )
    figures = result.to_dict()
    assert group_auc(scores) == pytest.approx(figures["roc_auc"], abs=tolerance)
    assert log_loss(scores, fit_gamma(scores)) == pytest.approx(figures["log_loss"], rel=10 * tolerance)


def test_codes_rank_by_spelling_before_the_first_step(pairs_file: Path) -> None:
    """A model that has hardly learned finds most misspelt titles, one that starts as drawn finds few."""
    pairs = read_pairs(pairs_file).read_all().slice(0, 200)
    texts = pa.array(sorted(set(read_pairs(pairs_file).read_all()["keyword"].to_pylist())))
    targets = Targets(pairs, texts)
    found = {}
    for start in (True, False):
        settings = TrainConfig(lr=1e-9, table_lr=1e-9, spelling_start=start, rerank=False)
        config = replace(SMALL, conv=128)
        model = run(pairs_file, config=config, settings=settings, epochs=1, valid=False).model
        positions = ModelScorer(model).search(targets.queries, texts, 10, lambda done: None)
        found[start] = float(targets.recall(positions, (10,))[10].mean())
    assert found[True] > 2 * found[False], found
    assert found[True] > 0.4, found


def test_the_same_seed_gives_the_same_weights(pairs_file: Path, trained: tuple[TrainResult, Path]) -> None:
    same, other = (run(pairs_file, **TRAINED, seed=seed).model.fingerprint for seed in (0, 4))
    assert same == trained[0].model.fingerprint != other


def test_pairs_in_memory_train_what_a_file_trains(pairs_file: Path) -> None:
    table = read_pairs(pairs_file).read_all()
    pairs = list(zip(table["query"].to_pylist(), table["keyword"].to_pylist(), strict=True))
    quick = {**QUICK, "epochs": 1, "valid": False}
    first, *others = (run(given, **quick).model.fingerprint for given in (pairs_file, pairs, table))
    assert others == [first, first]


def test_streaming_in_small_buffers_trains_on_all_pairs(pairs_file: Path) -> None:
    result = run(pairs_file, **QUICK, epochs=2, settings=TrainConfig(buffer_pairs=700))
    assert result.pairs + result.valid_pairs == 3000
    assert result.to_dict()["roc_auc"] > 0.65


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_trains(preset: str, pairs_file: Path) -> None:
    config = replace(PRESETS[preset], conv=16, hash_buckets=64)
    result = run(pairs_file, config=config, device="cpu", batch_size=500, epochs=2)
    first, second = (entry["loss"] for entry in result.history)
    assert second < first - 0.1
    assert result.model.encode_queries(["some words"]).n == config.n


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_estimator_trains(estimator: Estimator, pairs_file: Path) -> None:
    config, drawn = replace(SMALL, estimator=estimator), TrainConfig(spelling_start=False, rerank=False)
    result = run(pairs_file, config=config, settings=drawn, device="cpu", batch_size=100, epochs=3)
    assert result.history[2]["loss"] < result.history[0]["loss"] - 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"negatives": 10},
        {"gamma": 12.0},
        {"precision": "bfloat16"},
        {"config": replace(SMALL, share_towers=True, hidden=(20,))},
        {"config": replace(SMALL, bias=False, time_varying=False, residual_weights=False)},
    ],
)
def test_settings_train(options: dict[str, object], pairs_file: Path) -> None:
    result = run(pairs_file, **{**QUICK, "epochs": 2, **options})
    assert result.history[1]["loss"] < result.history[0]["loss"] - 0.02
    if options.get("gamma"):
        assert result.gamma == pytest.approx(12.0)


def test_weights_count(tmp_path: Path) -> None:
    """Pairs of a tiny weight are as good as absent."""
    lines = ["query\tkeyword\tweight"]
    for i in range(40):
        lines.append(f"red{i}\tapple{i}\t1")
        lines.append(f"red{i}\twrong{i}\t1e-30")
    path = tmp_path / "weighted.tsv"
    path.write_text("\n".join(lines) + "\n")
    model = run(path, **{**QUICK, "batch_size": 40}, epochs=30, valid=False, word_dropout=0.0).model
    queries = model.embed_queries([f"red{i}" for i in range(40)])
    right = model.embed_keywords([f"apple{i}" for i in range(40)])
    wrong = model.embed_keywords([f"wrong{i}" for i in range(40)])

    def cosine(k: np.ndarray) -> np.ndarray:
        return (queries * k).sum(1) / np.linalg.norm(queries, axis=1) / np.linalg.norm(k, axis=1)

    assert (cosine(right) > cosine(wrong)).mean() > 0.95


def test_the_best_epoch_is_kept_and_patience_stops(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are dictated: the second epoch is the best, then two worse ones."""
    states = []

    class Dictated(trainer.Validation):
        def __call__(self, model, device):  # type: ignore[no-untyped-def]
            states.append({name: value.clone() for name, value in model.state_dict().items()})
            return scores.pop(0)

    scores = [(1.0, auc) for auc in (0.6, 0.9, 0.8, 0.7, 0.95)]
    monkeypatch.setattr(trainer, "Validation", Dictated)
    result = run(pairs_file, **QUICK, epochs=5, patience=2, out=tmp_path / "model")
    assert [entry["roc_auc"] for entry in result.history] == [0.6, 0.9, 0.8, 0.7]
    assert result.best_epoch == 2
    _, tensors, _ = checkpoint.read(tmp_path / "model")
    for name, value in states[1].items():
        wanted = value.numpy()
        if name.endswith(".conv.weight"):
            wanted = checkpoint.from_bytes(*checkpoint.to_bytes(wanted))
        assert np.array_equal(tensors[name], wanted)


def test_a_log_that_cannot_be_written_is_named(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(directory: str, **_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter", full)
    with pytest.raises(FullError, match=r"cannot write .*/m/log: no space left on device"):
        run(pairs_file, **QUICK, epochs=1, out=tmp_path / "m")


def test_without_tensorboard_one_line_says_so(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run(pairs_file, **QUICK, epochs=1, out=tmp_path / "model", progress=True)
    assert capsys.readouterr().err.count("tensorboard is not installed: no log is written") == 1
    assert not (tmp_path / "model" / "log").exists()


def test_validation_shows_its_progress(pairs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    @contextmanager
    def reported(progress: object, title: str) -> Iterator[Callable[..., None]]:
        yield lambda done, total, what: shares.append(done / total) if what == "validation" else None

    monkeypatch.setattr(trainer, "reported", reported)
    monkeypatch.setattr(scorers, "BATCH", 10)
    run(pairs_file, **QUICK, epochs=1)
    assert len(shares) > 5
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_progress_is_shown_where_it_is_seen(
    pairs_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(pairs_file, **QUICK, epochs=1)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("rbegir.base.progress.seen", lambda: True)
    run(pairs_file, **QUICK, epochs=1, progress=False)
    assert capsys.readouterr().err == ""
    run(pairs_file, **QUICK, epochs=1)
    assert "epoch 1  loss" in capsys.readouterr().err


def test_without_validation(pairs_file: Path, tmp_path: Path, short_fits: None) -> None:
    """The reranker is fitted on pairs made of the keywords, and nothing is compared."""
    settings = {**QUICK, "rerank": True, "epochs": 1, "valid": False, "out": tmp_path / "model"}
    result = run(pairs_file, **settings)
    assert result.pairs == 3000
    assert result.to_dict()["roc_auc"] is None
    assert result.best_epoch == 1
    assert result.recall == {}
    titles = list(dict.fromkeys(read_pairs(pairs_file).read_all()["keyword"].to_pylist()))
    with rbegir.Index.create(tmp_path / "titles.rbe", result.model) as index:
        index.add(titles)
        hits = index.search(titles[:20], k=1)
        assert hits.reranked
        assert hits.texts[:, 0].tolist() == titles[:20]
    shutil.rmtree(tmp_path / "model" / "rerank")  # as a version that fitted none left it
    assert run(pairs_file, **settings, resume=True).model.reranker is not None
    assert run(pairs_file, **{**settings, "out": None, "rerank": False}).model.reranker is None


def test_a_file_of_validation_pairs_is_drawn_from_as_a_whole(
    pairs_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[pa.Table] = []
    validation = trainer.Validation
    monkeypatch.setattr("rbegir.training.data.MAX_VALIDATION", 100)
    monkeypatch.setattr(trainer, "Validation", lambda pairs, report: (
        seen.append(pairs), validation(pairs, report))[1])  # fmt: skip
    valid = write(tmp_path / "valid.tsv", *(f"q{i:05d}\tkeyword {i:05d}" for i in range(1000)))
    assert run(pairs_file, **QUICK, epochs=1, valid=valid).valid_pairs == 100
    places = [int(query[1:]) for query in seen[0]["query"].to_pylist()]
    assert places == sorted(set(places))
    assert np.histogram(places, bins=4, range=(0, 1000))[0].min() >= 15


def test_public_name(pairs_file: Path) -> None:
    model = rbegir.train(pairs_file, **QUICK, epochs=1)
    assert isinstance(model, rbegir.Model)
    json.dumps(model.config.to_dict())


def test_its_signature_says_that_it_returns_a_model() -> None:
    shown = inspect.signature(rbegir.train)
    assert shown.return_annotation is rbegir.Model
    assert get_type_hints(rbegir.train)["return"] is rbegir.Model
    assert shown.parameters == inspect.signature(run).parameters
    assert inspect.signature(run).return_annotation is TrainResult


def test_learning_rate_rises_and_falls() -> None:
    scales = [lr_scale(step, 1000) for step in range(1001)]
    assert scales[0] == pytest.approx(1 / 50)
    assert scales.index(max(scales)) == 49
    assert scales[500] == pytest.approx(0.5)
    assert scales[1000] == 0
    assert lr_scale(0, 1) == 1


# Bad input: one sentence, a way out, nothing on disk.


def write(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(["query\tkeyword", *rows]) + "\n")
    return path


def test_one_pair(tmp_path: Path) -> None:
    path = write(tmp_path / "one.tsv", "a\tb")
    with pytest.raises(InputError, match="training needs at least 2 pairs, got 1 pair") as caught:
        run(path, **QUICK, out=tmp_path / "model")
    assert caught.value.hint == "give more pairs"
    assert not (tmp_path / "model").exists()


def test_one_keyword(tmp_path: Path) -> None:
    path = write(tmp_path / "one.tsv", "a\tb", "c\tb", "d\tb")
    with pytest.raises(InputError, match="training needs at least 2 different keywords, got 1"):
        run(path, **QUICK, valid=False, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_too_few_keywords_to_hold_out(tmp_path: Path) -> None:
    path = write(tmp_path / "few.tsv", "a\tb", "c\td", "e\tf")
    with pytest.raises(InputError, match=r"held out for validation are too few: .* one keyword only") as e:
        run(path, **QUICK, out=tmp_path / "model")
    assert "--no-valid" in e.value.hint
    same = [("one query", f"keyword {i}") for i in range(60)]
    with pytest.raises(InputError, match=r"too few: the query 'one query' is paired with every keyword") as e:
        run(same, **QUICK)
    assert "--no-valid" in e.value.hint
    given = write(tmp_path / "given.tsv", "a\tb", "c\tb")
    with pytest.raises(InputError, match=r"the pairs of .*given.tsv for validation are too few"):
        run(path, **QUICK, valid=given)
    with pytest.raises(InputError, match="the pairs given for validation are too few"):
        run(path, **QUICK, valid=[("a", "b")])
    two = [(f"query {i}", f"keyword {i % 2}") for i in range(60)]
    for pairs, message in (
        (two, r"2 different keywords, got 1 \(.*: 30\)"),
        (two[:2], r"2 pairs, got 1 pair \(.*: 1\)"),
    ):
        with pytest.raises(InputError, match=message) as e:
            run(pairs, **QUICK)
        assert "--no-valid" in e.value.hint
    assert not (tmp_path / "model").exists()


def test_missing_validation_is_noticed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rbegir.training.trainer.TrainingData", None)  # which may take long
    with pytest.raises(FileError, match=r"none\.tsv does not exist"):
        run([("a", "b"), ("c", "d")], valid=tmp_path / "none.tsv")


def test_nothing_to_resume() -> None:
    with pytest.raises(InputError, match="nothing to resume without out"):
        run([("a", "b"), ("c", "d")], resume=True)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"nothing\.tsv"):
        run(tmp_path / "nothing.tsv", **QUICK, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_occupied_out(pairs_file: Path, tmp_path: Path) -> None:
    (tmp_path / "thing").write_text("mine")
    with pytest.raises(FileError, match="is not empty") as caught:
        run(pairs_file, **QUICK, out=tmp_path)
    assert "--resume" in caught.value.hint
    with pytest.raises(FileError, match=r"out must be a directory, but .*thing is a file"):
        run(pairs_file, **QUICK, out=tmp_path / "thing")
    assert [p.name for p in tmp_path.iterdir()] == ["thing"]


def test_uncreatable_out(pairs_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot create .*file/model: not a directory"):
        run(pairs_file, **QUICK, out=tmp_path / "file" / "model")


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(DeviceError, match="device 'cuda' was asked for, but torch finds no GPU") as caught:
        resolve_device("cuda")
    assert caught.value.hint == "use device='cpu'"
    for name in ("gpu", "mps", "meta"):
        known = "'auto', 'cpu', 'cuda' or 'cuda:N'"
        with pytest.raises(InputError, match=f"device must be {known}, got '{name}'"):
            resolve_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match="device 'cuda:5' was asked for, but there are 2 GPUs"):
        resolve_device("cuda:5")


def test_skipped_rows_are_reported_or_fatal(pairs_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.tsv"
    path.write_text(pairs_file.read_text() + "lonely\n!!!\t???\n")
    assert sum(run(path, **QUICK, epochs=1).skipped.values()) == 2
    with pytest.raises(InputError, match=r"bad\.tsv, line 3,002"):
        run(path, **QUICK, epochs=1, strict=True, out=tmp_path / "model")
    assert not (tmp_path / "model").exists()
