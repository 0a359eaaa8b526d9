"""A LlamaIndex vector store over an index or a service.

    store = RbegirVectorStore(rbegir.Index.create("notes.rbe", model, id_type="string"))
    store.add([TextNode(text="running shoes", metadata={"price": 89.9})])
    store.query(VectorStoreQuery(query_str="shoes", similarity_top_k=4))

Where the model of the index encodes texts, a query must come as text (`is_embedding_query` is False, which
tells LlamaIndex so) and embeddings of nodes are ignored. Without an index, or with one made by a Binarizer,
the embeddings of LlamaIndex are stored as codes and searched. A node is kept as LlamaIndex writes it, beside
its metadata as attributes, and comes back whole, relationships included.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rbegir.adapters.store import EVERYTHING, Documents, pack, where
from rbegir.errors import FilterError, InputError, needing

with needing("the LlamaIndex adapter needs {}", "pip install 'rbegir[llamaindex]'"):
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.schema import BaseNode, MetadataMode
    from llama_index.core.vector_stores.types import (
        BasePydanticVectorStore,
        FilterCondition,
        FilterOperator,
        MetadataFilter,
        MetadataFilters,
        VectorStoreQuery,
        VectorStoreQueryMode,
        VectorStoreQueryResult,
    )
    from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

DOCUMENT = "ref_doc_id"
PAGE = 1000  # nodes that are looked up at most where all that pass a filter are wanted
MMR_AMONG = 4  # diverse nodes are chosen from this many times as many
OPERATORS = {
    FilterOperator.EQ: "$eq",
    FilterOperator.NE: "$ne",
    FilterOperator.GT: "$gt",
    FilterOperator.GTE: "$gte",
    FilterOperator.LT: "$lt",
    FilterOperator.LTE: "$lte",
    FilterOperator.IN: "$in",
    FilterOperator.NIN: "$nin",
}


class RbegirVectorStore(BasePydanticVectorStore):
    """Nodes in an `rbegir.Index` or behind an `rbegir.Client`.

    Without `index` one is made when the first nodes are added, at `path` or in a temporary directory, and a
    Binarizer is fitted to their embeddings, with `bytes` per node if that is given.
    """

    stores_text: bool = True
    is_embedding_query: bool = False
    _documents: Documents = PrivateAttr()

    def __init__(
        self, index: Any = None, *, path: str | Path | None = None, bytes: int | None = None
    ) -> None:
        documents = Documents(index, path, bytes=bytes)
        super().__init__(stores_text=True, is_embedding_query=documents.embedded)
        self._documents = documents

    @classmethod
    def class_name(cls) -> str:
        return "RbegirVectorStore"

    @property
    def client(self) -> Any:
        """The index or client; None before the first nodes are added to a new one."""
        return self._documents.index

    def add(self, nodes: Sequence[BaseNode], **kwargs: Any) -> list[str]:
        """Add nodes, or replace those with the same ids; returns the ids."""
        if not nodes:
            return []
        ids = self._documents.new_ids(len(nodes), [node.node_id for node in nodes])
        texts = [node.get_content(metadata_mode=MetadataMode.NONE) for node in nodes]
        attributes = [_attributes(node) for node in nodes]
        self._documents.add(texts, ids, attributes, lambda: [node.get_embedding() for node in nodes])
        return [node.node_id for node in nodes]

    def delete(self, ref_doc_id: str, **delete_kwargs: Any) -> None:
        """Delete the nodes of a document."""
        if self.client is not None and DOCUMENT in self.client.info()["attributes"]:
            self.client.delete(where=where({DOCUMENT: ref_doc_id}))

    def delete_nodes(
        self,
        node_ids: list[str] | None = None,
        filters: MetadataFilters | None = None,
        **delete_kwargs: Any,
    ) -> None:
        """Delete the nodes with these ids that pass the filters."""
        if filters is None:
            if node_ids is None:
                raise InputError("node_ids or filters must be given", hint="delete everything with clear()")
            self._documents.delete(node_ids)
        elif self.client is not None:
            self.client.delete(where=self._where(filters, node_ids, None) or EVERYTHING)

    def clear(self) -> None:
        """Delete every node."""
        if self.client is not None:
            self.client.delete(where=EVERYTHING)

    def get_nodes(
        self, node_ids: list[str] | None = None, filters: MetadataFilters | None = None
    ) -> list[BaseNode]:
        """The nodes with these ids that pass the filters; at most PAGE of them when no ids are given."""
        if node_ids is not None and filters is None:
            return [_node(record["text"], record) for record in self._documents.get(node_ids)]
        passing = self._where(filters, node_ids, None)
        rows = () if self.client is None else self.client.rows(passing)
        return [_node(row["text"], row) for row in itertools.islice(rows, PAGE)]

    def query(self, query: VectorStoreQuery, **kwargs: Any) -> VectorStoreQueryResult:
        """The best nodes for a text, or for an embedding; mode `mmr` gives diverse ones."""
        if query.mode not in (VectorStoreQueryMode.DEFAULT, VectorStoreQueryMode.MMR):
            raise InputError(f"mode must be 'default' or 'mmr', got {query.mode.value!r}")
        name = "query_embedding" if self.is_embedding_query else "query_str"
        asked: str | list[float] | None = getattr(query, name)
        if asked is None:
            raise InputError(
                f"{name} must be given: "
                + ("nodes are found by embeddings" if self.is_embedding_query else "the index encodes texts"),
                hint=f"query through a retriever, or pass VectorStoreQuery({name}=…)",
            )
        # LlamaIndex's retrievers give an empty list when any node will do.
        passing = self._where(query.filters, query.node_ids or None, query.doc_ids or None)
        k = query.similarity_top_k
        if query.mode == VectorStoreQueryMode.MMR:
            weight = kwargs.get("mmr_threshold", query.mmr_threshold)
            among = int(kwargs.get("mmr_prefetch_k") or MMR_AMONG * k)
            hits = self._documents.diverse(asked, k, among, 0.5 if weight is None else weight, passing)
        else:
            hits = self._documents.search(asked, k, passing)
        nodes = [_node(hit.text, hit.attributes) for hit in hits]
        cosines: list[Any] = [hit.code_score for hit in hits]  # the score of a reranker is none
        return VectorStoreQueryResult(nodes=nodes, similarities=cosines, ids=[node.node_id for node in nodes])

    def _where(
        self, filters: MetadataFilters | None, node_ids: list[str] | None, doc_ids: list[str] | None
    ) -> str | None:
        parts = [] if filters is None or not filters.filters else [_filters(filters)]
        if node_ids is not None:
            parts.append({"id": {"$in": self._documents.stored_ids(node_ids)}})
        if doc_ids is not None:
            parts.append({DOCUMENT: {"$in": doc_ids}})
        return where({"$and": parts}) if parts else None


def _attributes(node: BaseNode) -> dict[str, Any]:
    """A node as attributes: its metadata, and what LlamaIndex needs to make it again."""
    whole = node_to_metadata_dict(node, remove_text=True)
    kept = {name: whole[name] for name in ("_node_content", "_node_type")}
    return {**pack(node.metadata), **kept, DOCUMENT: node.ref_doc_id or ""}


def _node(text: str | None, attributes: Any) -> BaseNode:
    if attributes is None or attributes.get("_node_content") is None:
        raise InputError(
            "a keyword of this index was not added through LlamaIndex",
            hint="use a separate index for the nodes of LlamaIndex",
        )
    return metadata_dict_to_node(attributes, text=text or "")


def _filters(given: MetadataFilters) -> dict[str, Any]:
    """Filters in the notation of `store.where`."""
    parts = [_filters(one) if isinstance(one, MetadataFilters) else _filter(one) for one in given.filters]
    if given.condition == FilterCondition.NOT:
        return {"$not": {"$or": parts}}
    return {"$or" if given.condition == FilterCondition.OR else "$and": parts}


def _filter(given: MetadataFilter) -> dict[str, Any]:
    if given.operator == FilterOperator.IS_EMPTY:
        return {given.key: {"$exists": False}}
    if given.operator in OPERATORS:
        return {given.key: {OPERATORS[given.operator]: given.value}}
    raise FilterError(
        f"the operator {given.operator.value!r} cannot be used here",
        hint="known are ==, !=, <, <=, >, >=, in, nin and is_empty",
    )
