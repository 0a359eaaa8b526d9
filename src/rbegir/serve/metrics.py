"""What the service tells Prometheus. Each service has a registry of its own; nothing is global.

Stages of a search, in seconds: `queue` (from being read to being taken into a scan), `encode` (texts to
codes, per batch), `scan` (the exhaustive search, per batch), `fetch` (ids, texts and attributes of the hits,
per batch), `serialise` (hits to bytes). For changes: `queue` and `commit`.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0,
)  # fmt: skip
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
SEARCH_STAGES = ("queue", "encode", "scan", "fetch", "serialise")
WRITE_STAGES = ("queue", "commit")


class Metrics:
    """The instruments, ready to be used without a lookup."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        stage = Histogram(
            "rbegir_search_stage_seconds",
            "Time of a search by stage.",
            ["stage"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.search_stage = {name: stage.labels(name) for name in SEARCH_STAGES}
        write = Histogram(
            "rbegir_write_stage_seconds",
            "Time of a change by stage.",
            ["stage"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.write_stage = {name: write.labels(name) for name in WRITE_STAGES}
        self.batch_queries = Histogram(
            "rbegir_batch_queries", "Queries scored in one scan.", buckets=SIZES, registry=self.registry
        )
        self.write_requests = Histogram(
            "rbegir_commit_requests", "Requests in one durable write.", buckets=SIZES, registry=self.registry
        )
        self.compactions = Counter("rbegir_compactions", "Compactions done.", registry=self.registry)
        self._latency = Histogram(
            "rbegir_request_seconds",
            "Time from the headers of a request to its response.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._requests = Counter(
            "rbegir_requests", "Requests answered.", ["route", "status"], registry=self.registry
        )
        self._known: dict[tuple[str, int], tuple[Histogram, Counter]] = {}

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request. `route` is a template, never a path that a client made up."""
        pair = self._known.get((route, status))
        if pair is None:
            pair = self._latency.labels(route), self._requests.labels(route, str(status))
            self._known[route, status] = pair
        pair[0].observe(seconds)
        pair[1].inc()

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge that is read when Prometheus asks."""
        Gauge(f"rbegir_{name}", text, registry=self.registry).set_function(read)

    def page(self) -> bytes:
        return generate_latest(self.registry)
