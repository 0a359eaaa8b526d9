"""The native tower equals the equations, and the same bits come out however they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch

from rbegir._native import _core
from rbegir.codes.planes import Codes
from rbegir.encode.clsm import sides
from rbegir.encode.clsm.checkpoint import from_bytes, to_bytes
from rbegir.encode.clsm.presets import ModelConfig, random_tensors
from rbegir.encode.clsm.sides import NativeSide, TorchSide
from rbegir.errors import InputError, TextError
from tests.encode.clsm.reference import disagreements, trace
from tests.isa import every_isa

Tensors = Mapping[str, npt.NDArray[np.float32]]
SMALL = {"conv": 24, "hash_buckets": 50}
CONFIGS = {
    "rbe_star": ModelConfig(**SMALL),
    "one plane": ModelConfig(n=128, query_planes=1, keyword_planes=1, **SMALL),
    "deep": ModelConfig(n=192, query_planes=8, keyword_planes=4, conv=5, hidden=(33, 17), hash_buckets=1),
    "shared": ModelConfig(share_towers=True, hidden=(16,), **SMALL),
    "fixed": ModelConfig(time_varying=False, query_planes=4, **SMALL),
    "no bias": ModelConfig(bias=False, **SMALL),
    "even": ModelConfig(residual_weights=False, **SMALL),
    "float": ModelConfig(query_planes=0, keyword_planes=0, **SMALL),
}
WORDS = "red green blue city maps été größe 東京 of x 42 " + "long" * 8
LENGTHS = [1, 2, 3, 4, 9]


def make_texts(count: int, seed: int = 0) -> list[str]:
    draw = np.random.default_rng(seed)
    vocabulary = [*WORDS.split(), *(f"w{i}" for i in range(40))]
    return [" ".join(draw.choice(vocabulary, draw.choice(LENGTHS))) for _ in range(count)]


@pytest.fixture(params=CONFIGS, ids=str, scope="module")
def model(request: pytest.FixtureRequest) -> tuple[ModelConfig, Tensors]:
    config = CONFIGS[request.param]
    return config, random_tensors(config, seed=1)


@pytest.mark.parametrize("side", ["query", "keyword"])
def test_equals_the_equations(model: tuple[ModelConfig, Tensors], side: str) -> None:
    config, tensors = model
    texts = make_texts(150)
    native = NativeSide(config, side, tensors.__getitem__, threads=2)
    inputs = trace(config, side, tensors, texts).inputs
    if config.query_planes == 0:
        np.testing.assert_allclose(native.vectors(texts), np.tanh(inputs[0]), rtol=0, atol=2e-6)
        return
    wrong, left_out = disagreements(Codes(native.planes(texts), config.n).signs(), inputs)
    assert wrong == 0
    assert left_out < 0.1


@pytest.mark.parametrize("side", ["query", "keyword"])
def test_agrees_with_torch(
    model: tuple[ModelConfig, Tensors], side: str, record_property: pytest.RecordProperty
) -> None:
    """Equal bits wherever the input of ρ is clear of 0; the share of texts where it is not is recorded."""
    config, tensors = model
    texts = make_texts(400, seed=2)
    native = NativeSide(config, side, tensors.__getitem__)
    other = TorchSide.load(config, side, tensors.__getitem__, "cpu")  # type: ignore[arg-type]
    if config.query_planes == 0:
        np.testing.assert_allclose(native.vectors(texts), other.vectors(texts), rtol=0, atol=2e-6)
        return
    inputs = trace(config, side, tensors, texts).inputs
    ours, theirs = (Codes(part.planes(texts), config.n).signs() for part in (native, other))
    differ = (ours != theirs).any(axis=(0, 2)).mean()
    record_property("texts that differ", float(differ))
    for signs in (ours, theirs):
        wrong, left_out = disagreements(signs, inputs)
        assert wrong == 0
    assert differ <= left_out < 0.1


@every_isa()
@pytest.mark.parametrize("side", ["query", "keyword"])
def test_same_bits_on_every_instruction_set(model: tuple[ModelConfig, Tensors], side: str, isa: str) -> None:
    config, tensors = model
    texts = make_texts(230, seed=3)
    results = []
    for name in (isa, "portable"):
        native = NativeSide(config, side, tensors.__getitem__, isa=name)
        results.append(native.vectors(texts) if config.query_planes == 0 else native.planes(texts))
    assert np.array_equal(*results)


@every_isa()
@pytest.mark.parametrize("conv", [5, 24, 64])
def test_a_table_of_bytes_gives_the_bits_of_its_floats(conv: int, isa: str) -> None:
    config = ModelConfig(conv=conv, hash_buckets=50)
    floats = dict(random_tensors(config))
    stored, scale = to_bytes(floats["query.conv.weight"])
    floats["query.conv.weight"] = from_bytes(stored, scale)
    bytes_ = floats | {"query.conv.weight": stored, "query.conv.scale": scale}
    texts = make_texts(230, seed=5)
    want = NativeSide(config, "query", floats.__getitem__, isa="portable").planes(texts)
    assert np.array_equal(NativeSide(config, "query", bytes_.__getitem__, isa=isa).planes(texts), want)


def test_same_bits_in_any_batch_with_any_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    config, texts = CONFIGS["rbe_star"], make_texts(1000, seed=4)
    tensors = random_tensors(config)
    whole = NativeSide(config, "query", tensors.__getitem__, threads=1).planes(texts)
    native = NativeSide(config, "query", tensors.__getitem__, threads=3)
    assert np.array_equal(native.planes(texts), whole)
    assert np.array_equal(native.planes(pa.array(texts)[7:]), whole[:, 7:])
    for size in (1, 5, 6, 7, 95, 96, 97, 193):
        assert np.array_equal(native.planes(texts[:size]), whole[:, :size])
    assert native.planes([]).shape == (3, 0, 1)
    monkeypatch.setattr(sides, "BLOCK", 64)
    assert np.array_equal(native.planes(texts), whole)


def test_threads_share_a_side() -> None:
    config, tensors = CONFIGS["rbe_star"], random_tensors(CONFIGS["rbe_star"])
    batches = [make_texts(300, seed=seed) for seed in range(12)]
    fresh = [NativeSide(config, "keyword", tensors.__getitem__, threads=1).planes(batch) for batch in batches]
    shared = NativeSide(config, "keyword", tensors.__getitem__, threads=2)
    with ThreadPoolExecutor(6) as pool:
        for got, want in zip(pool.map(shared.planes, batches), fresh, strict=True):
            assert np.array_equal(got, want)


def test_a_full_word_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS["rbe_star"]
    tensors = random_tensors(config)
    texts = [f"a{i % 50} b{i} {'c' * (i % 30)}z" for i in range(2000)]
    want = NativeSide(config, "query", tensors.__getitem__).planes(texts)
    monkeypatch.setattr(sides, "CACHE_BYTES", 8 * 12 * config.conv)
    tiny = NativeSide(config, "query", tensors.__getitem__)
    assert np.array_equal(tiny.planes(texts), want)
    assert np.array_equal(tiny.planes(texts[::-1]), want[:, ::-1])


@every_isa()
def test_tanh_is_precise(isa: str) -> None:
    """Through a float side whose gram row and output matrix are chosen so that it shows tanh of a number."""
    config = ModelConfig(query_planes=0, keyword_planes=0, conv=64, hash_buckets=1, bias=False)
    tensors = {name: np.zeros(array.shape, np.float32) for name, array in random_tensors(config).items()}
    tensors["query.out.weight"] = 64 * np.eye(64, dtype=np.float32)
    x = np.array([*np.geomspace(1e-6, 12, 62), 0.0, 100.0], dtype=np.float32)
    for sign in (1, -1):
        # small: the tower's tanh of it is precise too
        tensors["query.conv.weight"][:, 64:128] = sign * x / 64
        got = NativeSide(config, "query", tensors.__getitem__, isa=isa).vectors(["a"])[0]
        inner = 64 * np.tanh(sign * x.astype(np.float64) / 64)
        np.testing.assert_allclose(got, np.tanh(inner), rtol=1e-6, atol=0)


def test_texts_without_words_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS["rbe_star"]
    native = NativeSide(config, "query", random_tensors(config).__getitem__)
    monkeypatch.setattr(sides, "BLOCK", 100)
    texts = make_texts(1000)
    texts[777] = texts[800] = "?!"
    with pytest.raises(TextError, match=r"^text at position 777 has no letter and no digit") as caught:
        native.planes(texts)
    assert caught.value.hint == "leave it out"
    texts[777] = 7  # type: ignore[call-overload]
    with pytest.raises(TextError, match=r"^text at position 777 is not a str but int"):
        native.planes(texts)
    with pytest.raises(InputError, match=r"^texts must be a list of str, got int"):
        native.planes(5)  # type: ignore[arg-type]


def test_texts_without_words_are_named_by_torch_too(monkeypatch: pytest.MonkeyPatch) -> None:
    config = CONFIGS["rbe_star"]
    other = TorchSide.load(config, "query", random_tensors(config).__getitem__, "cpu")
    monkeypatch.setattr(sides, "TORCH_BLOCK", 10)
    with pytest.raises(TextError, match=r"^text at position 13 has no letter and no digit"):
        other.planes([*make_texts(13), "", "b"])
    with pytest.raises(TextError, match=r"^text at position 13 is not a str"):
        other.planes([*make_texts(13), None])  # type: ignore[list-item]
    assert other.planes([]).shape == (3, 0, 1)
    assert not torch.is_inference_mode_enabled()


def test_the_native_tower_refuses_wrong_shapes() -> None:
    """What Python checks already; the native module does not trust it with memory all the same."""
    zeros = np.zeros
    table = zeros((_core.VOCABULARY + 1, 6), np.float32)
    none = zeros(0, np.float32)
    for conv, bias in (
        (zeros((100, 6), np.float32), none),
        (zeros((_core.VOCABULARY + 1, 7), np.float32), none),
        (table, zeros(3, np.float32)),
    ):
        with pytest.raises(ValueError, match=r"must be"):
            _core.Tower(conv, None, bias, 8, "portable")
    with pytest.raises(ValueError, match=r"this CPU runs no kernels for the instruction set 'abacus'"):
        _core.Tower(table, None, none, 8, "abacus")
    scales = zeros((len(table), 3), np.float32)
    for conv, given in ((table, scales), (table.astype(np.int8), None), (table.astype(np.int8), scales[:-1])):
        with pytest.raises(TypeError, match=r"float32, or int8 with float32 scales"):
            _core.Tower(conv, given, none, 8, "portable")
    tower = _core.Tower(table, None, none, 8, "portable")
    for weight in (zeros((64, 3), np.float32), zeros((63, 2), np.float32)):
        with pytest.raises(ValueError, match=r"shapes do not belong together"):
            tower.set_head(weight, none)
    with pytest.raises(ValueError, match=r"bias and weight differ in length"):
        tower.set_head(zeros((64, 2), np.float32), zeros(5, np.float32))
    texts = _core.Texts()
    texts.add_strings(("a",))
    with pytest.raises(ValueError, match=r"shapes do not belong together"):
        tower.encode(texts, zeros((1, 1, 1), np.uint64), 0, 1)  # no head yet
    tower.set_head(zeros((64, 2), np.float32), none)
    for shape, start in (((2, 1, 1), 0), ((1, 1, 2), 0), ((1, 1, 1), 1), ((1, 1, 1), 2**64 - 1)):
        with pytest.raises(ValueError, match=r"shapes do not belong together"):
            tower.encode(texts, zeros(shape, np.uint64), start, 1)
    with pytest.raises(ValueError, match=r"shapes do not belong together"):
        tower.set_head(zeros((128, 2), np.float32), none)  # once only
    with pytest.raises(ValueError, match=r"shapes do not belong together"):
        tower.add_hidden(zeros((2, 2), np.float32), none)  # too late
    assert tower.encode(texts, zeros((1, 1, 1), np.uint64), 0, 1) == -1
    converted = (np.zeros((1, 1, 1), np.int64), np.zeros((1, 4, 1), np.uint64)[:, ::2])
    for planes in converted:  # a copy would be filled, and thrown away
        with pytest.raises(TypeError, match="incompatible function arguments"):
            tower.encode(texts, planes, 0, 1)
    for vectors in (np.zeros((1, 64)), np.zeros((1, 128), np.float32)[:, ::2]):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            tower.embed(texts, vectors, 0, 1)
    for conv in (table.astype(np.float64), np.asfortranarray(table)):  # a copy would be freed too early
        with pytest.raises(TypeError, match="incompatible function arguments"):
            _core.Tower(conv, none, 8, "portable")
    with pytest.raises(ValueError, match=r"shapes do not belong together"):
        tower.embed(texts, zeros((1, 64), np.float32), 2**64 - 1, 1)
    assert tower.embed(texts, zeros((1, 64), np.float32), 0, 1) == -1
