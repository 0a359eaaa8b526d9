"""The LlamaIndex vector store with the real package: nodes, filters, documents, an index on top."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

import rbegir
from rbegir.adapters.llamaindex import RbegirVectorStore
from rbegir.errors import FilterError, InputError
from tests.adapters.conftest import embed
from tests.reranking import make_model, some_texts


def node(name: str, text: str, document: str, **metadata: Any) -> TextNode:
    made = TextNode(id_=name, text=text, metadata=metadata)
    made.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
    return made


NODES = [
    node("a", "red shoes", "d1", price=10.5, kind="shoe"),
    node("b", "blue shoes", "d1", price=20.0, kind="shoe", sizes=[38, 39]),
    node("c", "green tea", "d2", price=3.0, kind="tea"),
    node("d", "black tea", "d2", kind="tea"),
]


@pytest.fixture
def store(keywords: Any) -> RbegirVectorStore:
    made = RbegirVectorStore(keywords)
    assert made.add(NODES) == ["a", "b", "c", "d"]
    return made


def names(store: RbegirVectorStore, **query: Any) -> list[str]:
    asked = VectorStoreQuery(**{"query_str": "blue shoes", "similarity_top_k": 10, **query})
    return store.query(asked).ids or []


def test_nodes_come_back_whole(store: RbegirVectorStore, keywords: Any) -> None:
    result = store.query(VectorStoreQuery(query_str="blue shoes", similarity_top_k=2))
    assert result.nodes is not None
    assert result.nodes[0] == NODES[1]
    assert result.nodes[0].ref_doc_id == "d1"
    assert result.similarities == keywords.search("blue shoes", k=2).scores[0].tolist()
    assert store.get_nodes(["c", "nowhere", "a"]) == [NODES[2], NODES[0]]
    assert store.get_nodes(filters=one("kind", FilterOperator.EQ, "tea")) in (
        [NODES[2], NODES[3]],
        [NODES[3], NODES[2]],
    )
    assert store.client is keywords


def test_similarities_of_reranked_nodes_are_cosines(tmp_path: Path) -> None:
    texts = some_texts(60)
    model = make_model(tmp_path / "model", texts)
    with rbegir.Index.create(tmp_path / "x.rbe", model, id_type="string") as index:
        store = RbegirVectorStore(index)
        store.add([node(f"n{i}", text, "d") for i, text in enumerate(texts)])
        hits = index.search(texts[3], k=9)
        assert hits.reranked
        assert hits.scores[0].tolist() != hits.code_scores[0].tolist()
        result = store.query(VectorStoreQuery(query_str=texts[3], similarity_top_k=9))
        assert result.ids == hits.ids[0].tolist()
        assert result.similarities == hits.code_scores[0].tolist()


def one(key: str, operator: FilterOperator, value: Any) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, operator=operator, value=value)])


CASES: list[tuple[FilterOperator, str, Any, set[str]]] = [
    (FilterOperator.EQ, "kind", "shoe", {"a", "b"}),
    (FilterOperator.NE, "price", 3.0, {"a", "b", "d"}),
    (FilterOperator.GT, "price", 10.5, {"b"}),
    (FilterOperator.GTE, "price", 10.5, {"a", "b"}),
    (FilterOperator.LT, "price", 10.5, {"c"}),
    (FilterOperator.LTE, "price", 10.5, {"a", "c"}),
    (FilterOperator.IN, "kind", ["tea", "book"], {"c", "d"}),
    (FilterOperator.NIN, "price", [3.0], {"a", "b", "d"}),
    (FilterOperator.IS_EMPTY, "price", None, {"d"}),
]


@pytest.mark.parametrize(("operator", "key", "value", "expected"), CASES, ids=[c[0].value for c in CASES])
def test_filters(
    store: RbegirVectorStore, operator: FilterOperator, key: str, value: Any, expected: set[str]
) -> None:
    assert set(names(store, filters=one(key, operator, value))) == expected


def test_filters_together(store: RbegirVectorStore) -> None:
    shoe = MetadataFilter(key="kind", value="shoe")
    cheap = MetadataFilter(key="price", operator=FilterOperator.LT, value=15)
    for condition, expected in (
        (FilterCondition.AND, {"a"}),
        (FilterCondition.OR, {"a", "b", "c"}),
        (FilterCondition.NOT, set()),
    ):
        both = MetadataFilters(filters=[shoe, cheap], condition=condition)
        assert set(names(store, filters=both)) == expected
    nested = MetadataFilters(filters=[MetadataFilters(filters=[shoe], condition=FilterCondition.NOT), cheap])
    assert names(store, filters=nested) == ["c"]
    assert len(names(store, filters=MetadataFilters(filters=[]))) == 4


def test_of_some_nodes_and_documents(store: RbegirVectorStore) -> None:
    assert names(store, node_ids=["d", "a"])[0] in ("a", "d")
    assert set(names(store, node_ids=["d", "a"])) == {"a", "d"}
    assert set(names(store, doc_ids=["d2"])) == {"c", "d"}
    assert names(store, doc_ids=["d2"], node_ids=["a", "c"]) == ["c"]
    assert len(names(store, node_ids=[])) == 4
    assert store.get_nodes([]) == []


def test_deleting(store: RbegirVectorStore, keywords: Any) -> None:
    store.delete("d1")
    assert set(names(store)) == {"c", "d"}
    store.delete("nowhere")
    store.delete_nodes(["d", "nowhere"])
    assert names(store) == ["c"]
    store.add(NODES)
    store.delete_nodes(filters=one("kind", FilterOperator.EQ, "shoe"), node_ids=["a", "c"])
    assert set(names(store)) == {"b", "c", "d"}
    store.clear()
    assert names(store) == []


def test_deleting_from_an_empty_index(keywords: Any) -> None:
    RbegirVectorStore(keywords).delete("anything")
    assert RbegirVectorStore(keywords).add([]) == []


def test_mistakes(store: RbegirVectorStore, keywords: Any) -> None:
    with pytest.raises(InputError, match="query_str must be given"):
        store.query(VectorStoreQuery(query_embedding=[0.0]))
    with pytest.raises(InputError, match="mode must be 'default' or 'mmr', got 'sparse'"):
        names(store, mode=VectorStoreQueryMode.SPARSE)
    with pytest.raises(FilterError, match="the operator 'contains' cannot be used here"):
        names(store, filters=one("sizes", FilterOperator.CONTAINS, "38"))
    with pytest.raises(InputError, match="node_ids or filters must be given"):
        store.delete_nodes()
    keywords.upsert(["a stranger"], ids=["s"])
    with pytest.raises(InputError, match="was not added through LlamaIndex"):
        names(store)
    keywords.delete(["s"])


def test_under_a_vector_store_index(keywords: Any) -> None:
    """LlamaIndex's own index on top: documents in, retrieval by text, deletion by document."""
    context = StorageContext.from_defaults(vector_store=RbegirVectorStore(keywords))
    documents = [
        Document(text="red shoes", id_="one", metadata={"price": 10.5}),
        Document(text="green tea", id_="two"),
    ]
    index = VectorStoreIndex.from_documents(documents, context, embed_model=MockEmbedding(embed_dim=1))
    (best,) = index.as_retriever(similarity_top_k=1).retrieve("green tea")
    assert best.node.get_content() == "green tea"
    assert best.node.ref_doc_id == "two"
    assert best.score == keywords.search("green tea", k=1).scores[0, 0]
    index.delete_ref_doc("two")
    (rest,) = index.as_retriever(similarity_top_k=5).retrieve("green tea")
    assert rest.node.metadata == {"price": 10.5}


TEXTS = ["red shoes", "red shoes size nine", "red shoes size ten", "green tea", "black tea", "red tea pot"]


class Words(BaseEmbedding):
    """LlamaIndex's interface over vectors of words."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return embed(text)

    def _get_query_embedding(self, query: str) -> list[float]:
        return embed(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return embed(query)


def test_any_embedding_of_llamaindex(tmp_path: Path) -> None:
    documents = [Document(text=text, id_=text, excluded_embed_metadata_keys=["kind"]) for text in TEXTS]
    for document in documents:
        document.metadata["kind"] = "tea" if "tea" in document.text else "shoe"
    store = RbegirVectorStore(path=tmp_path / "nodes.rbe")
    assert store.is_embedding_query
    assert store.query(VectorStoreQuery(query_embedding=embed("tea"), similarity_top_k=2)).ids == []
    index = VectorStoreIndex.from_documents(
        documents, StorageContext.from_defaults(vector_store=store), embed_model=Words()
    )

    def found(**options: Any) -> list[str]:
        return [hit.node.get_content() for hit in index.as_retriever(**options).retrieve("red shoes")]

    assert found(similarity_top_k=1) == TEXTS[:1]
    assert set(found(similarity_top_k=3)) == set(TEXTS[:3])
    assert set(found(similarity_top_k=9, filters=one("kind", FilterOperator.EQ, "tea"))) == set(TEXTS[3:])
    diverse = found(
        similarity_top_k=2, vector_store_query_mode="mmr", vector_store_kwargs={"mmr_threshold": 0.2}
    )
    assert diverse[0] == "red shoes"
    assert "shoes" not in diverse[1]
    later = asyncio.run(index.as_retriever(similarity_top_k=1).aretrieve("green tea"))
    assert later[0].node.get_content() == "green tea"
    assert len(store.get_nodes(filters=one("kind", FilterOperator.EQ, "tea"))) == 3
    index.delete_ref_doc("green tea")
    with pytest.raises(InputError, match="query_embedding must be given: nodes are found by embeddings"):
        store.query(VectorStoreQuery(query_str="tea"))
    store.client.close()
    with rbegir.Index.open(tmp_path / "nodes.rbe") as stored:  # a new store over what was stored
        again = RbegirVectorStore(stored)
        assert again.is_embedding_query
        best = again.query(VectorStoreQuery(query_embedding=embed("black tea"), similarity_top_k=9))
        assert best.nodes is not None
        assert best.nodes[0].get_content() == "black tea"
        assert len(best.nodes) == 5
        again.clear()
        assert len(stored) == 0
