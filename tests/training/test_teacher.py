"""A teacher: its vectors, the loss that compares with them, and what training takes from it."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

from rbegir.encode.clsm.clsm import tower_batch
from rbegir.encode.clsm.presets import ModelConfig
from rbegir.encode.sentence.encoder import SentenceEncoder
from rbegir.errors import InputError, RbegirError
from rbegir.read.pairs import PairStream, read_pairs
from rbegir.read.tokenizer import tokenize
from rbegir.training.config import TrainConfig, recipe
from rbegir.training.data import Teacher, TrainingData
from rbegir.training.loss import away
from rbegir.training.trainer import fit, run

SUBJECTS = ["flight", "hotel", "shoe", "car", "cake", "train", "phone", "guitar", "garden", "doctor"]
OTHERS = ["airplane", "inn", "sneaker", "automobile", "pie", "railway", "mobile", "violin", "park", "nurse"]
PLACES = ["rome", "paris", "berlin", "oslo"]
TITLES = [f"{thing} in {place}" for thing in (*SUBJECTS, *OTHERS) for place in PLACES]


@pytest.fixture(scope="module")
def teacher(minilm: Path) -> Teacher:
    return Teacher(minilm, 64)


def test_vectors_are_short_and_keep_the_cosines(minilm: Path, teacher: Teacher) -> None:
    found = teacher(pa.array(TITLES), "document").astype(np.float32)
    full = SentenceEncoder.load(minilm).vectors(TITLES, "document")
    full /= np.linalg.norm(full, axis=1, keepdims=True)
    assert found.shape == (len(TITLES), 64)
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=2e-3)
    assert np.abs(found @ found.T - full @ full.T).max() < 0.05


def test_the_loss_is_one_minus_the_cosine_with_as_many_dimensions_as_the_teacher_has() -> None:
    draw = torch.Generator().manual_seed(0)
    guide, taught = torch.randn(5, 8, generator=draw), torch.randn(5, 6, generator=draw)
    a, b = guide[:, :6].numpy(), taught.numpy()
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert np.allclose(away(guide, taught).numpy(), 1 - cosines, atol=1e-6)


def test_a_query_made_of_a_text_has_the_vector_of_that_text() -> None:
    asked: list[tuple[str, list[str]]] = []

    def teacher(texts: pa.Array, task: str) -> npt.NDArray[np.float16]:
        asked.append((task, texts.to_pylist()))
        return np.array([[len(text), ord(text[0])] for text in texts.to_pylist()], np.float16).reshape(-1, 2)

    columns = [["one", "two", "thre", "two"], ["eins", "zwei", "drei", "vier"], [1.0] * 4]
    table = pa.table(columns, PairStream.schema.names).cast(PairStream.schema)
    data = TrainingData(
        read_pairs(table),
        hash_buckets=64,
        clicked=2,
        teacher=teacher,  # type: ignore[arg-type]
    )
    assert asked == [("document", ["eins", "zwei", "drei", "vier"]), ("query", ["one", "two"])]
    assert data.taught is not None
    # "two" was clicked, and made of "vier" as well: it has its own vector
    assert data.taught[0].tolist() == [[3, ord("o")], [3, ord("t")], [4, ord("d")]]


def test_all_pairs_must_fit_into_the_buffer(teacher: Teacher) -> None:
    table = pa.table([["a"] * 9, list("bcdefghij"), [1.0] * 9], PairStream.schema.names)
    with pytest.raises(InputError, match=r"a teacher needs all pairs in memory at once, got 9 pairs"):
        TrainingData(read_pairs(table), hash_buckets=64, buffer_pairs=4, teacher=teacher)


def test_training_learns_what_the_teacher_knows(teacher: Teacher) -> None:
    """No pair says that an automobile is a car: only the teacher does."""
    shape = ModelConfig(conv=32, hash_buckets=2048)
    columns = [[f"{title} now" for title in TITLES], TITLES, [1.0] * len(TITLES)]
    table = pa.table(columns, PairStream.schema.names).cast(PairStream.schema)

    def likeness(asked: Teacher | None, seed: int) -> float:
        """How much nearer a thing is to its synonym than to the others, by the guide."""
        data = TrainingData(read_pairs(table), hash_buckets=shape.hash_buckets, teacher=asked)
        settings = TrainConfig(epochs=30, batch_size=40, seed=seed)
        [trained] = fit(data, [(shape, settings)], device="cpu")
        assert trained.learner.guide is not None
        with torch.no_grad():
            batch = tower_batch(tokenize([*SUBJECTS, *OTHERS], hash_buckets=shape.hash_buckets))
            found = trained.learner.guide("keyword", trained.network.embed("keyword", batch).features)
        unit = torch.nn.functional.normalize(found)
        cosines = unit[: len(SUBJECTS)] @ unit[len(SUBJECTS) :].T
        return float(cosines.diagonal().mean() - cosines.mean())

    gains = [likeness(teacher, seed) - likeness(None, seed) for seed in range(3)]
    assert sum(gains) / len(gains) > 0.04  # between .04 and .08 each, with a spread of .02


def test_a_recipe_without_a_guide_and_a_missing_teacher_are_refused(minilm: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("query\tkeyword\na\tb\nc\td\n")
    with pytest.raises(InputError, match="a teacher needs a guide"):
        run(pairs, teacher=minilm, settings=recipe("paper"))
    with pytest.raises(RbegirError, match="missing"):
        run(pairs, teacher=tmp_path / "missing")
