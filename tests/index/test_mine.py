"""Hard negatives, against a plain sort of all keywords by the score of their codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rbegir
from rbegir import Index
from rbegir.codes import score
from rbegir.index import mine as mining
from tests.cli.test_index_cli import rbegir as command
from tests.index.fakes import HashEncoder
from tests.reranking import some_texts

TEXTS = [*some_texts(300), *["river bank"] * 40]  # some texts occur often
PAIRS = [
    ("river", TEXTS[3]),
    ("the bank", "river bank"),
    ("river", "river bank"),
    ("chess 66", "no such text"),
]


def expected(model: HashEncoder, texts: list[str], k: int) -> list[dict[str, Any]]:
    rows = []
    clicked: dict[str, set[str]] = {}
    for query, keyword in PAIRS:
        clicked.setdefault(query, set()).add(keyword)
    for query, right in clicked.items():
        values = model.encode_queries([query]).values()
        keys = score.keys(values, model.encode_keywords(texts))[0]
        order = np.lexsort((np.arange(len(texts)), -keys))
        cosines = score.cosine(keys[None], score.norm_squared(values))[0]
        wrong = [(rank, i) for rank, i in enumerate(order.tolist(), 1) if texts[i] not in right][:k]
        rows += [
            {"query": query, "keyword": texts[i], "id": i, "rank": rank, "score": cosines[i]}
            for rank, i in wrong
        ]
    return rows


@pytest.mark.parametrize("k", [1, 7, 1000])
@pytest.mark.parametrize("block", [1, 4096])
def test_negatives_are_the_best_that_were_not_clicked(
    k: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mining, "BLOCK", block)
    model = HashEncoder()
    with Index.create(tmp_path / "x.rbe", model) as index:
        index.add(TEXTS[:150])
        index.add(TEXTS[150:])
        found = rbegir.mine(index, PAIRS, k)
    assert found.to_pylist() == expected(model, TEXTS, k)


def test_searches_together_find_a_bounded_number_of_hits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One query with many clicks does not make the searches of the others deep, and results stay the same."""
    clicks = [(f"river {i}", TEXTS[i]) for i in range(60)] + [("chess", text) for text in TEXTS[:200]]
    model, limit, k = HashEncoder(), 120, 5
    sizes: list[tuple[int, int]] = []
    search = Index.search

    def counted(self: Index, queries: list[str], depth: int, **options: Any) -> Any:
        sizes.append((len(queries), depth))
        return search(self, queries, depth, **options)

    with Index.create(tmp_path / "x.rbe", model) as index:
        index.add(TEXTS)
        whole = rbegir.mine(index, clicks, k)
        monkeypatch.setattr(mining, "HITS", limit)
        monkeypatch.setattr(Index, "search", counted)
        assert rbegir.mine(index, clicks, k).equals(whole)
    assert whole.num_rows == 61 * k
    assert max(count for count, _ in sizes) > 1
    assert all(count == 1 or count * depth <= limit for count, depth in sizes)
    assert sum(count for count, depth in sizes if depth >= 100) == 1  # “chess”


def test_a_model_searches_the_keywords_of_the_pairs() -> None:
    model = HashEncoder()
    keywords = list(dict.fromkeys(keyword for _, keyword in PAIRS))
    assert rbegir.mine(model, PAIRS, 2).to_pylist() == expected(model, keywords, 2)


def test_nothing_but_clicked_keywords_gives_an_empty_table() -> None:
    found = rbegir.mine(HashEncoder(), [("river", "bank")])
    assert (found.num_rows, found.column_names) == (0, ["query", "keyword", "id", "rank", "score"])


def test_the_command(tmp_path: Path) -> None:
    from tests.reranking import make_model

    model = make_model(tmp_path / "model", TEXTS)
    pairs = pa.table({"alias": [query for query, _ in PAIRS], "title": [keyword for _, keyword in PAIRS]})
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    named = ("--query-column", "alias", "--keyword-column", "title", "-k", 3)
    with Index.create(tmp_path / "x.rbe", model) as index:
        index.add(TEXTS, ids=[f"t{i}" for i in range(len(TEXTS))])
        wanted = rbegir.mine(index, PAIRS, 3)
    out = tmp_path / "negatives.parquet"
    done = command("mine", tmp_path / "x.rbe", tmp_path / "pairs.parquet", "--out", out, *named, "--json")
    assert done.json == {"negatives": 9, "queries": 3, "keywords": len(TEXTS)}
    assert pq.read_table(out).equals(wanted)
    again = command("mine", tmp_path / "x.rbe", tmp_path / "pairs.parquet", "--out", out, *named)
    assert again.err.splitlines()[0] == f"error: {out} exists already"
    of_model = tmp_path / "of_model.parquet"
    shown = command("mine", tmp_path / "model", tmp_path / "pairs.parquet", "--out", of_model, *named)
    assert "negatives of 3 queries" in " ".join(shown.out.split())
    assert pq.read_table(of_model).equals(rbegir.mine(model, PAIRS, 3))
