"""The service as a door: a method, a path and a body from bytes, answered without a socket.

The first byte chooses the request, the rest is its body. Whatever comes, the answer has a status below 500
(503 for a service that is busy), and is JSON where it should be.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

from starlette.testclient import TestClient

from rbegir.encode.clsm.model import Model
from rbegir.index.store import Index
from rbegir.lab.bench.serve import random_model
from rbegir.serve.app import create_app
from rbegir.serve.monitor import RequestLog
from rbegir.serve.settings import Settings

REQUESTS = (
    ("POST", "/v1/search"),
    ("POST", "/v1/search"),
    ("POST", "/v1/keywords"),
    ("DELETE", "/v1/keywords"),
    ("GET", "/v1/keywords/"),
    ("POST", "/v1/search?x="),
)


class HttpDoor:
    def __init__(self, folder: Path) -> None:
        model = Model.load(random_model(folder / "served-model", conv=2, hash_buckets=4), threads=1)
        index = Index.create(folder / "served.rbe", model, id_type="int64", threads=1)
        index.upsert([f"red shoes {i}" for i in range(50)], list(range(50)), {"price": list(range(50))})
        settings = Settings(access_log=False, max_k=100, compact_min_deleted=100_000)
        self.client = TestClient(create_app(index, settings, log=RequestLog(io.StringIO())))
        bodies = [
            {"queries": ["red shoes"], "k": 3, "where": "price < 10", "mode": "exact"},
            {"queries": ["a", "b"], "k": 2, "planes": 1, "explain": True},
            {"keywords": [{"id": 7, "text": "new shoes", "attributes": {"price": 3}}]},
            {"ids": [3, 4]},
            {"codes": [["00" * 8] * 3], "k": 1},
        ]
        self.seeds = [bytes([i]) + json.dumps(body).encode() for i, body in enumerate(bodies)]
        self.seeds.append(b"\x04" + b"12")

    def __call__(self, data: bytes) -> None:
        method, path = REQUESTS[data[0] % len(REQUESTS)] if data else REQUESTS[0]
        body = data[1:]
        if path.endswith(("/", "=")):
            path += "".join(f"%{byte:02x}" for byte in body[:40])
        answer = self.client.request(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 500 or answer.status_code == 503, (
            f"{answer.status_code}: {answer.text[:300]}"
        )
        answer.json()
