"""A LangChain vector store over an index or a service.

    store = RbegirVectorStore(rbegir.Index.create("notes.rbe", model, id_type="string"))
    store.add_texts(["running shoes"], [{"price": 89.9}])
    store.similarity_search("shoes", k=4, filter={"price": {"$lt": 100}})
    store.as_retriever(search_kwargs={"k": 4})
    RbegirVectorStore.from_documents(documents, embeddings, path="notes.rbe")

Either the model of the index encodes texts, and `embedding` is None, or an embedding of LangChain does: then
the vectors that it makes are stored as codes, by a Binarizer that is fitted to the first of them. Scores are
cosines, higher is nearer. Asynchronous methods run the blocking ones in threads, as LangChain's own do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbegir.adapters.store import Documents, as_vectors, pack, unpack, where
from rbegir.errors import InputError, needing

with needing("the LangChain adapter needs {}", "pip install 'rbegir[langchain]'"):
    from langchain_core.documents import Document
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import VectorStore

if TYPE_CHECKING:
    from rbegir.client.clients import Client
    from rbegir.index.store import Index

Filter = Mapping[str, Any] | str | None


class RbegirVectorStore(VectorStore):
    """Documents in an `rbegir.Index` or behind an `rbegir.Client`.

    With an `embedding` the index is one that was made with a Binarizer; without `index` it is made when the
    first texts are added, at `path` or in a temporary directory, with `bytes` per text (by default the
    Binarizer's).
    """

    def __init__(
        self,
        index: Index | Client | None = None,
        embedding: Embeddings | None = None,
        *,
        path: str | Path | None = None,
        bytes: int | None = None,
    ) -> None:
        self._embedding = embedding
        self._documents = Documents(index, path, bytes=bytes)
        if embedding is None and index is None:
            raise InputError(
                "index must be given: an rbegir.Index or an rbegir.Client",
                hint="or give an embedding, which encodes texts for a new index",
            )
        if embedding is not None and not self._documents.embedded:
            raise InputError(
                "embedding must be None: texts are encoded by the model of the index",
                hint="for an embedding, leave out index, or give one that was made with a Binarizer",
            )
        if embedding is None:
            self._documents.embedded = False  # the index itself encodes, or refuses, what it is given

    @property
    def index(self) -> Any:
        """The index or client; None before the first texts are added to a new one."""
        return self._documents.index

    @property
    def embeddings(self) -> Embeddings | None:
        """The embedding that encodes texts, if it is not the model of the index."""
        return self._embedding

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings | None = None,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        index: Index | Client | None = None,
        path: str | Path | None = None,
        bytes: int | None = None,
        **kwargs: Any,
    ) -> RbegirVectorStore:
        """Texts added to `index`, or to a new one at `path`, and the store over it."""
        store = cls(index, embedding, path=path, bytes=bytes)
        store.add_texts(texts, metadatas, ids=ids, **kwargs)
        return store

    def add_texts(
        self,
        texts: Iterable[str],
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: Sequence[str | None] | None = None,
        **kwargs: Any,
    ) -> list[str]:
        """Add texts, or replace those with the same ids; returns the ids."""
        _refuse(kwargs, "add_texts")
        given = list(texts)
        for name, values in (("metadatas", metadatas), ("ids", ids)):
            if values is not None and len(values) != len(given):
                raise InputError(f"{name} has {len(values)} values for {len(given)} texts")
        if not given:
            return []
        named = self._documents.new_ids(len(given), ids)
        packed = [pack(one) for one in metadatas or []]
        embedding: Any = self._embedding
        self._documents.add(given, named, packed, lambda: embedding.embed_documents(given))
        return [str(name) for name in named]

    def delete(self, ids: list[str] | None = None, **kwargs: Any) -> bool:
        """Delete documents by id; unknown ids are ignored."""
        _refuse(kwargs, "delete")
        if ids is None:
            raise InputError("ids must be given", hint="delete everything by making a new index")
        self._documents.delete(ids)
        return True

    def get_by_ids(self, ids: Sequence[str], /) -> list[Document]:
        """The documents with these ids, in their order, without those that do not exist."""
        return [_document(found["id"], found["text"], found) for found in self._documents.get(ids)]

    def similarity_search(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """The best k documents. `filter` is a dictionary such as {"price": {"$lt": 10}}, or `where` text."""
        return [document for document, _ in self.similarity_search_with_score(query, k, filter, **kwargs)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """The best k documents with their cosines."""
        _refuse(kwargs, "similarity_search")
        return self._found(self._query(query), k, filter)

    def similarity_search_by_vector(
        self, embedding: list[float], k: int = 4, filter: Filter = None, **kwargs: Any
    ) -> list[Document]:
        """The best k documents for a vector."""
        _refuse(kwargs, "similarity_search_by_vector")
        return [document for document, _ in self._found(as_vectors(embedding), k, filter)]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """k of the best `fetch_k` documents, near the query and far from each other; 1: only the query."""
        return self.max_marginal_relevance_search_by_vector(
            self._query(query), k, fetch_k, lambda_mult, filter, **kwargs
        )

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: Any,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter = None,
        **kwargs: Any,
    ) -> list[Document]:
        """As `max_marginal_relevance_search`, for a vector."""
        _refuse(kwargs, "max_marginal_relevance_search")
        hits = self._documents.diverse(embedding, k, fetch_k, lambda_mult, where(filter))
        return [_document(hit.id, hit.text, hit.attributes) for hit in hits]

    def _found(self, query: Any, k: int, filter: Filter) -> list[tuple[Document, float]]:
        hits: list[Any] = self._documents.search(query, k, where(filter))
        # the score of a reranker is no cosine, so thresholds of relevance would mean nothing
        return [(_document(hit.id, hit.text, hit.attributes), hit.code_score) for hit in hits]

    def _query(self, text: str) -> Any:
        """The query for the index: the text, or its embedding."""
        return text if self._embedding is None else self._embedding.embed_query(text)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Relevance is the cosine; what points the other way is not relevant at all."""
        return lambda cosine: min(max(cosine, 0.0), 1.0)


def _document(key: int | str, text: str | None, attributes: Mapping[str, Any] | None) -> Document:
    rest = {name: value for name, value in (attributes or {}).items() if name not in ("id", "text")}
    return Document(id=str(key), page_content=text or "", metadata=unpack(rest))


def _refuse(extra: Mapping[str, Any], method: str) -> None:
    if extra:
        raise InputError(f"{method} does not know {', '.join(sorted(extra))}")
