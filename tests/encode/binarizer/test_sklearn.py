"""scikit-learn's own checks, clone, pipelines, pairs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

import rbegir
from rbegir.errors import InputError


@pytest.mark.filterwarnings("ignore:Estimator Binarizer does not inherit")  # on purpose, see params.py
def test_scikit_learns_checks() -> None:
    estimator = rbegir.Binarizer(rounds=1, moves=4)
    failed: dict[str, str] = {}
    for instance, check in estimator_checks_generator(estimator, legacy=False):
        name: str = check.func.__name__
        try:
            check(instance)
        except pytest.skip.Exception:  # sklearn skips what its optional packages are missing for
            continue
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    assert failed == {}


def test_clone_and_pipeline() -> None:
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((3, 20)).astype(np.float32)
    labels = np.arange(300) % 3
    X = centres[labels] + 0.2 * rng.standard_normal((300, 20)).astype(np.float32)
    binarizer = rbegir.Binarizer(20, rounds=2, keyword_planes=1)
    assert clone(binarizer).get_params() == binarizer.get_params()
    assert repr(clone(binarizer)) == "Binarizer(dims=20, keyword_planes=1, rounds=2)"
    pipeline = make_pipeline(binarizer, KNeighborsClassifier(3, metric="hamming"))
    assert pipeline.fit(X, labels).score(X, labels) > 0.95
    assert pipeline[:-1].get_feature_names_out()[-1] == "binarizer63"
    with pytest.raises(InputError, match="Invalid parameter 'width'"):
        binarizer.set_params(width=3)


def test_what_is_not_fitted_says_so() -> None:
    for name in ("encode_keywords", "encode_queries", "transform", "error"):
        with pytest.raises(NotFittedError, match=r"not fitted .*call fit"):
            getattr(rbegir.Binarizer(4), name)(np.zeros((2, 4), np.float32))
    with pytest.raises(InputError, match="not fitted"):
        rbegir.Binarizer(4).save("nowhere")


def test_pairs_change_what_counts() -> None:
    """Queries that live in a few dimensions: their errors count, those of the other dimensions do not."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((2000, 32)).astype(np.float32)
    queries = X.copy()
    queries[:, 8:] *= 0.01
    errors = []
    for y in (None, queries):
        binarizer = rbegir.Binarizer(32, n=64, keyword_planes=1).fit(X, y)
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        decoded = binarizer.inverse_transform(binarizer.encode_keywords(X))
        errors.append(float(((unit - decoded)[:, :8] ** 2).sum()))
    assert errors[1] < 0.7 * errors[0]


def test_encoding_needs_neither_torch_nor_scikit_learn() -> None:
    program = (
        "import sys, numpy as np, rbegir\n"
        "X = np.random.default_rng(0).standard_normal((50, 8)).astype('f4')\n"
        "rbegir.Binarizer(8).fit(X).encode_keywords(X)\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)\n"
    )
    done: subprocess.CompletedProcess[Any] = subprocess.run(
        [sys.executable, "-c", program], capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
