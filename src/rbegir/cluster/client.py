"""rbegir.Cluster: an index searched by many processes, with the methods and the results of `rbegir.Index`.

    cluster = Cluster.open("/shared/ads.rbe", address="10.0.0.1:6379", replicas=2)
    cluster.search("flight", k=10, where="price < 15").texts

Promised, besides what an index promises:

- The same result as `Index`: ids, scores, order, ties, certificates.
- Every result is of one state of one index. Answers of shards about different states are never mixed.
- A result is complete, or an error is raised. Only with `partial=True` may it be incomplete, and then
  `Hits.searched` says which share of the keywords was searched.
- Many threads may use one Cluster, and many processes may open the same index: they share the shards.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import numpy as np
import numpy.typing as npt

from rbegir.base.arguments import as_batch, check_ids, check_texts
from rbegir.cluster.fanout import PREPARE_SECONDS, Fanout, State, not_shared, prepare
from rbegir.cluster.gather import Gatherer
from rbegir.cluster.pool import Devices, Pool, WriterHandle, layout
from rbegir.cluster.session import Session, import_ray
from rbegir.cluster.shard import QUEUE, GoneError
from rbegir.cluster.view import READ_ONLY_HINT
from rbegir.codes.planes import Codes
from rbegir.encode.encoder import (
    Encoder,
    check_encoder,
    encode_keywords,
    encode_vectors,
    key_scores,
    load_reranker,
    load_scorer,
    stored_name,
    takes_vectors,
)
from rbegir.encode.reranker import Reranker
from rbegir.errors import FileError, InputError, MismatchError
from rbegir.index.location import Location
from rbegir.index.manifest import MODEL, Manifest, check_adds, check_match, load_stored
from rbegir.index.query import encoded, floors_of, query_values
from rbegir.index.store import Ids, Vectors
from rbegir.index.tenant import within
from rbegir.search.backend import check_planes
from rbegir.search.hits import Hits
from rbegir.search.request import (
    Filters,
    SearchOptions,
    SearchRequest,
    Tenant,
    Where,
    filter_request,
    positive_seconds,
    search_request,
    with_options,
)
from rbegir.search.rerank import VectorReranker

DEADLINE = 30.0  # seconds
T = TypeVar("T")


class Cluster:
    """An index spread over the processes of a Ray cluster. Made by `open`; a context manager."""

    def __init__(
        self, session: Session, pool: Pool, location: Location, model: Encoder | None, deadline: float
    ) -> None:
        self._session, self._pool, self._deadline = session, pool, deadline
        self._given = model
        self._stored: tuple[str, Encoder | None] = ("", None)  # a fingerprint and the stored model
        self._stored_name = list[bytes]()  # of that model
        self._fanout = Fanout(pool)
        self._mutex = threading.RLock()  # of changes of state
        self._compacting = threading.Lock()  # held by a compaction, which takes the mutex only at its end
        self._loading = threading.Lock()  # of the model
        self._scorer: tuple[str, Encoder | None] = ("", None)  # a fingerprint and its scorer
        self._closed = False
        self._writer: WriterHandle | None = None
        # of words: their key, and where they are in Ray's store
        self._shared_weights: tuple[str, Any] | None = None
        self._stored_words: tuple[str, Any] = ("", None)  # a fingerprint, and the weights of its stored model
        self._state = prepare(pool, location, words=self._words(location, model))

    @classmethod
    def open(
        cls,
        path_or_uri: str | Path,
        address: str | None = None,
        replicas: int = 1,
        devices: Devices = "auto",
        *,
        model: Encoder | None = None,
        filesystem: Any = None,
        deadline: float = DEADLINE,
        queue: int = QUEUE,
        threads: int | None = None,
    ) -> Cluster:
        """An index as it is now, on the Ray cluster at `address` (None: RAY_ADDRESS, or this machine alone).

        `path_or_uri` is a path that every node sees, or a URI that pyarrow.fs knows (or a path inside the
        given `filesystem`), from which every node copies what it searches. `devices` says what searches: see
        `rbegir.cluster.pool`. Each shard is there `replicas` times. `deadline` is the most seconds that a
        question may take, `queue` the number of queries that may wait in front of a shard, `threads` those of
        a CPU shard (its share of the cluster's cores).
        """
        seconds = positive_seconds("deadline", deadline)
        location = Location.of(path_or_uri, filesystem)
        manifest = location.manifest()  # before anything is started for an index that is not there
        if model is not None:
            check_encoder(model)
            check_match(model, manifest)
        with contextlib.ExitStack() as unless_opened:
            session = Session(address)
            unless_opened.callback(session.close)
            pool = Pool(location.name, layout(devices, replicas, import_ray().nodes(), threads), queue)
            unless_opened.callback(pool.stop)
            pool.check()
            cluster = cls(session, pool, location, model, seconds)
            unless_opened.pop_all()
        return cluster

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._current().view.keywords

    def __repr__(self) -> str:
        view = self._state.view
        return f"Cluster({view.location.name!r}, {view.keywords} keywords, {view.shards} shards)"

    def close(self) -> None:
        """Wait for a running compaction and give back what this client made: shards, writer, Ray itself."""
        with self._compacting, self._mutex:
            if self._closed:
                return
            self._closed = True
            if self._writer is not None:
                self._writer.close()
            self._pool.stop()
            self._session.close()

    @property
    def path(self) -> Path:
        return Path(self._current().view.location.root)

    @property
    def model(self) -> Encoder:
        """The model that encodes texts; loaded from the index at the first use."""
        return self._encoding()[1]

    def add(self, texts: Sequence[str] | Vectors, ids: Any = None, attributes: Any = None) -> Ids:
        """Add keywords, or vectors where the index was made with a Binarizer, and return their ids.

        An existing id is refused.
        """
        return self._add(texts, ids, attributes, upsert=False)

    def upsert(self, texts: Sequence[str] | Vectors, ids: Any, attributes: Any = None) -> Ids:
        """Add keywords, replacing those with the same ids: old out and new in, in one step."""
        if ids is None:
            raise InputError("upsert needs ids", hint="without ids use add")
        return self._add(texts, ids, attributes, upsert=True)

    def update(self, ids: Any, attributes: Any) -> int:
        """Change attributes of keywords, all of which must exist, and return how many were changed."""
        return int(self._change("update", check_ids(ids), attributes))

    def delete(self, ids: Any = None, *, where: Where = None, tenant: Tenant = None) -> int:
        """Delete keywords by id, or all that pass a filter, and return how many; unknown ids are ignored.

        With `tenant`, only keywords of that tenant are deleted; without ids and filter, all of them.
        """
        given = None if ids is None else check_ids(ids)
        return int(self._change("delete", given, where=where, tenant=tenant))

    def compact(self) -> None:
        """Rewrite the index into few large segments without what was deleted. Rows and ids stay.

        Other threads and clients can search and change the index meanwhile; a second compaction waits for
        the first.
        """
        with self._compacting:
            self._write_with().change("compact")
            self.refresh()

    def refresh(self) -> None:
        """See what writers have done since the index was opened or last refreshed."""
        with self._mutex:
            location = self._current().view.location
            self._refresh(PREPARE_SECONDS, self._words(location, self._given))
            loaded = location.is_local and self._stored[1] is not None
            if loaded and stored_name(location.path / MODEL) != self._stored_name:
                with self._loading:
                    self._stored = self._stored_words = "", None

    def swap(self, path_or_uri: str | Path, *, model: Encoder | None = None, filesystem: Any = None) -> None:
        """Answer from another index from now on, such as one of a new model.

        The shards open it while they keep answering from the old one. A question is answered from the one or
        the other, never from both.
        """
        with self._compacting, self._mutex:
            self._current()
            location = Location.of(path_or_uri, filesystem)
            state = prepare(self._pool, location, words=self._words(location, model))
            if model is not None:
                check_encoder(model)
                check_match(model, state.view.manifest)
            with self._loading:
                if self._writer is not None:
                    self._writer.close()
                    self._writer = None
                self._given, self._state = model, state
                self._stored = self._stored_words = "", None  # equal fingerprints name equal codes only

    @with_options
    def search(
        self,
        queries: str | Sequence[str] | npt.NDArray[Any],
        k: int | None = 10,
        **options: Unpack[SearchOptions],
    ) -> Hits:
        """The best k keywords for a text, or for each text of a list, as `Index.search` gives them.

        `deadline` replaces that of the cluster; with `partial`, `Hits.searched` says what share was searched.
        """
        request = search_request(k, options)
        while True:
            state, model = self._encoding()
            try:
                codes, texts, reranker = encoded(model, queries, request)
                return self._search(state, model, codes, request, texts, reranker)
            except GoneError:  # swapped to the index of another model, which has to encode the texts again
                if self._current().view.manifest.fingerprint == state.view.manifest.fingerprint:
                    raise

    @with_options
    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int | None = 10, **options: Unpack[SearchOptions]
    ) -> Hits:
        """The best k keywords for each query code, or integer vector: int8 or int16 [queries, n], ±255."""
        request = search_request(k, options)
        return self._search(*self._scoring(), codes, request)

    def get(self, ids: Any) -> list[dict[str, Any] | None]:
        """The keywords with these ids: id, text and attributes; None where there is none."""
        wanted = check_ids(ids)
        return self._answer(self._current(), lambda gatherer: gatherer.records(wanted))

    def count(self, where: Where = None, *, tenant: Tenant = None) -> int:
        """How many keywords pass a filter."""
        state = self._current()
        within(state.empty, tenant).count(where)  # refuses what an index would refuse
        return self._answer(state, lambda gatherer: gatherer.count(where, tenant))

    def codes(self, ids: Any) -> Codes:
        """The codes of the keywords with these ids, all of which must be there."""
        wanted = check_ids(ids)
        return self._answer(self._current(), lambda gatherer: gatherer.codes(wanted))

    def coarse_rows(
        self, queries: Codes | npt.NDArray[Any], k: int, *, planes: int, **filters: Unpack[Filters]
    ) -> npt.NDArray[np.int64]:
        """The rows [queries, k] of the best keywords by their first planes alone: what the others add."""
        request = filter_request("coarse_rows", k, filters)
        state = self._current()
        values = query_values(queries, state.view.manifest)
        nothing = state.checker.coarse_rows(state.empty, queries, request, planes)
        check_planes(planes, state.view.manifest.keyword_planes)
        if not len(values) or not state.view.used:
            return nothing
        return self._answer(state, lambda gatherer: gatherer.coarse_rows(values, request, planes))

    def info(self) -> dict[str, Any]:
        """A description of the index, as `Index.info`, and of the cluster that it runs on."""
        view = self._current().view
        return {
            "path": view.location.name,
            **view.manifest.facts(),
            "shards": self._pool.layout.shards,
            "replicas": self._pool.layout.replicas,
            "device": self._pool.layout.device,
            "address": self._session.address,
            "keywords_of_shards": list(view.keywords_of),
        }

    def _current(self) -> State:
        if self._closed:
            raise InputError("the cluster has been closed", hint="open it again with Cluster.open")
        return self._state

    def _refresh(self, seconds: float, words: Callable[[Manifest], Any] = lambda manifest: None) -> None:
        with self._mutex:
            before = self._current().view
            state = prepare(self._pool, before.location, before, seconds, words)
            if self._given is not None:
                check_match(self._given, state.view.manifest)
            self._state = state

    def _encoding(self) -> tuple[State, Encoder]:
        """The current state and its encoder, which belong together whatever `swap` does meanwhile."""
        with self._loading:
            state = self._current()
            if (model := self._loaded(state)) is None:
                manifest = state.view.manifest
                directory = state.view.location.model(manifest)
                self._stored_name = stored_name(directory)
                model = load_stored(directory, manifest)
                self._stored = manifest.fingerprint, model
            return state, model

    def _loaded(self, state: State) -> Encoder | None:
        """The model of the current state: the given one, or the stored one if it has been loaded."""
        if self._given is None and self._stored[0] == state.view.manifest.fingerprint:
            return self._stored[1]
        return self._given

    def _answer(
        self,
        state: State,
        ask: Callable[[Gatherer], T],
        deadline: float | None = None,
        *,
        partial: bool = False,
    ) -> T:
        """Ask about a state; if its files have gone because the index has moved on, about the newest one."""
        seconds = self._deadline if deadline is None else positive_seconds("deadline", deadline)
        until = time.monotonic() + seconds
        while True:
            try:
                return ask(Gatherer(self._fanout, state, until, partial=partial))
            except GoneError as error:
                with self._mutex:
                    now = self._current()
                    if now.view.id == state.view.id:
                        self._refresh(max(0.1, until - time.monotonic()))
                        now = self._current()
                if now.view.manifest == state.view.manifest:
                    raise not_shared(state.view.location, error) from error
                if now.view.manifest.fingerprint != state.view.manifest.fingerprint:
                    raise
                state = now

    def _search(
        self,
        state: State,
        scorer: Encoder | None,
        queries: Codes | npt.NDArray[Any],
        request: SearchRequest,
        texts: list[str] | None = None,
        reranker: Reranker | VectorReranker | None = None,
    ) -> Hits:
        # refuses what an index would refuse
        nothing = state.checker.search(state.empty, queries, request, texts, reranker)
        values = query_values(queries, state.view.manifest)
        scores = key_scores(scorer, values)
        floors = floors_of(request, scores, len(values))

        def ask(gatherer: Gatherer) -> Hits:
            if not len(values) or not gatherer.view.used:
                return nothing
            if isinstance(reranker, VectorReranker):
                found, more = gatherer.rerank_decoded(values, reranker, request)
            elif reranker is not None and texts is not None:
                found, more = gatherer.rerank(values, texts, reranker, self._weights(reranker), request)
            else:
                found, more = gatherer.search(values, request, floors, device=self._pool.layout.device)
            return gatherer.hits(found, scores, request, **more)

        return self._answer(state, ask, request.deadline, partial=request.partial)

    def _scoring(self) -> tuple[State, Encoder | None]:
        """The current state and the encoder that scores its hits.

        Of a stored model only a Binarizer is loaded.
        """
        with self._loading:
            state = self._current()
            location, manifest = state.view.location, state.view.manifest
            model = self._loaded(state)
            if model is not None or not manifest.has_model:
                return state, model
            if self._scorer[0] != manifest.fingerprint:
                scorer = load_scorer(location.model(manifest))
                if location.manifest().fingerprint != manifest.fingerprint:
                    raise MismatchError(
                        f"{location.name} was replaced by an index of another model, whose scores would be "
                        "wrong",
                        hint="call refresh, or open the index again",
                    )
                self._scorer = manifest.fingerprint, scorer
            return state, self._scorer[1]

    def _weights(self, reranker: Reranker) -> Any:
        """The weights of words in Ray's store, put there once, for the shards to share."""
        spelling = reranker.spelling
        if self._shared_weights is None or self._shared_weights[0] != spelling.key:
            arrays = (np.array(spelling.grams), np.array(spelling.words), spelling.mean_words)
            self._shared_weights = (spelling.key, import_ray().put(arrays))
        return self._shared_weights[1]

    def _words(self, location: Location, model: Encoder | None) -> Callable[[Manifest], Any]:
        """The weights of words by which hits of an index will be reranked; None if they will not be.

        Searches of a tenant need only the words of that tenant, so these are not read in advance.
        """

        reads = () if model is None else (model.fingerprint, *getattr(model, "reads", ()))

        def weights(manifest: Manifest) -> Any:
            if manifest.tenant is not None:
                return None
            if manifest.fingerprint in reads:
                reranker = getattr(model, "reranker", None)
                return None if reranker is None else self._weights(reranker)
            if self._stored_words[0] != manifest.fingerprint:
                found = None
                if manifest.has_model:
                    with contextlib.suppress(FileError):  # then a search says so
                        reranker = load_reranker(location.model(manifest))
                        found = None if reranker is None else self._weights(reranker)
                self._stored_words = manifest.fingerprint, found
            return self._stored_words[1]

        return weights

    def _add(self, texts: Sequence[str] | Vectors, ids: Any, attributes: Any, *, upsert: bool) -> Ids:
        vectors, made_by = as_batch(texts), None
        state, model = self._encoding() if getattr(vectors, "ndim", 0) == 2 else (self._current(), None)
        if model is not None and takes_vectors(model):
            given, codes, made_by = None, encode_vectors(model, vectors), state.view.manifest.fingerprint
        else:
            given = check_texts(texts)
            n, planes = state.view.manifest.shape
            codes = Codes(np.zeros((planes, 0, n // 64), np.uint64), n)
        wanted = None if ids is None else check_ids(ids)
        if given is not None and len(given):
            state, model = self._encoding()
            check_adds(model, state.view.manifest)
            codes, made_by = encode_keywords(model, given), state.view.manifest.fingerprint
        named = {"texts": given, "upsert": upsert, "fingerprint": made_by}
        ids_of_added: Ids = self._change("add_codes", codes, wanted, attributes, **named)
        return ids_of_added

    def _change(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the index in the process that writes to it, and see the result."""
        with self._mutex:
            result = self._write_with().change(method, *arguments, **named)
            self.refresh()
            return result

    def _write_with(self) -> WriterHandle:
        """The process that writes to the index."""
        with self._mutex:
            location = self._current().view.location
            if not location.is_local:
                raise FileError(
                    f"{location.name} is not on a mounted file system and cannot be changed from here",
                    hint=READ_ONLY_HINT,
                )
            if self._writer is None:
                self._writer = WriterHandle(location.path)
            return self._writer
