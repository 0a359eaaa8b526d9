"""`rbegir eval` from the command line: figures, JSON, and every way to ask wrongly."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import rbegir
from rbegir.cli import main
from rbegir.encode.clsm import checkpoint
from rbegir.encode.clsm.presets import ModelConfig, preset, random_tensors
from rbegir.training import rerank
from tests.reranking import short_fits


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "200")

    def call(*args: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["rbegir", "eval", *map(str, args)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = capsys.readouterr()
        code = stopped.value.code
        return Done(code if isinstance(code, int) else 0, out, err)

    return call


@pytest.fixture(scope="module", params=["rbe_star", "m_1", "m_5"])
def any_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model("rbe_star", tmp_path_factory.mktemp("models"))


def make_model(name: str, directory: Path) -> Path:
    """Random weights: the same tower on both sides, so that equal texts get close vectors."""
    config = replace(preset(name), conv=16, share_towers=True, hash_buckets=64)
    tensors = random_tensors(config)
    for key in [key for key in tensors if key.startswith("query.")]:
        same = key.replace("query.", "keyword.")
        same = same if same in tensors else same.replace(".out.", ".rbe.W.")  # the float query of m_5
        if same in tensors:  # rbe_star has one plane more on the query side
            tensors[key] = tensors[same]
    checkpoint.write(directory / name, config, tensors, {})
    return directory / name


WORDS = ["amber", "basil", "cedar", "delta", "ember", "fjord", "grove", "haven", "ivory", "jade"]
TITLES = [f"{a} {b}" for a in WORDS for b in WORDS if a != b]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("query\tkeyword\n" + "".join(f"{t[:-1]}\t{t}\n" for t in TITLES))
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "titles.txt"
    path.write_text("".join(f"{t}\n" for t in [*TITLES, "something else"]))
    return path


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    path = tmp_path / "labels.tsv"
    rows = [
        f"{i}\tx\t{TITLES[i]}\t{TITLES[j]}\t{grade}" for i in range(20) for j, grade in ((i, 2), (i + 30, 0))
    ]
    path.write_text("query_id\tslice\tquery\ttitle\tgrade\n" + "\n".join(rows))
    return path


def test_json(run: Run, any_model: Path, pairs: Path, corpus: Path) -> None:
    done = run(any_model, "--pairs", pairs, "--corpus", corpus, "--json", "--bootstrap", 20)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert done.out.count("\n") == 1
    assert list(found)[:5] == ["log_loss", "roc_auc", "recall@1", "recall@10", "recall@100"]
    assert 0.7 < found["roc_auc"] <= 1
    assert 0 < found["recall@1"] <= found["recall@10"] <= found["recall@100"] == 1
    assert (found["pairs"], found["corpus"], found["missing"]) == (90, 91, 0)
    assert found["intervals"]["roc_auc"][0] <= found["roc_auc"] <= found["intervals"]["roc_auc"][1]


def test_table(run: Run, model: Path, pairs: Path, corpus: Path) -> None:
    done = run(model, "--pairs", pairs, "--corpus", corpus, "--baseline", "-k", 1, "-k", 5, "--bootstrap", 20)
    assert done.code == 0, done.err
    for words in (
        "tri-letter cosine",
        "log loss",
        "ROC AUC",
        "recall@1",
        "recall@5",
        "recall among 91 texts",
    ):
        assert words in done.out
    assert "recall@100" not in done.out


def test_baseline_in_json(run: Run, model: Path, pairs: Path) -> None:
    done = run(model, "--pairs", pairs, "--baseline", "--json", "--bootstrap", 0)
    found = json.loads(done.out)
    assert found["baseline"]["roc_auc"] > 0.9
    assert found["intervals"]["roc_auc"] is None


def test_labels_with_other_columns(run: Run, model: Path, labels: Path) -> None:
    columns = ["--keyword-column", "title", "--label-column", "grade"]
    done = run(model, "--labels", labels, *columns, "--json", "--bootstrap", 10)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["roc_auc"] == found["labels"]["roc_auc"] > 0.9
    assert found["labels"]["pairs"] == 40
    assert found["log_loss"] is None


def test_bad_rows_are_reported_once_or_fatal(run: Run, model: Path, pairs: Path, corpus: Path) -> None:
    pairs.write_text(pairs.read_text() + "lone\n...\tamber basil\nnobody\tnowhere\n")
    done = run(model, "--pairs", pairs, "--corpus", corpus, "--json", "--bootstrap", 0)
    assert done.code == 0
    assert json.loads(done.out)["missing"] == 1
    lines = [line for line in done.err.splitlines() if line.strip()]
    assert lines[0] == (
        f"{pairs}: skipped 2 of 93 rows: 1 with wrong number of fields, 1 with no letter or digit"
    )
    assert lines[-1] == f"1 pairs have a keyword that is not in {corpus}: left out of recall"
    done = run(model, "--pairs", pairs, "--strict")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"error: {pairs}, line 92: wrong number of fields\nhint: ")


def fails(done: Done, message: str, hint: str = "") -> None:
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ")
    assert message in done.err
    assert f"hint: {hint}" in done.err if hint else True
    assert "Traceback" not in done.err


def test_asked_wrongly(
    run: Run, model: Path, pairs: Path, corpus: Path, labels: Path, tmp_path: Path
) -> None:
    fails(run(model), "there is nothing to evaluate on", "give pairs, labels, or both")
    columns = ["--keyword-column", "title", "--label-column", "grade"]
    fails(run(model, "--labels", labels, "--corpus", corpus, *columns), "a corpus alone cannot be evaluated")
    fails(run(tmp_path / "no", "--pairs", pairs), "no")
    fails(run(model, "--pairs", tmp_path / "no.tsv"), "no.tsv does not exist")
    fails(
        run(model, "--pairs", labels), "has no column 'keyword'", "name the right one with --keyword-column"
    )
    fails(run(model, "--pairs", pairs, "--negatives", 0), "negatives must be a whole number of at least 1")
    fails(run(model, "--pairs", pairs, "--gamma", -1), "gamma must be positive")
    fails(run(model, "--pairs", pairs, "--corpus", corpus, "-k", 0), "a whole number of at least 1")
    one = tmp_path / "one.tsv"
    one.write_text("query\tkeyword\na\tb\n")
    fails(run(model, "--pairs", one), "one keyword only", "evaluate on pairs with at least two")
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    fails(run(model, "--pairs", pairs, "--corpus", empty), "empty.txt is empty")
    empty.write_text("\n...\n")
    fails(run(model, "--pairs", pairs, "--corpus", empty), "holds no usable text")
    empty.write_text("unrelated\n")
    fails(
        run(model, "--pairs", pairs, "--corpus", empty), "none of the keywords of the pairs is in the corpus"
    )
    judged = tmp_path / "judged.tsv"
    judged.write_text("query\tkeyword\tlabel\na\tb\tgood\nc\td\tfair\n")
    fails(run(model, "--labels", judged), "the labels are of one class only: none is bad (0)")


@pytest.fixture(scope="module")
def reranking_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for one epoch, with a reranker."""
    from rbegir.training.trainer import run as train

    out = tmp_path_factory.mktemp("reranking") / "model"
    config = ModelConfig(n=64, conv=8, hash_buckets=16, share_towers=True)
    clicked = [(title.replace(letter, ""), title) for title in TITLES for letter in "aeiv"]
    with short_fits(), mock.patch.object(rerank, "FEW", 10):
        train(clicked, out=out, config=config, epochs=1, batch_size=100, device="cpu")
    return out


def test_reranked_figures_are_those_of_a_search(
    run: Run, reranking_model: Path, pairs: Path, corpus: Path, labels: Path, tmp_path: Path
) -> None:
    """Recall, and AUC on labels, computed from the hits of an index."""
    labels.write_text(labels.read_text().replace("title\tgrade", "keyword\tlabel"))
    texts = corpus.read_text().splitlines()
    judged = [row.split("\t")[2:] for row in labels.read_text().splitlines()[1:]]
    queries = [title[:-1] for title in TITLES]
    seen = {}
    with rbegir.Index.create(tmp_path / "x.rbe", rbegir.Model.load(reranking_model)) as index:
        index.add(texts)
        for option, reranks in (("--rerank", True), ("--no-rerank", False)):
            files = ("--pairs", pairs, "--corpus", corpus, "--labels", labels)
            done = run(reranking_model, *files, option, "--json", "--bootstrap", 0)
            assert done.code == 0, done.err
            found = seen[option] = json.loads(done.out)
            hits = index.search(queries, k=10, rerank=reranks)
            best = [[hit.text for hit in some] for some in hits]
            for k in (1, 10):
                held = np.mean([title in some[:k] for title, some in zip(TITLES, best, strict=True)])
                assert found[f"recall@{k}"] == pytest.approx(held)
            every = index.search([query for query, _, _ in judged], k=len(texts), rerank=reranks)
            scores = [
                next(hit.score for hit in some if hit.text == keyword)
                for some, (_, keyword, _) in zip(every, judged, strict=True)
            ]
            good = [grade != "0" for _, _, grade in judged]
            assert found["labels"]["roc_auc"] == pytest.approx(roc_auc_score(good, scores))
    assert seen["--rerank"]["recall@1"] != seen["--no-rerank"]["recall@1"]
    assert seen["--rerank"]["roc_auc"] == seen["--no-rerank"]["roc_auc"]  # random pairs are scored by code
    by_default = run(reranking_model, *files, "--json", "--bootstrap", 0)
    assert json.loads(by_default.out) == seen["--rerank"]


def test_a_model_without_a_reranker_cannot_be_reranked(run: Run, model: Path, pairs: Path) -> None:
    fails(run(model, "--pairs", pairs, "--rerank"), "this model has no reranker", "evaluate it without one")
