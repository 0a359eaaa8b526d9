"""A new query side for stored codes: what is trained, what stays to the bit, what an index then accepts."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import rbegir
from rbegir import cli
from rbegir.base import progress
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.encode.reranker import Reranker
from rbegir.errors import FileError, InputError, LockedError, MismatchError, TextError
from rbegir.training import loop
from rbegir.training.config import TrainConfig
from rbegir.training.loss import group, group_loss
from rbegir.training.rerank import compare
from rbegir.training.trainer import train
from rbegir.training.upgrade import KeywordSide, Upgrade, adopt, in_generation, upgrade
from tests.index.fakes import HashEncoder
from tests.reranking import short_fits
from tests.training.conftest import synthetic_pairs

SMALL = ModelConfig(conv=24, hash_buckets=64)
SETTINGS = TrainConfig(epochs=6, batch_size=128, word_dropout=0.1, lr=1e-2, table_lr=3e-2)


def write(path: Path, rows: list[dict[str, str]]) -> None:
    lines = ["query\tkeyword", *(f"{row['query']}\t{row['keyword']}" for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def pairs() -> tuple[pa.Table, pa.Table]:
    """Pairs to train on, and pairs of other keywords."""
    every = synthetic_pairs(3000, seed=5)
    unseen = {keyword for _, keyword in every[::15]}

    def table(seen: bool) -> pa.Table:
        rows = [pair for pair in every if (pair[1] not in unseen) == seen]
        return pa.table({"query": [q for q, _ in rows], "keyword": [k for _, k in rows]})

    return table(True), table(False)


@pytest.fixture(scope="module")
def old(pairs: tuple[pa.Table, pa.Table], tmp_path_factory: pytest.TempPathFactory) -> rbegir.Model:
    """A model that has seen a third of the pairs, once."""
    folder = tmp_path_factory.mktemp("old")
    path = folder / "pairs.tsv"
    few = pairs[0].slice(0, 900).to_pylist()
    path.write_text(
        "\n".join(["query\tkeyword", *(f"{row['query']}\t{row['keyword']}" for row in few)]) + "\n"
    )
    plain = {"valid": False, "rerank": False, "batch_size": 128}
    return train(path, config=SMALL, out=folder / "model", epochs=2, **plain)


@pytest.fixture(scope="module")
def renewed(old: rbegir.Model, pairs: tuple[pa.Table, pa.Table]) -> Upgrade:
    return upgrade(old, pairs[0], valid=pairs[1], settings=SETTINGS)


@pytest.fixture(scope="module")
def kept(old: rbegir.Model, pairs: tuple[pa.Table, pa.Table]) -> Upgrade:
    return upgrade(old, pairs[0], valid=pairs[1], settings=SETTINGS, keywords="keep")


def test_a_new_query_side_is_better_on_the_old_codes(kept: Upgrade) -> None:
    figures = kept.kept
    assert figures["new/old"]["recall@10"] > 1.1 * figures["old/old"]["recall@10"]
    assert figures["new/old"]["roc_auc"] > figures["old/old"]["roc_auc"]
    assert figures["new/new"] == figures["new/old"] == figures["new/both"]  # its keyword side is the old one


def test_new_codes_are_better_still_and_both_mix(renewed: Upgrade) -> None:
    figures = renewed.kept
    assert figures["new/old"]["recall@10"] > figures["old/old"]["recall@10"]
    assert figures["new/new"]["recall@10"] > figures["new/old"]["recall@10"]
    # an index of half and half loses nothing against old codes alone: scores are on one scale
    assert figures["new/both"]["recall@10"] > figures["new/old"]["recall@10"] - 0.02


def test_a_kept_side_gives_the_same_codes(
    old: rbegir.Model, kept: Upgrade, pairs: tuple[pa.Table, pa.Table]
) -> None:
    texts = pairs[1]["keyword"].unique().to_pylist()
    assert kept.model.encode_keywords(texts) == old.encode_keywords(texts)
    assert kept.model.encode_queries(texts) != old.encode_queries(texts)
    assert kept.model.same_keywords == (kept.model.fingerprint, old.fingerprint)
    assert kept.model.reads == (kept.model.fingerprint, old.fingerprint)
    assert old.reads == (old.fingerprint,)
    assert old.same_keywords == (old.fingerprint,)


def test_a_kept_side_of_shared_towers(pairs: tuple[pa.Table, pa.Table], tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    few = pairs[0].slice(0, 300).to_pylist()
    path.write_text(
        "\n".join(["query\tkeyword", *(f"{row['query']}\t{row['keyword']}" for row in few)]) + "\n"
    )
    plain = {"valid": False, "rerank": False, "batch_size": 128}
    shared = train(path, config=replace(SMALL, share_towers=True), epochs=1, **plain)
    texts = pairs[1]["keyword"].unique().to_pylist()[:50]
    made = upgrade(shared, pairs[0].slice(0, 500), valid=pairs[1], epochs=1, batch_size=128, keywords="keep")
    assert made.model.encode_keywords(texts) == shared.encode_keywords(texts)
    wider = upgrade(
        shared,
        pairs[0].slice(0, 500),
        valid=pairs[1],
        epochs=1,
        batch_size=128,
        config=replace(SMALL, conv=32, keyword_planes=3),
    )
    assert wider.model.keyword_planes == 3
    assert set(wider.kept) == {"old/old", "new/old", "new/new"}  # half and half needs codes of one shape


def test_any_encoder_can_have_stored_the_codes(pairs: tuple[pa.Table, pa.Table]) -> None:
    few = pairs[0].slice(0, 400)
    made = upgrade(HashEncoder(), few, valid=pairs[1], config=SMALL, epochs=1, batch_size=64)
    assert made.model.reads[1] == HashEncoder().fingerprint
    assert made.model.n == 64
    with pytest.raises(InputError, match="only the keyword side of an rbegir model can be kept"):
        upgrade(HashEncoder(), pairs[0], valid=pairs[1], keywords="keep")


def test_an_encoder_that_reranks_by_words_gets_a_model_that_reranks(pairs: tuple[pa.Table, pa.Table]) -> None:
    before: Any = HashEncoder()
    before.reranker = Reranker.by_words([pairs[0]["keyword"].combine_chunks()])
    few = pairs[0].slice(0, 400)
    with short_fits():
        made = upgrade(before, few, valid=pairs[1], config=SMALL, epochs=1, batch_size=64)
    assert made.model.reranker is not None


def test_the_loss_is_the_one_of_the_docstring() -> None:
    """Against a plain double loop over generations and keywords."""
    rng = np.random.default_rng(3)
    query = np.array([0, 1, 0, 2, 3], dtype=np.int32)
    keyword = np.array([4, 5, 6, 4, 7], dtype=np.int32)  # query 0 has two keywords, keyword 4 two queries
    groups = group(query, keyword)
    count, gamma = len(groups.first), 7.0
    asked = torch.from_numpy(rng.standard_normal((5, 16))).float()
    columns = torch.from_numpy(rng.standard_normal((2 * count, 16))).float()  # generation 0, then 1
    weight = torch.full((5,), 0.2)
    positives = {q: {int(groups.target[i]) for i in range(5) if query[i] == q} for q in range(4)}
    for generation in (0, 1):
        target, known = in_generation(
            torch.from_numpy(groups.target).long(),
            torch.from_numpy(np.stack([groups.known_rows, groups.known_columns])).long(),
            count,
            generation,
            2,
        )
        none = torch.zeros((5, 0), dtype=torch.int64)
        ours, _ = group_loss(asked, columns, torch.tensor(gamma), target, known, none, weight)
        total = 0.0
        for i in range(5):
            right = int(groups.target[i])

            def e(k: int, g: int, i: int = i) -> float:
                return float(
                    torch.exp(gamma * torch.cosine_similarity(asked[i], columns[k + g * count], dim=0))
                )

            others = sum(
                e(k, g)
                for g, k in itertools.product((0, 1), range(count))
                if k not in positives[int(query[i])]
            )
            total -= 0.2 * np.log(e(right, generation) / (e(right, generation) + others))
        assert float(ours) == pytest.approx(total, rel=1e-4)


# ---- what an index accepts ----


def test_an_index_of_old_codes_is_asked_by_a_new_model(
    old: rbegir.Model, renewed: Upgrade, kept: Upgrade, tmp_path: Path
) -> None:
    texts = [keyword for _, keyword in synthetic_pairs(60, seed=9)]
    texts = list(dict.fromkeys(texts))
    with rbegir.Index.create(tmp_path / "a.rbe", old) as index:
        index.add(texts)
    for model in (renewed.model, kept.model):
        with rbegir.Index.open(tmp_path / "a.rbe", model=model) as index:
            found = index.search(texts[:3], k=4)
            expected = index.search_codes(model.encode_queries(texts[:3]), k=4)
            assert np.array_equal(found.keys, expected.keys)
    with rbegir.Index.open(tmp_path / "a.rbe", model=kept.model) as index:
        index.add(["one more"])  # the same keyword side: the same codes
    with rbegir.Index.open(tmp_path / "a.rbe", model=renewed.model) as index:
        with pytest.raises(MismatchError, match="its keywords get codes of another generation"):
            index.add(["another one"])
        assert len(index) == len(texts) + 1
    with rbegir.Index.create(tmp_path / "b.rbe", renewed.model):
        pass
    with pytest.raises(MismatchError, match="the model does not belong to this index"):
        rbegir.Index.open(tmp_path / "b.rbe", model=old)  # an old query side knows nothing of new codes


def test_a_model_with_keywords_of_its_own_is_not_adopted(
    old: rbegir.Model, renewed: Upgrade, tmp_path: Path
) -> None:
    with rbegir.Index.create(tmp_path / "a.rbe", old) as index:
        index.add(["red shoes"])
    with pytest.raises(MismatchError, match="gives keywords others, so none could be added"):
        adopt(tmp_path / "a.rbe", renewed.model)
    with rbegir.Index.open(tmp_path / "a.rbe") as index:
        assert index.model.fingerprint == old.fingerprint
        index.add(["blue hats"])


def test_adopt_puts_the_model_into_the_index(old: rbegir.Model, kept: Upgrade, tmp_path: Path) -> None:
    with rbegir.Index.create(tmp_path / "a.rbe", old) as index:
        index.add(["red shoes", "blue hats"])
        with pytest.raises(LockedError, match="is being written"):
            adopt(tmp_path / "a.rbe", kept.model)
    before = {p.name: p.read_bytes() for p in (tmp_path / "a.rbe").glob("*.rbs")}
    adopt(tmp_path / "a.rbe", kept.model)
    assert before == {p.name: p.read_bytes() for p in (tmp_path / "a.rbe").glob("*.rbs")}
    with rbegir.Index.open(tmp_path / "a.rbe") as index:
        assert index.model.fingerprint == kept.model.fingerprint
        index.add(["green coats"])
        assert index.search("red shoes", k=3).keys.shape == (1, 3)
        index.verify()
    other = rbegir.Model.load(shutil.copytree(tmp_path / "a.rbe" / "model", tmp_path / "copy"))
    with rbegir.Index.create(tmp_path / "c.rbe", HashEncoder()) as index:
        pass
    with pytest.raises(MismatchError, match="the model does not read the codes of"):
        adopt(tmp_path / "c.rbe", other)
    with rbegir.Index.create(tmp_path / "d.rbe", n=64, keyword_planes=2) as index:
        pass
    with pytest.raises(FileError, match="is not an rbegir index"):
        adopt(tmp_path / "nowhere.rbe", other)


def test_an_upgrade_of_an_upgrade_still_belongs_to_the_index(
    old: rbegir.Model, kept: Upgrade, pairs: tuple[pa.Table, pa.Table], tmp_path: Path
) -> None:
    with rbegir.Index.create(tmp_path / "a.rbe", old) as index:
        index.add(["red shoes"])
    adopt(tmp_path / "a.rbe", kept.model)
    few = {"valid": pairs[1], "epochs": 1, "batch_size": 128}
    third = upgrade(tmp_path / "a.rbe", pairs[0].slice(0, 300), keywords="keep", **few)  # type: ignore[arg-type]
    assert third.model.reads == (third.model.fingerprint, kept.model.fingerprint, old.fingerprint)
    adopt(tmp_path / "a.rbe", third.model)
    with rbegir.Index.open(tmp_path / "a.rbe") as index:
        index.add(["blue hats"])
        assert index.search("hats", k=2).ids.shape == (1, 2)


# ---- stopped and resumed ----


class Stopped(Exception):
    """Stands for a kill: what is on disk then is what the last save left."""


def test_a_bar_is_shown_where_it_is_seen(
    old: rbegir.Model, pairs: tuple[pa.Table, pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def report(self: Any, done: float, total: float, line: str) -> None:
        if progress.wanted(self._asked):
            shares.append(done / total)

    monkeypatch.setattr(progress._LateBar, "report", report)
    monkeypatch.setattr("rbegir.base.progress.seen", lambda: True)
    arguments: dict[str, Any] = {"valid": pairs[1], "settings": replace(SETTINGS, epochs=1)}
    upgrade(old, pairs[0].slice(0, 500), keywords="keep", progress=False, **arguments)
    assert not shares
    upgrade(old, pairs[0].slice(0, 500), keywords="keep", **arguments)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


@pytest.mark.parametrize("keywords", ["new", "keep"])
def test_a_stopped_upgrade_goes_on_to_the_same_model(
    keywords: KeywordSide,
    old: rbegir.Model,
    pairs: tuple[pa.Table, pa.Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop, "SHOW_SECONDS", -1.0)  # every step is reported
    table, valid = pairs[0].slice(0, 500), pairs[1]
    arguments: dict[str, Any] = {
        "valid": valid,
        "keywords": keywords,
        "settings": replace(SETTINGS, epochs=2),
    }
    whole = upgrade(old, table, out=tmp_path / "whole", **arguments)
    out = tmp_path / "stopped"
    seen: list[float] = []

    def stop(done: float, told: str) -> None:
        seen.append(done)
        if len(seen) in (3, 8):  # in the middle of the first epoch, then in the second
            raise Stopped

    for resume in (False, True):
        with pytest.raises(Stopped):
            upgrade(old, table, out=out, resume=resume, save_seconds=0.0, progress=stop, **arguments)
        assert [path.name for path in out.iterdir()] == ["resume.safetensors"]
    with pytest.raises(FileError, match="is not empty") as caught:
        upgrade(old, table, out=out, **arguments)
    assert "resume" in caught.value.hint
    with pytest.raises(MismatchError, match="the run to resume had other settings: keywords was"):
        upgrade(
            old,
            table,
            out=out,
            resume=True,
            **{**arguments, "keywords": {"new": "keep", "keep": "new"}[keywords]},
        )
    done = upgrade(old, table, out=out, resume=True, save_seconds=0.0, progress=stop, **arguments)
    steps = round(1 / seen[0])
    assert len(seen) == steps + 2  # the two that were under way when it was stopped are done again
    for name in ("config.json", "model.safetensors"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert done.kept == whole.kept
    again = upgrade(old, table, out=out, resume=True, progress=stop, **arguments)  # only measured
    assert len(seen) == steps + 2
    assert again.kept == whole.kept
    assert not (out / "resume.safetensors").exists()
    with pytest.raises(MismatchError, match=r"had other settings: epochs was \d+, now 9 \(hint"):
        upgrade(old, table, out=out, resume=True, **{**arguments, "epochs": 9})


# ---- reranking ----


@pytest.fixture(scope="module")
def reranking(pairs: tuple[pa.Table, pa.Table], tmp_path_factory: pytest.TempPathFactory) -> rbegir.Model:
    """An old model with a reranker."""
    few = {"epochs": 2, "batch_size": 128, "settings": TrainConfig(guide_dims=64)}
    with short_fits():
        model = train(pairs[0].slice(0, 900), config=SMALL, out=tmp_path_factory.mktemp("o") / "m", **few)
    assert model.reranker is not None
    return model


@pytest.mark.usefixtures("short_fits")
@pytest.mark.parametrize("keywords", ["new", "keep"])
def test_an_upgrade_keeps_reranking(
    keywords: KeywordSide,
    reranking: rbegir.Model,
    pairs: tuple[pa.Table, pa.Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, settings = pairs[0].slice(0, 500), replace(SETTINGS, epochs=2)
    arguments: dict[str, Any] = {"valid": pairs[1], "keywords": keywords, "settings": settings}
    whole = upgrade(reranking, table, out=tmp_path / "whole", **arguments)
    old, new = reranking.reranker, whole.model.reranker
    assert old is not None
    assert new is not None
    for name, value in old.guide.items():  # learned further, on from the old one
        assert new.guide[name].shape == value.shape
        assert (new.guide[name] != value).any()
        assert np.corrcoef(new.guide[name].ravel(), value.ravel())[0, 1] > 0.5
    texts = pairs[1]["keyword"].unique()
    if keywords == "keep":
        assert whole.model.encode_keywords(texts) == reranking.encode_keywords(texts)
    found = compare(whole.model, texts.cast(pa.large_string()), pairs[1], 0)
    assert found["reranked"]["recall@1"] > found["codes"]["recall@1"]

    out = tmp_path / "stopped"
    with monkeypatch.context() as patch:
        patch.setattr("rbegir.training.upgrade.fit_reranker", lambda *args: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            upgrade(reranking, table, out=out, **arguments)
    upgrade(reranking, table, out=out, resume=True, **arguments)
    for file in ("model.safetensors", "config.json", "rerank/model.safetensors", "rerank/config.json"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    monkeypatch.setattr("rbegir.training.upgrade.train_all", None)
    upgrade(reranking, table, out=out, resume=True, **arguments)  # only measured


@pytest.mark.usefixtures("short_fits")
def test_an_index_reranks_with_the_model_that_it_adopted(
    reranking: rbegir.Model, pairs: tuple[pa.Table, pa.Table], tmp_path: Path
) -> None:
    few = {"valid": pairs[1], "keywords": "keep", "epochs": 1, "batch_size": 128}
    with rbegir.Index.create(tmp_path / "a.rbe", reranking) as index:
        index.add(["red shoes", "blue hats"])
        assert index.search("red shoes", k=2).reranked
    made = upgrade(tmp_path / "a.rbe", pairs[0].slice(0, 300), **few)  # type: ignore[arg-type]
    adopt(tmp_path / "a.rbe", made.model)
    with rbegir.Index.open(tmp_path / "a.rbe") as index:
        assert index.search("red shoes", k=2).reranked
    without = TrainConfig(rerank=False)
    plain = upgrade(reranking, pairs[0].slice(0, 300), settings=without, **few)  # type: ignore[arg-type]
    assert plain.model.reranker is None


# ---- bad input ----


def test_bad_input(
    old: rbegir.Model, pairs: tuple[pa.Table, pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, valid = pairs
    with pytest.raises(InputError, match="keywords must be 'new' or 'keep', got 'old'"):
        upgrade(old, table, keywords="old")  # type: ignore[arg-type]
    with pytest.raises(MismatchError, match="the stored codes have n = 64, the new model has n = 128"):
        upgrade(old, table, config=replace(SMALL, n=128))
    with pytest.raises(MismatchError, match="to keep the keyword side, conv must stay 24, got 32"):
        upgrade(old, table, config=replace(SMALL, conv=32), keywords="keep")
    with pytest.raises(MismatchError, match="a model with float keywords has no codes to store"):
        upgrade(old, table, config=replace(SMALL, keyword_planes=0))
    with pytest.raises(InputError, match="cannot be trained with the stochastic estimator"):
        upgrade(old, table, config=replace(SMALL, estimator="stochastic"))
    with pytest.raises(InputError, match="an upgrade is trained with in-batch negatives"):
        upgrade(old, table, settings=TrainConfig(negatives=10))
    with pytest.raises(InputError, match="validation needs at least 2 different keywords, got 1"):
        upgrade(old, table, valid=valid.slice(0, 1))
    with pytest.raises(FileError, match="no model at"):
        upgrade(tmp_path / "nowhere", table)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileError, match="is not empty"):
        upgrade(old, table, out=tmp_path / "full")
    with pytest.raises(FileError, match=r"cannot create .*: not a directory"):
        upgrade(old, table, out=tmp_path / "full" / "file" / "model", valid=valid)
    with pytest.raises(InputError, match="there is nothing to resume without out"):
        upgrade(old, table, resume=True)
    monkeypatch.setattr("rbegir.training.upgrade.train_all", None)  # refused before any training
    with pytest.raises(InputError, match="none of the keywords of the pairs is in the corpus"):
        upgrade(old, table, corpus=["something else"])
    with pytest.raises(TextError, match="has no letter and no digit"):
        upgrade(old, table, valid=valid, corpus=["!", *valid["keyword"].to_pylist()])


# ---- the command line ----


def run_command(*words: object, command: str = "upgrade") -> Result:
    return CliRunner().invoke(cli.build([command]), [command, *(str(word) for word in words)])


def test_upgrade_from_the_shell(old: rbegir.Model, pairs: tuple[pa.Table, pa.Table], tmp_path: Path) -> None:
    files = []
    for name, table in zip(("train", "valid"), pairs, strict=True):
        files.append(tmp_path / f"{name}.tsv")
        write(files[-1], table.slice(0, 400).to_pylist())
    index = tmp_path / "a.rbe"
    with rbegir.Index.create(index, old) as created:
        created.add(["red shoes", "blue hats"])
    options = ("--epochs", 1, "--batch-size", 64, "--valid", files[1])
    done = run_command(
        index, files[0], "--out", tmp_path / "new", "--keywords", "keep", "--adopt", "--json", *options
    )
    assert done.exit_code == 0, done.exception
    report = json.loads(done.stdout)
    assert report["reads"][1] == old.fingerprint
    assert set(report["kept"]) == {"old/old", "new/old", "new/new", "new/both"}
    assert all(0 <= value <= 1 for figures in report["kept"].values() for value in figures.values())
    with rbegir.Index.open(index) as opened:
        assert opened.model.fingerprint == report["fingerprint"]
        assert len(opened.search("shoes", k=2).ids[0]) == 2
    refused = run_command(tmp_path / "new", files[0], "--out", tmp_path / "x", "--adopt")
    assert isinstance(refused.exception, InputError)
    assert "--adopt needs an index" in refused.exception.message
    refused = run_command(index, files[0], "--out", tmp_path / "x", "--adopt")
    assert isinstance(refused.exception, InputError)
    assert refused.exception.message == "--adopt needs --keywords keep, got new"
    assert not (tmp_path / "x").exists()


def test_generations_from_the_shell(
    old: rbegir.Model, renewed: Upgrade, pairs: tuple[pa.Table, pa.Table], tmp_path: Path
) -> None:
    texts = pairs[0]["keyword"].unique().to_pylist()[:30]
    first, second, model = tmp_path / "a.rbe", tmp_path / "b.rbe", tmp_path / "model"
    with rbegir.Index.create(first, old) as index:
        index.add(texts, ids=[f"k{i}" for i in range(30)], attributes={"price": list(range(30))})
        index.add_codes(old.encode_keywords(["no text"]), ids=["bare"], attributes={"price": [99]})
    renewed.model.save(model)

    def migrate(*words: object) -> Result:
        return run_command("migrate", first, second, *words, command="index")

    def searched() -> list[dict[str, Any]]:
        done = run_command(
            first, texts[3], "-k", 5, "--where", "price < 20", "--newer", second, "--json", command="search"
        )
        assert done.exit_code == 0, done.exception
        (found,) = json.loads(done.stdout)
        return found["hits"]  # type: ignore[no-any-return]

    assert "does not exist" in str(migrate().exception)
    moved = migrate("--model", model, "--most", 10, "--batch", 4, "--json")
    assert moved.exit_code == 0, moved.exception
    assert json.loads(moved.stdout) == {"moved": 10, "left": 21, "keywords": 10}
    assert "exists and has its model already" in str(migrate("--model", model).exception)
    with rbegir.Generations([first, second], read_only=True) as both:
        expected = both.search(texts[3], 5, where="price < 20")
    assert [(hit["id"], hit["score"]) for hit in searched()] == [(hit.id, hit.score) for hit in expected[0]]
    rest = migrate()
    assert "moved 20 keywords, 1 left" in rest.stdout
    assert "no stored text to encode" in rest.stderr
    assert json.loads(migrate("--json").stdout) == {"moved": 0, "left": 1, "keywords": 30}
    with rbegir.Index.open(second, read_only=True) as index:
        alone = index.search(texts[3], 5, where="price < 20")
    assert [hit["id"] for hit in searched()] == [hit.id for hit in alone[0]]


def test_what_migration_refuses(old: rbegir.Model, renewed: Upgrade, tmp_path: Path) -> None:
    first = tmp_path / "a.rbe"
    rbegir.Index.create(first, HashEncoder()).close()
    renewed.model.save(tmp_path / "model")
    for words, kind, message in (
        ((tmp_path / "b.rbe", "--model", tmp_path / "model"), MismatchError, "does not read the codes of"),
        ((first,), InputError, "OLD and NEW are both"),
        ((tmp_path / "b.rbe", "--batch", "0"), InputError, "--batch must be at least 1, got 0"),
    ):
        refused = run_command("migrate", first, *words, command="index").exception
        assert isinstance(refused, kind)
        assert message in refused.message
    assert not (tmp_path / "b.rbe").exists()
