"""The LangChain vector store: LangChain's own standard tests, and what they do not look at."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore
from langchain_core.vectorstores.utils import maximal_marginal_relevance
from langchain_tests.integration_tests.vectorstores import VectorStoreIntegrationTests

import rbegir
from rbegir.adapters.langchain import RbegirVectorStore
from rbegir.errors import FilterError, InputError, MismatchError, MissingExtraError
from tests.adapters.conftest import embed
from tests.reranking import make_model, some_texts

SHOP = ["red shoes", "blue shoes", "green tea", "black tea"]
ABOUT: list[dict[str, Any]] = [
    {"price": 10.5, "kind": "shoe", "sale": True},
    {"price": 20.0, "kind": "shoe", "sizes": [38, 39], "id": "inner", "none": None},
    {"price": 3.0, "kind": "tea's", "nested": {"a": [1, {"b": None}]}},
    {"kind": "tea's", "sale": False},
]


class TestStandard(VectorStoreIntegrationTests):
    """All of LangChain's tests for vector stores, over an index and over a service."""

    @pytest.fixture
    def vectorstore(self, keywords: Any) -> VectorStore:
        return RbegirVectorStore(keywords)


class TestStandardWithEmbeddings(VectorStoreIntegrationTests):
    """The same tests over an index that is made of the vectors of any embedding."""

    @pytest.fixture
    def vectorstore(self) -> VectorStore:
        return RbegirVectorStore(embedding=self.get_embeddings())


class Words(Embeddings):
    """LangChain's interface over vectors of words."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [embed(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return embed(text)


STOCK = ["red shoes", "red shoes size nine", "red shoes size ten", "green tea", "black tea", "red tea pot"]


def contents(found: list[Document]) -> list[str]:
    return [document.page_content for document in found]


def test_bytes_choose_the_codes() -> None:
    store = RbegirVectorStore.from_texts(STOCK, Words(), bytes=8)
    assert (store.index.info()["bytes_per_keyword"], store.index.model.bytes) == (8, 8)
    with pytest.raises(InputError, match="no code takes 13 bytes"):
        RbegirVectorStore(embedding=Words(), bytes=13)
    with pytest.raises(InputError, match="index and bytes cannot both be given"):
        RbegirVectorStore(store.index, Words(), bytes=8)


def test_any_embedding_of_langchain(tmp_path: Path) -> None:
    documents = [Document(page_content=text, metadata={"tea": "tea" in text}, id=text) for text in STOCK]
    store = RbegirVectorStore.from_documents(documents, Words(), path=tmp_path / "stock.rbe")
    assert isinstance(store.embeddings, Words)
    scored = store.similarity_search_with_score("red shoes", k=3)
    assert scored[0][0] == documents[0]
    assert {document.id for document, _ in scored} == set(STOCK[:3])
    query = np.array(embed("red shoes"))
    for document, score in scored:  # an estimate of the cosine of the embeddings
        vector = np.array(embed(document.page_content))
        cosine = query @ vector / np.linalg.norm(query) / np.linalg.norm(vector)
        assert score == pytest.approx(cosine, abs=0.15)
    assert set(contents(store.similarity_search("red", k=9, filter={"tea": True}))) == set(STOCK[3:])
    assert contents(store.similarity_search_by_vector(embed("green tea"), k=1)) == ["green tea"]
    assert contents(asyncio.run(store.asimilarity_search("black tea", k=1))) == ["black tea"]
    store.add_texts(["yellow submarine"])
    assert contents(store.similarity_search("yellow submarine", k=1)) == ["yellow submarine"]
    store.index.close()
    with rbegir.Index.open(tmp_path / "stock.rbe") as index:  # a new store over what was stored
        again = RbegirVectorStore(index, Words())
        again.add_texts(["purple rain"], ids=["p"])
        assert contents(again.similarity_search("purple rain", k=1)) == ["purple rain"]
        assert len(index) == 8


def test_one_text_makes_a_store_that_later_texts_fit() -> None:
    """Codes fitted to one vector would lose the directions of all later ones."""
    store = asyncio.run(RbegirVectorStore.afrom_texts(["first"], Words()))
    words = [f"word{i} and{i % 7} more{i % 11}" for i in range(300)]
    asyncio.run(store.aadd_texts(words))
    assert [contents(store.similarity_search(text, k=1))[0] for text in words] == words


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.5, 1.0])
def test_diverse_documents(model: Path, tmp_path: Path, weight: float) -> None:
    """The choice is that of LangChain's own function, for the codes."""
    with rbegir.Index.create(tmp_path / "own.rbe", rbegir.Model.load(model), id_type="string") as index:
        store = RbegirVectorStore.from_texts(STOCK, None, ids=STOCK, index=index)
        among = index.search("red shoes", 5)[0]
        codes = index.codes([hit.id for hit in among]).values().astype(float)
        query = index.model.encode_queries(["red shoes"]).values()[0].astype(float)
        wanted = [among[i].text for i in maximal_marginal_relevance(query, list(codes), weight, 3)]
        assert contents(store.max_marginal_relevance_search("red shoes", 3, 5, weight)) == wanted
        later = store.amax_marginal_relevance_search("red shoes", 3, 5, weight)
        assert contents(asyncio.run(later)) == wanted
        kwargs = {"k": 3, "fetch_k": 5, "lambda_mult": weight}
        retriever = store.as_retriever(search_type="mmr", search_kwargs=kwargs)
        assert contents(retriever.invoke("red shoes")) == wanted


def test_diverse_documents_of_an_embedding() -> None:
    store = RbegirVectorStore.from_texts(STOCK, Words(), ids=STOCK)
    near, far = contents(store.max_marginal_relevance_search("red shoes", 2, 6, 0.2))
    assert near == "red shoes"
    assert "shoes" not in far
    assert contents(store.max_marginal_relevance_search_by_vector(embed("red shoes"), 2, 6, 0.2)) == [
        near,
        far,
    ]
    only = store.max_marginal_relevance_search("red shoes", 3, 5, filter="id = 'green tea'")
    assert contents(only) == ["green tea"]
    assert store.max_marginal_relevance_search("red", 3, 5, filter="id = 'none'") == []


def test_a_service_tells_no_codes(service: rbegir.Client) -> None:
    with pytest.raises(InputError, match="a service does not return the codes of its hits"):
        RbegirVectorStore(service).max_marginal_relevance_search("red")


@pytest.fixture
def shop(keywords: Any) -> RbegirVectorStore:
    return RbegirVectorStore.from_texts(SHOP, None, ABOUT, ids=["a", "b", "c", "d"], index=keywords)


def found(shop: RbegirVectorStore, filter: Any) -> set[str]:
    return {document.id or "" for document in shop.similarity_search("shoes", k=10, filter=filter)}


FILTERS: list[tuple[Any, set[str]]] = [
    (None, {"a", "b", "c", "d"}),
    ({}, {"a", "b", "c", "d"}),
    ({"kind": "shoe"}, {"a", "b"}),
    ({"kind": "tea's"}, {"c", "d"}),
    ({"sale": True}, {"a"}),
    ({"price": {"$lt": 10.5}}, {"c"}),
    ({"price": {"$gte": 10.5, "$lt": 20}}, {"a"}),
    ({"kind": {"$ne": "shoe"}}, {"c", "d"}),
    ({"price": {"$ne": 3.0}}, {"a", "b", "d"}),
    ({"price": {"$in": [3, 20]}}, {"b", "c"}),
    ({"price": {"$nin": [3, 20]}}, {"a", "d"}),
    ({"kind": {"$in": []}}, set()),
    ({"kind": {"$nin": []}}, {"a", "b", "c", "d"}),
    ({"price": {"$exists": False}}, {"d"}),
    ({"$or": [{"price": {"$gt": 15}}, {"sale": False}]}, {"b", "d"}),
    ({"$and": [{"kind": "shoe"}, {"price": {"$lte": 11}}]}, {"a"}),
    ({"$not": {"kind": "shoe"}}, {"c", "d"}),
    ({"$or": []}, set()),
    ("price < 11 and kind = 'shoe'", {"a"}),
]


@pytest.mark.parametrize(
    ("filter", "expected"), FILTERS, ids=lambda value: str(sorted(value) if isinstance(value, set) else value)
)
def test_filters(shop: RbegirVectorStore, filter: Any, expected: set[str]) -> None:
    assert found(shop, filter) == expected


@pytest.mark.parametrize(
    ("filter", "message"),
    [
        ({"prize": 3}, "there is no column 'prize'"),
        ({"$nor": []}, r"\$nor is not an operator"),
        ({"price": {"$near": 3}}, r"\$near is not an operator"),
        ({"price": {"$in": 3}}, "the values for 'price' must be a list, got int"),
        ({"price": [3]}, "a filter compares with texts, numbers and truth values"),
        ({"price": float("inf")}, "a filter compares with texts"),
        ({"$and": {"a": 1}}, r"\$and needs a list of dictionaries"),
        ({"$not": 3}, r"\$not needs a dictionary"),
        ({3: 4}, "the name of an attribute must be a text, got 3"),
        ([3], "filter must be a dictionary or a text, got list"),
    ],
    ids=str,
)
def test_wrong_filters(shop: RbegirVectorStore, filter: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        found(shop, filter)


def test_metadata_comes_back_as_it_was(shop: RbegirVectorStore) -> None:
    assert [document.metadata for document in shop.get_by_ids(["a", "b", "c", "d"])] == ABOUT
    assert shop.similarity_search("blue shoes", k=1) == [
        Document(id="b", page_content="blue shoes", metadata=ABOUT[1])
    ]


def test_numbers_that_no_column_takes_come_back_too(shop: RbegirVectorStore) -> None:
    shop.add_texts(["odd numbers"], [{"high": math.inf, "low": -math.inf, "price": 1.5}], ids=["odd"])
    (found,) = shop.get_by_ids(["odd"])
    assert found.metadata == {"high": math.inf, "low": -math.inf, "price": 1.5}


def test_scores_are_those_of_the_index(shop: RbegirVectorStore, keywords: Any) -> None:
    scored = shop.similarity_search_with_score("green tea", k=4)
    hits = keywords.search("green tea", k=4)
    assert [document.id for document, _ in scored] == hits.ids[0].tolist()
    assert [score for _, score in scored] == hits.scores[0].tolist()
    relevant = shop.similarity_search_with_relevance_scores("green tea", k=4)
    assert [score for _, score in relevant] == [max(score, 0) for _, score in scored]


def test_as_retriever(shop: RbegirVectorStore) -> None:
    retriever = shop.as_retriever(search_kwargs={"k": 1, "filter": {"kind": "tea's"}})
    assert [document.id for document in retriever.invoke("black tea")] == ["d"]
    strict = shop.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.95}
    )
    assert [document.id for document in strict.invoke("black tea")] == ["d"]


def test_whole_numbers_as_ids(model: Path, tmp_path: Path) -> None:
    with rbegir.Index.create(tmp_path / "numbers.rbe", rbegir.Model.load(model)) as index:
        index.add(["from elsewhere"], ids=[7])
        store = RbegirVectorStore(index)
        assert store.add_texts(["eight"], ids=["8"]) == ["8"]
        (made,) = store.add_texts(["made"])
        assert store.get_by_ids(["7", "8", "none", made, "08", str(2**70)]) == [
            Document(id="7", page_content="from elsewhere"),
            Document(id="8", page_content="eight"),
            Document(id=made, page_content="made"),
        ]
        with pytest.raises(InputError, match="the id 'nine' is not a whole number") as caught:
            store.add_texts(["nine"], ids=["nine"])
        assert "id_type='string'" in caught.value.hint
        assert store.delete(["7", "nine"])
        assert len(index) == 2


def test_scores_of_reranked_documents_are_cosines(tmp_path: Path) -> None:
    texts = some_texts(300)
    model = make_model(tmp_path / "model", texts)
    with rbegir.Index.create(tmp_path / "r.rbe", model, id_type="string") as index:
        store = RbegirVectorStore(index)
        store.add_texts(texts)
        hits = index.search("rivr bank", 5)
        assert hits.reranked
        scored = store.similarity_search_with_score("rivr bank", k=5)
        assert [document.id for document, _ in scored] == hits.ids[0].tolist()
        assert [score for _, score in scored] == hits.code_scores[0].tolist()
        relevant = store.similarity_search_with_relevance_scores("rivr bank", k=5)
        assert [score for _, score in relevant] == hits.code_scores[0].clip(0, 1).tolist()


class Ragged(Words):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0] * number for number in range(1, len(texts) + 1)]


def test_mistakes(shop: RbegirVectorStore, keywords: Any) -> None:
    for wrong, message in (
        (lambda: shop.add_texts(["a"], [{}, {}]), "metadatas has 2 values for 1 texts"),
        (lambda: shop.add_texts(["a"], ids=["a", "b"]), "ids has 2 values for 1 texts"),
        (lambda: shop.add_texts(["a"], [{"x": {1, 2}}]), "metadata must be values that JSON can hold"),
        (lambda: shop.add_texts(["a"], [{3: 4}]), "names in metadata must be texts, got 3"),
        (lambda: shop.add_texts(["a"], batch_size=3), "add_texts does not know batch_size"),
        (lambda: shop.delete(), "ids must be given"),
        (lambda: shop.similarity_search("a", fetch_k=3), "similarity_search does not know fetch_k"),
        (lambda: RbegirVectorStore.from_texts(["a"]), "index must be given"),
        (lambda: RbegirVectorStore.from_texts(["a"], Words(), index=keywords), "embedding must be None"),
        (lambda: RbegirVectorStore(embedding=Ragged()).add_texts(["a", "b"]), "embeddings must be lists of"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()
    with pytest.raises(MismatchError, match="in this index it is double"):
        shop.add_texts(["a"], [{"price": "dear"}])


def test_nothing_to_add(keywords: Any) -> None:
    store = RbegirVectorStore(keywords)
    assert store.add_texts([]) == []
    assert store.delete([])
    assert store.get_by_ids([]) == []


@pytest.mark.parametrize(
    ("name", "package"), [("langchain", "langchain_core"), ("llamaindex", "llama_index.core")]
)
def test_without_the_package(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m == package or m.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"rbegir.adapters.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=f"adapter needs {package}") as caught:
        __import__(f"rbegir.adapters.{name}")
    assert caught.value.hint == f"pip install 'rbegir[{name}]'"
