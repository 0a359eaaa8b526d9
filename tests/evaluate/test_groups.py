"""Sample groups: the right positives, and negatives that are none."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.errors import InputError
from rbegir.evaluate import groups as groups_module
from rbegir.evaluate.groups import sample_groups, unit


def table(pairs: list[tuple[str, str]]) -> pa.Table:
    return pa.table({"query": [q for q, _ in pairs], "keyword": [k for _, k in pairs]})


names = st.integers(0, 6).map(str)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(names, names), min_size=1, max_size=30), st.integers(1, 12), st.integers(0, 3))
def test_groups_hold_what_they_should(pairs: list[tuple[str, str]], negatives: int, seed: int) -> None:
    right: dict[str, set[str]] = {}
    for query, keyword in pairs:
        right.setdefault(query, set()).add(keyword)
    keywords = {keyword for _, keyword in pairs}
    if len(keywords) == 1:
        with pytest.raises(InputError, match="one keyword only"):
            sample_groups(table(pairs), negatives=negatives, seed=seed)
        return
    if any(found == keywords for found in right.values()):
        with pytest.raises(InputError, match="is paired with every keyword"):
            sample_groups(table(pairs), negatives=negatives, seed=seed)
        return
    groups = sample_groups(table(pairs), negatives=negatives, seed=seed)
    assert groups.keyword.shape == (len(set(pairs)), 1 + negatives)
    texts, asked = groups.keywords.to_pylist(), groups.queries.to_pylist()
    found = [(asked[q], texts[k]) for q, k in zip(groups.query, groups.keyword[:, 0], strict=True)]
    assert found == list(dict.fromkeys(pairs))  # each distinct pair once, in order
    for query, row in zip(groups.query, groups.keyword, strict=True):
        assert not {texts[k] for k in row[1:]} & right[asked[query]]
    again = sample_groups(table(pairs), negatives=negatives, seed=seed)
    assert np.array_equal(groups.keyword, again.keyword)


def test_negatives_are_drawn_as_often_as_their_keyword_occurs() -> None:
    pairs = [(f"q{i}", "often" if i % 4 else f"k{i}") for i in range(4000)]
    groups = sample_groups(table(pairs), negatives=10, seed=1)
    counts = Counter(groups.keywords[int(k)].as_py() for k in groups.keyword[:, 1:].ravel())
    rare = groups.query[np.array([groups.keywords[int(k)].as_py() != "often" for k in groups.keyword[:, 0]])]
    drawn_by_rare = np.isin(groups.query, rare)
    share = np.mean(
        [groups.keywords[int(k)].as_py() == "often" for k in groups.keyword[drawn_by_rare, 1:].ravel()]
    )
    assert abs(share - 0.75) < 0.02  # 3,000 of the 4,000 pairs
    assert len(counts) > 990


def test_another_seed_draws_others() -> None:
    pairs = [(f"q{i}", f"k{i}") for i in range(50)]
    one, two = (sample_groups(table(pairs), seed=seed) for seed in (0, 1))
    assert not np.array_equal(one.keyword, two.keyword)


def test_the_last_conflicts_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is right for all keywords but one must draw that one, however unlikely."""
    pairs = [("q", f"k{i}") for i in range(200)] + [("r", "other")]
    monkeypatch.setattr(groups_module, "_ROUNDS", 1)
    groups = sample_groups(table(pairs), negatives=3)
    other = groups.keywords.to_pylist().index("other")
    assert (groups.keyword[groups.query == 0][:, 1:] == other).all()


def test_scores_are_cosines(rng: np.random.Generator) -> None:
    pairs = [(f"q{i}", f"k{i % 7}") for i in range(65)]
    groups = sample_groups(table(pairs), negatives=4)
    queries = rng.normal(size=(65, 5)).astype(np.float32)
    keywords = rng.normal(size=(7, 5)).astype(np.float32)
    keywords[3] = 0
    scores = groups.scores(queries, keywords)
    for g in range(len(groups)):
        for j in range(5):
            q, k = queries[groups.query[g]], keywords[groups.keyword[g, j]]
            length = float(np.linalg.norm(q) * np.linalg.norm(k))
            assert scores[g, j] == pytest.approx(float(q @ k) / length if length else 0.0, abs=1e-6)


def test_unit_keeps_zero() -> None:
    assert unit(np.array([[3, 4], [0, 0]], dtype=np.float32)).tolist() == [
        [pytest.approx(0.6), pytest.approx(0.8)],
        [0, 0],
    ]


def test_no_negatives() -> None:
    with pytest.raises(InputError, match="negatives must be a whole number of at least 1, got 0"):
        sample_groups(table([("a", "b"), ("c", "d")]), negatives=0)
