"""The RBE head in real SentenceTransformers: trained, saved and loaded by them, searched by us."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import rbegir
from rbegir import cli
from rbegir.codes.score import keys
from rbegir.encode.binarizer.learn import ROUNDS
from rbegir.encode.encoder import encode_keywords, read_reference, write_reference
from rbegir.encode.sentence import encoder as sentence
from rbegir.encode.sentence.encoder import SentenceEncoder
from rbegir.errors import CorruptError, FileError, InputError, MismatchError, VersionError
from rbegir.read.sample import sample_path

TEXTS = [
    "cheap flights to rome",
    "airline tickets",
    "red running shoes",
    "sneakers for the gym",
    "used cars",
    "second hand automobiles",
    "hotel in paris",
    "places to stay in france",
    "cake recipe",
    "how to bake bread",
    "train timetable",
    "railway schedule",
]


@pytest.fixture(scope="module")
def plain(minilm: Path) -> SentenceEncoder:
    return SentenceEncoder.load(minilm)


@pytest.fixture(scope="module")
def saved(plain: SentenceEncoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentenceTransformer with an untrained head, saved by its own method."""
    from sentence_transformers import SentenceTransformer

    from rbegir.encode.sentence.head import RBEHead

    vectors = torch.from_numpy(plain.vectors(TEXTS, "document"))
    head = RBEHead(384, n=128).start(vectors)
    path = tmp_path_factory.mktemp("models") / "with-head"
    SentenceTransformer(modules=[*plain.model.children(), head], device="cpu").save(str(path))
    return path


# ---- the module ----


def test_outputs_are_codes_and_cosines_are_scores(saved: Path) -> None:
    encoder = SentenceEncoder.load(saved)
    assert (encoder.n, encoder.query_planes, encoder.keyword_planes) == (128, 3, 2)
    queries, keywords = encoder.encode_queries(TEXTS), encoder.encode_keywords(TEXTS)
    assert np.array_equal(queries.first_planes(2).planes, keywords.planes)  # one head, two precisions
    asked = encoder.model.encode_query(TEXTS)
    stored = encoder.model.encode_document(TEXTS)
    assert np.array_equal(asked * 4, queries.values())
    assert np.array_equal(stored * 2, keywords.values())
    similarity = encoder.model.similarity(asked, stored).numpy()
    best = keys(queries.values(), keywords).argmax(axis=1)
    assert np.array_equal(similarity.argmax(axis=1), best)
    assert np.mean(best == np.arange(len(TEXTS))) > 0.9


def test_in_training_a_text_shows_all_planes_or_the_stored_ones() -> None:
    from rbegir.encode.sentence.head import RBEHead

    head = RBEHead(16, n=64, query_planes=3, keyword_planes=1)
    vectors = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))

    def run(task: str | None = None, by_feature: str | None = None) -> torch.Tensor:
        features = {"sentence_embedding": vectors} | ({"task": by_feature} if by_feature else {})
        out: torch.Tensor = head(features, task=task)["sentence_embedding"]
        return out.detach()

    head.eval()
    full, stored = run("query"), run("document")
    assert torch.equal(run(), full)
    assert torch.equal(run(by_feature="keyword"), stored)
    head.train()
    torch.manual_seed(0)
    mixed = run()
    is_full, is_stored = (mixed == full).all(dim=1), (mixed == stored).all(dim=1)
    assert bool((is_full ^ is_stored).all())
    assert 60 < int(is_full.sum()) < 140
    assert torch.equal(run("document"), stored)


def test_it_trains_with_their_trainer_and_loss_and_comes_back(saved: Path, tmp_path: Path) -> None:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from rbegir.encode.sentence.head import RBEHead

    with gzip.open(sample_path("train"), "rt") as file:
        pairs = [line.rstrip("\n").split("\t") for line in file][1:2401:20]
    model = SentenceEncoder.load(saved).model
    for parameter in [p for module in list(model.children())[:-1] for p in module.parameters()]:
        parameter.requires_grad_(False)
    data = Dataset.from_dict({"anchor": [q for q, _ in pairs], "positive": [k for _, k in pairs]})
    loss = MultipleNegativesRankingLoss(model)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"),
        num_train_epochs=2,
        per_device_train_batch_size=40,
        learning_rate=2e-3,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)
    before = [p.clone() for p in model[-1].parameters()]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "'pin_memory' argument is set as true but no accelerator")
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert any(not torch.equal(a, b) for a, b in zip(before, model[-1].parameters(), strict=True))

    path = tmp_path / "trained"
    model.save(str(path))
    again = SentenceEncoder.load(path)
    model.eval()
    assert np.array_equal(again.model.encode_query(TEXTS), model.encode_query(TEXTS))
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(path), trust_remote_code=True, device="cpu", local_files_only=True)
    assert isinstance(theirs[-1], RBEHead)
    assert np.array_equal(theirs.encode_document(TEXTS), again.model.encode_document(TEXTS))
    assert again.fingerprint != SentenceEncoder.load(saved).fingerprint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 100}, "n must be a multiple of 64"),
        ({"query_planes": 0}, "query_planes must be|keyword_planes must be"),
        ({"query_planes": 2, "keyword_planes": 3}, "keyword_planes must be a .* from 1 to 2, got 3"),
    ],
)
def test_a_head_of_a_bad_shape(arguments: dict[str, int], message: str) -> None:
    from rbegir.encode.sentence.head import RBEHead

    with pytest.raises(InputError, match=message):
        RBEHead(384, **arguments)  # type: ignore[arg-type]


def test_a_start_from_bad_vectors() -> None:
    from rbegir.encode.sentence.head import RBEHead

    head = RBEHead(16, n=64)
    with pytest.raises(InputError, match=r"vectors must be \[2 or more, 16\], got \[1, 16\]"):
        head.start(torch.ones(1, 16))
    with pytest.raises(InputError, match="vectors hold NaN or infinity"):
        head.start(torch.full((3, 16), torch.nan))


# ---- an index of such an encoder ----


def test_an_index_finds_its_encoder_again(saved: Path, tmp_path: Path) -> None:
    place = tmp_path / "encoder"
    shutil.copytree(saved, place)
    encoder = SentenceEncoder.load(place)
    with rbegir.Index.create(tmp_path / "a.rbe", encoder) as index:
        index.add(TEXTS)
        expected = index.search(["flights", "trains"], k=3)
    with rbegir.Index.open(tmp_path / "a.rbe") as index:
        found = index.search(["flights", "trains"], k=3)
        assert np.array_equal(found.keys, expected.keys)
        assert found.texts.tolist() == expected.texts.tolist()
    shutil.rmtree(place)
    with rbegir.Index.open(tmp_path / "a.rbe") as index:
        with pytest.raises(
            FileError, match=r"the encoder of this index, .*, is gone: there is no encoder"
        ) as caught:
            index.search("flights")
        assert "a link to where it is now" in caught.value.hint
        hits = index.search_codes(encoder.encode_queries(["flights"]), k=3)
        assert hits.keys[0].tolist() == expected.keys[0].tolist()
        place.symlink_to(saved)
        assert np.array_equal(index.search(["flights", "trains"], k=3).keys, expected.keys)
    place.unlink()
    shutil.copytree(saved, place)
    weights = place / "3_RBEHead" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 0x10
    weights.write_bytes(bytes(data))
    with (
        rbegir.Index.open(tmp_path / "a.rbe") as index,
        pytest.raises(MismatchError, match="weights differ"),
    ):
        index.search("flights")


def test_a_model_without_head_gets_a_binarizer(plain: SentenceEncoder, minilm: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder(plain.model, reference=plain.reference)
    for ask in (lambda: encoder.n, lambda: encoder.encode_queries(TEXTS), lambda: encoder.fingerprint):
        with pytest.raises(InputError, match="this encoder makes vectors and has no codes yet"):
            ask()
    with pytest.raises(InputError, match="fitting needs at least 2 texts, got 0"):
        encoder.fit([])
    encoder.fit(TEXTS, n=128)
    vectors = plain.vectors(TEXTS, "document")
    assert encoder.binarizer is not None
    assert encoder.encode_keywords(TEXTS) == encoder.binarizer.encode_keywords(vectors)
    assert len(encoder.encode_queries([])) == 0
    with rbegir.Index.create(tmp_path / "b.rbe", encoder) as index:
        index.add(TEXTS)
        assert index.info()["bytes_per_keyword"] == 32
    with rbegir.Index.open(tmp_path / "b.rbe") as index:
        assert index.search("flights", k=2).texts.tolist()[0] == ["airline tickets", "cheap flights to rome"]
        reranked = index.search("flights", k=2, rerank=True)
        by_vector = encoder.binarizer.inverse_transform(index.codes(reranked.ids[0]))
        asked = encoder.vectors(["flights"], "query")[0]
        np.testing.assert_allclose(
            reranked.scores[0], by_vector @ asked / np.linalg.norm(asked), rtol=1e-4, atol=1e-5
        )
    assert read_reference(tmp_path / "b.rbe" / "model")["reference"] == str(minilm)


def cosine_of(encoder: SentenceEncoder, query: str, text: str) -> float:
    """Of their codes."""
    a, b = encoder.encode_queries([query]).values()[0], encoder.encode_keywords([text]).values()[0]
    lengths = np.linalg.norm(a.astype(float)) * np.linalg.norm(b.astype(float))
    return float(a.astype(int) @ b.astype(int) / lengths)


def test_words_beside_meaning(plain: SentenceEncoder, tmp_path: Path) -> None:
    """A score is the cosine of the codes + ½ · the share of the query's words that the text has."""
    encoder = SentenceEncoder(plain.model, reference=plain.reference).fit(TEXTS, n=128)
    assert encoder.learn_words(TEXTS) is encoder
    rbegir.Index.create(tmp_path / "e.rbe", encoder).close()
    with rbegir.Index.open(tmp_path / "e.rbe") as index:
        index.add([*TEXTS, "order 4711 of part XK-2207", "order 4712 of part XK-2209"])
        index.add([""])  # a keyword without a word
        wanted = ["cheap flights to rome", "order 4711 of part XK-2207"]
        queries = ["flights to rome", "xk-2207"]
        hits = index.search(queries, k=15, why=True)
        assert hits.reranked
        assert hits.why is not None
        assert hits.texts[:, 0].tolist() == wanted
        for query, text, share in ((0, wanted[0], 1), (1, wanted[1], 1), (1, "cake recipe", 0)):
            at = hits.texts[query].tolist().index(text)
            cosine = cosine_of(encoder, queries[query], text)
            assert hits.scores[query, at] == pytest.approx(cosine + 0.5 * share, abs=1e-6)
            assert (hits.why[query, at].meaning, hits.why[query, at].words) == (
                pytest.approx(cosine, abs=1e-4),
                share,
            )
        forced = index.search("xk-2207", k=2, rerank=True)
        assert forced.ids.tolist() == hits.ids[1:2, :2].tolist()  # by words, not by decoded vectors
        plain_hits = index.search(queries, k=15, rerank=False)
        by_code = index.search_codes(encoder.encode_queries(queries), k=15)
        assert (plain_hits.ids.tolist(), plain_hits.scores.tolist()) == (
            by_code.ids.tolist(),
            by_code.scores.tolist(),
        )
        index.verify()
    (weights,) = (tmp_path / "e.rbe" / "model" / "rerank").glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with rbegir.Index.open(tmp_path / "e.rbe") as index, pytest.raises(CorruptError):
        index.verify()


def test_words_beside_trained_codes(saved: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(saved).learn_words(pa.array(TEXTS))
    with rbegir.Index.create(tmp_path / "f.rbe", encoder) as index:
        index.add(TEXTS)
        assert index.search("brad bake", k=1).texts.tolist() == [["how to bake bread"]]  # a typo, too
    weights = encoder.reranker
    for texts, message in (
        ("abc", "got str"),
        (iter(TEXTS), "got list_iterator"),
        (["a", None], r"texts\[1\] is None"),
    ):
        with pytest.raises(rbegir.RbegirError, match=message):
            encoder.learn_words(texts)
    assert encoder.reranker is weights
    assert encoder.learn_words(np.array(TEXTS)).reranker.spelling.key == weights.spelling.key


def test_an_encoder_in_memory_cannot_be_stored(plain: SentenceEncoder, tmp_path: Path) -> None:
    encoder = SentenceEncoder(plain.model).fit(TEXTS, n=64)
    with pytest.raises(MismatchError, match="made from a model in memory"):
        rbegir.Index.create(tmp_path / "c.rbe", encoder)
    assert not (tmp_path / "c.rbe").exists()
    assert not list(tmp_path.glob(".c.rbe*"))


def test_encoders_that_are_not_there_or_not_ours_to_run(saved: Path, tmp_path: Path) -> None:
    for name in ("no/such-encoder", "no such place", str(tmp_path / "nowhere")):
        with pytest.raises(FileError, match=r"there is no encoder .* no directory and not in the local"):
            SentenceEncoder.load(name)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileError, match=r"holds no encoder: neither modules\.json nor config\.json"):
        SentenceEncoder.load(empty)
    (empty / "modules.json").write_text("{")
    with pytest.raises(FileError, match="does not list the modules"):
        SentenceEncoder.load(empty)
    entry = {"idx": 0, "name": "0", "path": "", "type": "os.system"}
    (empty / "modules.json").write_text(json.dumps([entry]))
    with pytest.raises(InputError, match=r"is made of os\.system, code of its own, which is not run here"):
        SentenceEncoder.load(empty)
    broken = tmp_path / "broken"
    shutil.copytree(saved, broken)
    weights = broken / "3_RBEHead" / "model.safetensors"
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(FileError, match="cannot be opened as a SentenceTransformer"):
        SentenceEncoder.load(broken)
    modules = json.loads((broken / "modules.json").read_text())
    modules[3]["path"] = "../with-head/3_RBEHead"
    (broken / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(FileError, match=r"modules\.json names the path '\.\./with-head"):
        SentenceEncoder.load(broken)


def test_a_head_takes_no_binarizer(saved: Path) -> None:
    encoder = SentenceEncoder.load(saved)
    with pytest.raises(InputError, match="the model ends in an RBE head, which is trained, not fitted"):
        encoder.fit(TEXTS)
    binarizer = rbegir.Binarizer(8).fit(np.random.default_rng(0).random((20, 8)).astype(np.float32))
    with pytest.raises(InputError, match="the model ends in an RBE head, so it takes no binarizer"):
        SentenceEncoder(encoder.model, binarizer)


def test_a_damaged_or_newer_reference(tmp_path: Path) -> None:
    write_reference(tmp_path, "some/encoder", "abc")
    assert read_reference(tmp_path) == {"reference": "some/encoder", "fingerprint": "abc"}
    path = tmp_path / "encoder.json"
    whole = path.read_text()
    for damaged in (whole.replace("some/", "other/"), whole[:40], "[]", "", '{"crc32c": 1}'):
        path.write_text(damaged)
        with pytest.raises(CorruptError, match=r"encoder\.json is not what was written"):
            read_reference(tmp_path)
    from rbegir.encode.sentence import reference

    body = {"format": reference.FORMAT, "version": 2, "kind": "x", "reference": "a", "fingerprint": "b"}
    path.write_text(json.dumps({**body, "crc32c": reference._sum(body)}))
    with pytest.raises(VersionError, match="an encoder of kind 'x', version 2"):
        read_reference(tmp_path)
    path.unlink()
    with pytest.raises(FileError, match=r"cannot read .*: no such file"):
        read_reference(tmp_path)


# ---- the command line ----


def run_command(*words: object) -> Result:
    """In this process: another one would import torch and transformers again."""
    return CliRunner().invoke(cli.build(["index", "search"]), [str(word) for word in words])


def test_build_and_search_from_the_shell(minilm: Path, tmp_path: Path) -> None:
    texts, out = tmp_path / "texts.txt", tmp_path / "d.rbe"
    texts.write_text("\n".join(TEXTS) + "\n")
    built = run_command("index", "build", "--encoder", minilm, texts, "--out", out, "--n", 64, "--json")
    assert built.exit_code == 0, built.exception
    facts = json.loads(built.stdout)
    assert (facts["keywords"], facts["bytes_per_keyword"]) == (len(TEXTS), 16)
    found = run_command("search", out, "automobile", "-k", 2, "--json")
    assert found.exit_code == 0, found.exception
    (answer,) = json.loads(found.stdout)
    assert {hit["text"] for hit in answer["hits"]} == {"used cars", "second hand automobiles"}
    assert all(hit["score"] == hit["code_score"] for hit in answer["hits"])

    shape = ("--n", 64, "--words", "--overwrite")
    built = run_command("index", "build", "--encoder", minilm, texts, "--out", out, *shape)
    assert built.exit_code == 0, built.exception
    found = run_command("search", out, "hand", "-k", 1, "--json")
    ((best,),) = [answer["hits"] for answer in json.loads(found.stdout)]
    assert best["text"] == "second hand automobiles"
    assert best["score"] > best["code_score"]


def test_bytes_choose_the_codes(minilm: Path) -> None:
    encoder = SentenceEncoder.load(minilm).fit(TEXTS, bytes=8)
    assert (encoder.n, encoder.keyword_planes) == (64, 1)
    assert encoder.encode_keywords(TEXTS[:1]).planes.nbytes == 8


def test_fitting_shows_its_progress(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence, "BLOCK", 5)
    encoder, shares = SentenceEncoder.load(minilm), list[float]()
    encoder.fit(TEXTS, n=64, notify=shares.append)
    assert shares[:3] == pytest.approx([0.9 * 5 / 12, 0.9 * 10 / 12, 0.9])
    assert len(shares) == 3 + ROUNDS
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1)


def test_without_the_package_the_way_out_is_named(tmp_path: Path, saved: Path) -> None:
    write_reference(tmp_path, str(saved), "abc")
    code = (
        "import sys; sys.modules['sentence_transformers'] = None\n"
        "from pathlib import Path; from rbegir.encode.sentence.encoder import load_reference\n"
        "from rbegir.errors import MissingExtraError\n"
        f"try: load_reference(Path({str(tmp_path)!r}))\n"
        "except MissingExtraError as error: print(error.message, '|', error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "need that package" in done.stdout
    assert "pip install 'rbegir[sentence-transformers]'" in done.stdout


def test_bad_arguments_of_build(saved: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one\ntwo\n")
    for words, message in (
        (["only-one"], "expected MODEL and TEXTS, got only-one"),
        (["--encoder", "e", "a", "b"], "expected TEXTS alone, got a, b"),
        (["model", texts, "--n", "64"], "--n, --keyword-planes and --bytes belong to --encoder"),
        (["model", texts, "--words"], "--words belongs to --encoder"),
        (["--encoder", "no/such", texts], "there is no encoder 'no/such'"),
        (["--encoder", saved, texts, "--n", "64"], "are for encoders without an RBE head"),
    ):
        done = run_command("index", "build", *words, "--out", tmp_path / "x.rbe")
        assert isinstance(done.exception, rbegir.RbegirError)
        assert message in done.exception.message
        assert not (tmp_path / "x.rbe").exists()


def test_workers_of_a_cluster_load_it(plain: SentenceEncoder, tmp_path: Path) -> None:
    """It is stored as a reference, which is no model of our own."""
    from rbegir.cluster.bulk import stored_encoder

    encoder = SentenceEncoder(plain.model, reference=plain.reference).fit(TEXTS, n=64)
    with rbegir.Index.create(tmp_path / "ads.rbe", encoder) as index:
        stored = stored_encoder(str(index.path))
        assert encode_keywords(stored, pa.array(TEXTS[:3])) == encoder.encode_keywords(TEXTS[:3])
