"""RBE layers on any vectors: the start is the quantiser that the docstring promises."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rbegir.encode.clsm.rbe import codes_of, fingerprint_of, prefixes, rbe_layers, start_as_quantiser
from rbegir.errors import InputError


def cloud(count: int, width: int, seed: int = 0) -> torch.Tensor:
    """Vectors with very different variances and a mean that is not zero, of about length 1."""
    rng = np.random.default_rng(seed)
    scales = np.linspace(1.0, 0.05, width)
    raw = rng.standard_normal((count, width)) * scales + 0.3 * scales[::-1]
    return torch.from_numpy(raw / np.linalg.norm(raw, axis=1, keepdims=True)).float()


@pytest.mark.parametrize("planes", [1, 2, 3, 4])
def test_with_a_full_rotation_the_start_is_a_uniform_quantiser(planes: int) -> None:
    vectors = 0.01 * cloud(500, 64)  # so small that tanh is the identity
    layers = rbe_layers(64, 64, planes).eval()
    start_as_quantiser(layers, vectors, seed=3)
    with torch.no_grad():
        made = prefixes(layers(vectors))[-1].numpy()
        y = layers.W(vectors).numpy()  # of spread 1
    assert np.sqrt((y**2).mean()) == pytest.approx(1.0, abs=1e-3)
    # the nearest of the levels ±½^(P−1), ±3·½^(P−1) …: independent of how the layers find it
    levels = np.arange(-(2**planes) + 1, 2**planes, 2) / 2 ** (planes - 1)
    nearest = levels[np.abs(y[..., None] - levels).argmin(axis=-1)]
    assert (made == nearest).mean() > 0.999  # of ties either is right


@pytest.mark.parametrize(("width", "n"), [(96, 64), (64, 64), (48, 128)])
def test_more_planes_keep_cosines_better(width: int, n: int) -> None:
    vectors = cloud(300, width)
    layers = rbe_layers(width, n, 4).eval()
    start_as_quantiser(layers, vectors)
    centred = vectors - vectors.mean(dim=0)
    true = torch.corrcoef(centred)
    errors = []
    with torch.no_grad():
        for made in prefixes(layers(vectors)):
            unit = torch.nn.functional.normalize(made)
            errors.append(float((unit @ unit.T - true).square().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.35 * errors[0]


def test_codes_and_prefixes_agree() -> None:
    layers = rbe_layers(20, 128, 3).eval()
    with torch.no_grad():
        made = layers(torch.randn(7, 20, generator=torch.Generator().manual_seed(1)))
        vectors = prefixes(made)
    codes = codes_of(made)
    for planes in (1, 2, 3):
        scaled = vectors[planes - 1].numpy() * 2.0 ** (planes - 1)
        assert np.array_equal(codes.first_planes(planes).values(), scaled)


def test_the_fingerprint_names_settings_and_weights() -> None:
    layers = rbe_layers(8, 64, 2)
    first = fingerprint_of({"n": 64}, layers)
    assert len(first) == 32
    assert fingerprint_of({"n": 64}, layers) == first
    assert fingerprint_of({"n": 65}, layers) != first
    with torch.no_grad():
        layers.W.weight[0, 0] += 1e-3
    assert fingerprint_of({"n": 64}, layers) != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 64, 2), "width must be a whole number of at least 1, got 0"),
        ((8, 65, 2), "n must be a multiple of 64 from 64 to 1024, got 65"),
        ((8, 64, 0), "planes must be a whole number from 1 to 8, got 0"),
        ((8, 64, 9), "planes must be a whole number from 1 to 8, got 9"),
    ],
)
def test_bad_shapes(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rbe_layers(*arguments)
