"""The one writer of an index in a cluster: a process that all clients send their changes to.

It holds the index's lock from its first change on, so changes from elsewhere are refused as they always are.
Texts are encoded by the clients: the writer needs no model. After a change a client reads the new manifest,
and its next question makes the shards open the new segments.

Ray restarts a writer that dies. `upsert`, `delete` and `compact` are idempotent and sent again until it is
back; an `add` is not, because nobody can say whether it was done.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from rbegir.cluster.pool import root_cause
from rbegir.cluster.session import import_ray, named_actor
from rbegir.codes.planes import Codes
from rbegir.errors import ClusterError, RbegirError
from rbegir.index.store import Index

AGAIN_SECONDS = 60.0  # for which a change is sent again
PAUSE = 0.1  # seconds


class WriterActor:
    """Changes one index."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._index: Index | None = None

    def change(
        self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, RbegirError | None]:
        """Call a method of the index; gives (result, None) or (None, error)."""
        try:
            if self._index is None:
                self._index = Index.open(self._path)
            return getattr(self._index, method)(*arguments, **named), None
        except RbegirError as error:
            return None, error


class Writing:
    """The writer as a client sees it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = f"rbegir-writer-{path}"
        self._own = False
        self._actor: Any = None

    def add(
        self,
        codes: Codes,
        ids: pa.Array | None,
        attributes: Any,
        texts: pa.Array | None,
        made_by: str | None,
        *,
        upsert: bool,
    ) -> Any:
        """Add keywords; `made_by` is the fingerprint of the model that made their codes."""
        what = "upsert" if upsert else "add"
        named = {"texts": texts, "upsert": upsert, "fingerprint": made_by}
        return self._call("add_codes", codes, ids, attributes, what=what, again=upsert, **named)

    def delete(self, ids: pa.Array) -> int:
        return int(self._call("delete", ids, what="delete"))

    def compact(self) -> None:
        self._call("compact", what="compact")

    def close(self) -> None:
        """End the writer if this client made it, and with it the lock."""
        if self._own and self._actor is not None:
            import_ray().kill(self._actor)
        self._own = False

    def _call(self, method: str, *arguments: Any, what: str, again: bool = True, **named: Any) -> Any:
        ray = import_ray()
        until = time.monotonic() + (AGAIN_SECONDS if again else 0.0)
        while True:
            if self._actor is None:
                self._actor, made = named_actor(WriterActor, self._name, str(self._path), num_cpus=0)
                self._own = self._own or made
            try:
                result, error = ray.get(self._actor.change.remote(method, arguments, named))
            except ray.exceptions.RayTaskError as problem:
                raise ClusterError(f"the writer failed: {root_cause(problem)}") from problem
            except ray.exceptions.RayError as problem:
                if time.monotonic() >= until:
                    raise ClusterError(
                        f"the writer of {self._path} died during {what}; it may or may not have been done",
                        hint="call refresh and look, then repeat it if need be; an upsert can be repeated",
                    ) from problem
                time.sleep(PAUSE)
                self._actor = None
                continue
            if error is not None:
                raise error
            return result
