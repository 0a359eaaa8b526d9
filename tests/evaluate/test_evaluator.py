"""All figures of a model in one report."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from rbegir.codes import score
from rbegir.codes.planes import Codes
from rbegir.encode import encoder
from rbegir.errors import InputError, MismatchError, MissingExtraError
from rbegir.evaluate import evaluator, scorers
from rbegir.evaluate.evaluator import Evaluation, corpus_texts, evaluate_model, report_table
from rbegir.evaluate.scorers import TriletterCosine

KEYS = ["log_loss", "roc_auc", "recall@1", "recall@10", "recall@100"]


def vector_of(text: str) -> npt.NDArray[np.float64]:
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
    return np.random.default_rng(seed).normal(size=16)


class Fake:
    """Knows that 'alias i' means 'title i', up to some noise."""

    def __init__(self, noise: float) -> None:
        self._noise = noise

    def embed_queries(self, texts: pa.Array) -> npt.NDArray[np.float32]:
        meant = [text.replace("alias", "title") for text in texts.to_pylist()]
        vectors = [vector_of(m) + self._noise * vector_of("noise" + m) for m in meant]
        return np.array(vectors, dtype=np.float32)

    def embed_keywords(self, texts: pa.Array) -> npt.NDArray[np.float32]:
        return np.array([vector_of(text) for text in texts.to_pylist()], dtype=np.float32)

    def encode_queries(self, texts: pa.Array) -> Codes:
        raise MismatchError("these are float vectors")

    def encode_keywords(self, texts: pa.Array) -> Codes:
        raise MismatchError("these are float vectors")


class FakeCodes(Fake):
    """The same with codes: the signs of the vectors, and of half of them as the second plane."""

    def _codes(self, vectors: npt.NDArray[np.float32]) -> Codes:
        wide = np.tile(vectors, (1, 4))  # [count, 64]
        return Codes.from_signs(np.stack([wide > 0, np.abs(wide) > 0.7]))

    def encode_queries(self, texts: list[str]) -> Codes:
        return self._codes(super().embed_queries(pa.array(texts)))

    def encode_keywords(self, texts: list[str]) -> Codes:
        return self._codes(super().embed_keywords(pa.array(texts)))


def pairs(count: int = 200) -> pa.Table:
    return pa.table(
        {"query": [f"alias {i}" for i in range(count)], "keyword": [f"title {i}" for i in range(count)]}
    )


CORPUS = [f"title {i}" for i in range(300)]


def test_a_perfect_model() -> None:
    report = evaluate_model(Fake(0), pairs(), corpus=CORPUS)
    assert report.roc_auc is not None
    assert report.roc_auc.value == 1
    assert report.roc_auc.interval == [1, 1]
    assert {k: m.value for k, m in report.recall.items()} == {1: 1, 10: 1, 100: 1}
    assert report.log_loss is not None
    assert report.log_loss.value < 1e-6
    assert (report.pairs, report.queries, report.corpus, report.missing) == (200, 200, 300, 0)


def test_a_noisy_model_against_plain_python() -> None:
    model = Fake(1.0)
    report = evaluate_model(model, pairs(), corpus=CORPUS, gamma=5.0, bootstrap=50, seed=3)
    queries = scorers.unit(model.embed_queries(pairs()["query"].combine_chunks()))
    keywords = scorers.unit(model.embed_keywords(pa.array(CORPUS)))
    scores = queries @ keywords.T
    rank = (scores > scores[np.arange(200), np.arange(200), None]).sum(axis=1)
    for k in (1, 10, 100):
        assert report.recall[k].value == pytest.approx((rank < k).mean())
    assert report.recall[1].value < report.recall[10].value < 1
    assert report.roc_auc is not None
    random = scores[:, :200][~np.eye(200, dtype=bool)]
    exact = (np.diag(scores)[:, None] > random[None]).mean()  # against all negatives, not ten of them
    assert report.roc_auc.value == pytest.approx(exact, abs=0.02)
    assert report.gamma == 5.0
    for measure in report.measures().values():
        assert measure.low is not None
        assert measure.high is not None
        assert measure.low <= measure.value <= measure.high


def test_codes_are_searched_as_the_reference_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "ENCODE_ROWS", 70)  # several batches of the corpus, the last one shorter
    model = FakeCodes(1.0)
    queries, corpus = pairs()["query"].combine_chunks(), pa.array(CORPUS)
    keys = score.keys(model.encode_queries(queries.to_pylist()).values(), model.encode_keywords(CORPUS))
    expected = np.argsort(-keys, axis=1, kind="stable")
    done: list[float] = []
    for k in (1, 100, 1000):
        found = scorers.ModelScorer(model).search(queries, corpus, k, done.append)
        assert np.array_equal(found, expected[:, :k])
    assert done[-1] == 1.0
    report = evaluate_model(model, pairs(), corpus=CORPUS)
    rank = (expected == np.arange(200)[:, None]).argmax(axis=1)
    assert {k: m.value for k, m in report.recall.items()} == {
        k: pytest.approx((rank < k).mean()) for k in (1, 10, 100)
    }


def test_same_seed_same_report_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    one = evaluate_model(Fake(1.0), pairs(), corpus=CORPUS, seed=1)
    monkeypatch.setattr(scorers, "BATCH", 7)
    two = evaluate_model(Fake(1.0), pairs(), corpus=CORPUS, seed=1)
    assert one.to_dict() == two.to_dict()
    assert evaluate_model(Fake(1.0), pairs(), seed=2).roc_auc != one.roc_auc


def test_json_keys_are_always_there() -> None:
    labels = pa.table({"query": ["alias 1"] * 2, "keyword": ["title 1", "title 2"], "label": [1.0, 0.0]})
    everything = evaluate_model(Fake(0.5), pairs(), corpus=CORPUS, labels=labels, cutoffs=[5]).to_dict()
    assert list(everything)[:6] == [*KEYS, "recall@5"]
    assert everything["recall@10"] is None
    assert everything["recall@5"] == 1
    assert everything["labels"]["roc_auc"] == 1  # type: ignore[index]
    only_labels = evaluate_model(Fake(0.5), labels=labels).to_dict()
    assert list(only_labels)[:5] == KEYS
    assert only_labels["roc_auc"] == 1
    assert only_labels["log_loss"] is None
    only_pairs = evaluate_model(Fake(0.5), pairs()).to_dict()
    assert only_pairs["recall@1"] is None
    assert only_pairs["labels"] is None
    assert json.loads(json.dumps(everything)) == everything


def test_duplicates_and_what_is_missing() -> None:
    doubled = pa.concat_tables(
        [pairs(20), pairs(20), pa.table({"query": ["alias x"], "keyword": ["nowhere"]})]
    )
    corpus = [*CORPUS[:20], *CORPUS[:20]]
    report = evaluate_model(Fake(0), doubled, corpus=corpus, cutoffs=[1])
    assert (report.pairs, report.corpus, report.missing) == (21, 20, 1)
    assert report.recall[1].value == 1


def test_cutoffs_beyond_the_corpus() -> None:
    report = evaluate_model(Fake(2.0), pairs(20), corpus=CORPUS[:20], cutoffs=[20, 1000])
    assert report.recall[20].value == report.recall[1000].value == 1


def test_progress_names_the_stages() -> None:
    seen: list[tuple[str, float]] = []
    labels = pa.table({"query": ["alias 1"] * 2, "keyword": ["title 1", "title 2"], "label": [1.0, 0.0]})
    evaluate_model(
        Fake(0),
        pairs(),
        corpus=CORPUS,
        labels=labels,
        progress=lambda stage, done: seen.append((stage, done)),
    )
    assert list(dict.fromkeys(stage for stage, _ in seen)) == ["pairs", "corpus", "labels"]
    assert all(
        seen[-1 - [s for s, _ in seen][::-1].index(s)][1] == 1.0 for s in ("pairs", "corpus", "labels")
    )


def test_the_baseline_runs_on_the_same_protocol() -> None:
    table = pa.table(
        {"query": ["red shoe", "blue hats", "moscow"], "keyword": ["red shoes", "blue hat", "москва"]}
    )
    report = evaluate_model(
        TriletterCosine(), table, corpus=["x", *table["keyword"].to_pylist()], cutoffs=[1]
    )
    assert report.recall[1].value == pytest.approx(2 / 3)  # "moscow" shares no gram with any: "x" comes first
    assert report.roc_auc is not None
    assert report.roc_auc.value == pytest.approx((2 + 0.5) / 3)


def test_corpus_texts() -> None:
    assert corpus_texts(["b", "a", "b"]).to_pylist() == ["b", "a"]
    assert corpus_texts(pa.array(["b", "a", "b"])).to_pylist() == ["b", "a"]
    with pytest.raises(InputError, match="the corpus is empty"):
        corpus_texts([])


def test_nothing_to_do() -> None:
    with pytest.raises(InputError, match="there is nothing to evaluate on"):
        evaluate_model(Fake(0))
    with pytest.raises(InputError, match="a corpus alone cannot be evaluated"):
        evaluate_model(Fake(0), labels=pairs(), corpus=CORPUS)
    for cutoffs in ([], [0], [10, -1], [2.5]):
        with pytest.raises(
            InputError, match=r"recall needs a cutoff|cutoff of recall must be a whole number"
        ):
            evaluate_model(Fake(0), pairs(), corpus=CORPUS, cutoffs=cutoffs)
    for name in ("negatives", "bootstrap"):
        with pytest.raises(InputError, match=f"{name} must be a whole number of at least [01], got 1.5"):
            evaluate_model(Fake(0), pairs(), **{name: 1.5})
    with pytest.raises(InputError, match="one keyword only"):
        evaluate_model(Fake(0), pairs(1))
    with pytest.raises(InputError, match="seed must be a whole number of at least 0, got -1"):
        evaluate_model(Fake(0), pairs(), seed=-1)


def test_table_for_people() -> None:
    from rich.console import Console

    labels = pa.table(
        {"query": ["alias 1"] * 3, "keyword": ["title 1", "title 2", "title 3"], "label": [2.0, 0.0, 1.0]}
    )
    reports: dict[str, Evaluation] = {
        "mine": evaluate_model(Fake(0), pairs(), corpus=CORPUS, labels=labels, bootstrap=20),
        "other": evaluate_model(Fake(0), pairs(), bootstrap=0),
    }
    console = Console(width=120)
    with console.capture() as captured:
        console.print(report_table(reports))
    shown = captured.get()
    for words in (
        "mine",
        "other",
        "log loss",
        "ROC AUC",
        "recall@100",
        "1.0000  (1.0000 … 1.0000)",
        "grade ≥ 2",
    ):
        assert words in shown
    assert "200 pairs of 200 queries, 10 random negatives each; recall among 300 texts; 3 labels" in " ".join(
        shown.split()
    )


def test_a_bar_is_shown_where_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages are reported to the bar of the call; with False there is none."""
    asked: list[object] = []
    seen: list[tuple[float, str]] = []

    @contextmanager
    def reported(progress: object, title: str) -> Iterator[Callable[..., None]]:
        asked.append(progress)
        yield lambda done, total, what: seen.append((done, what))

    monkeypatch.setattr(evaluator, "reported", reported)
    evaluate_model(Fake(0), pairs(), corpus=CORPUS)
    assert {what for _, what in seen} == {"pairs", "corpus"}
    evaluate_model(Fake(0), pairs(), progress=False)
    evaluate_model(Fake(0), pairs(), progress=lambda what, done: None)
    assert asked == [None, False, False]  # a function is called in place of a bar


def test_a_missing_scipy_is_noticed_before_anything_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setattr(Fake, "embed_queries", lambda self, texts: pytest.fail("it was scored"))
    table = pa.table({"query": ["a", "b"], "keyword": ["c", "d"]})
    with pytest.raises(MissingExtraError, match=r"needs scipy .*pip install 'rbegir\[train\]'"):
        evaluate_model(Fake(0.1), table)


def test_pairs_and_labels_may_be_lists_of_rows() -> None:
    table = pairs()
    rows = list(zip(*(table[name].to_pylist() for name in ("query", "keyword")), strict=True))
    assert evaluate_model(Fake(0), rows) == evaluate_model(Fake(0), table)
    judged = [{"query": "q", "keyword": "a", "label": "good"}, {"query": "q", "keyword": "b", "label": "bad"}]
    found = evaluate_model(Fake(0), labels=judged).labels
    assert found is not None
    assert found.pairs == 2
    with pytest.raises(InputError, match="has no column 'query'"):
        evaluate_model(Fake(0), pa.table({"asked": ["x"]}))
