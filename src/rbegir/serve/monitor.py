"""What the operator of a service sees: a log, and metrics for Prometheus.

*Log.* One JSON object per line on stderr, with query texts only if the operator asked for them. A failure
that a client only sees as "storage" or "internal" is logged in full.

*Metrics.* Stages of a search, in seconds: `queue` (from being read to being taken into a scan), `encode`,
`scan` and `fetch` (ids, texts and attributes of the hits), each per batch, and `serialise` (hits to bytes).
For changes: `queue` and `commit`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import traceback
from datetime import UTC, datetime
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from pydantic_core import to_json

from rbegir.errors import RbegirError

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0,
)  # fmt: skip
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SEARCH_STAGES = ("queue", "encode", "scan", "fetch", "serialise")
WRITE_STAGES = ("queue", "commit")


GAUGES = {
    "queue_depth": "Queries that wait for a scan, or for their filter.",
    "write_queue_depth": "Keywords that wait to be written.",
    "keywords": "Keywords that are searched.",
    "segments": "Segments of the index.",
    "deleted": "Rows that are deleted and not yet compacted.",
}


class IndexMetrics:
    """The instruments of one index, ready to be used without a lookup."""

    def __init__(self, metrics: Metrics, index: str) -> None:
        self._index = (index,) if metrics.named else ()
        self._labelled: list[tuple[Any, tuple[str, ...]]] = []
        self.search_stage = {name: self._own(metrics.search, name) for name in SEARCH_STAGES}
        self.write_stage = {name: self._own(metrics.write, name) for name in WRITE_STAGES}
        self.batch_queries = self._own(metrics.batch_queries)
        self.write_requests = self._own(metrics.write_requests)
        self.compactions = self._own(metrics.compactions)
        self.gauges = {name: self._own(gauge) for name, gauge in metrics.gauges.items()}

    def _own(self, instrument: Any, *labels: str) -> Any:
        labels = (*self._index, *labels)
        self._labelled += [(instrument, labels)] if self._index else []
        return instrument.labels(*labels) if labels else instrument

    def remove(self) -> None:
        """Remove the figures of a closed index from the page."""
        for gauge in self.gauges.values():
            gauge.set_function(float)  # a gauge refers to itself, so its function would keep the index alive
        for instrument, labels in self._labelled:
            instrument.remove(*labels)


class Metrics:
    """The instruments of a service. With `named`, those of an index are labelled with its name."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, *, named: bool = False) -> None:
        self.registry = CollectorRegistry()
        self.named = named
        index = ("index",) if named else ()
        self.search = self._histogram("search_stage_seconds", "Time of a search by stage.", *index, "stage")
        self.write = self._histogram("write_stage_seconds", "Time of a change by stage.", *index, "stage")
        self.batch_queries = self._histogram(
            "batch_queries", "Queries scored in one scan.", *index, buckets=SIZES
        )
        self.write_requests = self._histogram(
            "commit_requests", "Requests in one durable write.", *index, buckets=SIZES
        )
        self.compactions = Counter("rbegir_compactions", "Compactions done.", index, registry=self.registry)
        self.gauges = {
            name: Gauge(f"rbegir_{name}", text, index, registry=self.registry)
            for name, text in GAUGES.items()
        }
        self._latency = self._histogram(
            "request_seconds", "Time from the headers of a request to its response.", "route"
        )
        self._requests = Counter(
            "rbegir_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )

    def _histogram(
        self, name: str, text: str, *labels: str, buckets: tuple[float, ...] = SECONDS
    ) -> Histogram:
        return Histogram(f"rbegir_{name}", text, labels, buckets=buckets, registry=self.registry)

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request. `route` is a template, never a path that a client made up."""
        self._latency.labels(route).observe(seconds)
        self._requests.labels(route, str(status)).inc()

    def of(self, index: str = "default") -> IndexMetrics:
        return IndexMetrics(self, index)

    def page(self) -> bytes:
        return generate_latest(self.registry)


def trim_memory(*, collect: bool) -> None:
    """Return freed memory to the system, where the C library can; glibc would keep most of it. With `collect`
    also what only a garbage collection frees."""
    if collect:
        gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


class RequestLog:
    """Writes lines to a stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def event(self, event: str, **fields: Any) -> None:
        """Write a line; fields that are not plain become texts."""
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = to_json({"time": stamp, "event": event, **fields}, fallback=str)
        # the reader of the log may have gone; the service continues
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line.decode() + "\n")
            self._stream.flush()

    def error(self, event: str, error: BaseException, **fields: Any) -> None:
        """A failure: one sentence if it is one of ours, the trace if it is a bug."""
        if isinstance(error, RbegirError):
            told = {"error": type(error).__name__, "detail": error.message, "hint": error.hint}
        else:
            trace = "".join(traceback.format_exception(error))
            told = {"error": type(error).__name__, "detail": str(error), "trace": trace}
        self.event(event, **fields, **told)
