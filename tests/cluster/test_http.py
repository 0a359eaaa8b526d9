"""The HTTP service over a cluster: the same app, in this process and hosted by Ray Serve."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

import rbegir
from rbegir.cluster.http import application, build
from rbegir.errors import BusyError, ClusterError, DeadlineError, InputError
from rbegir.wire.problems import from_error
from tests.index.fakes import HashEncoder
from tests.service import reserved_port

from .conftest import PATIENT

# Ray Serve's own settings use arguments that pydantic has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20")


TOKEN = "a-token-for-reading"


def test_tokens_are_needed(index_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray Serve answers other machines too, and passes on any Host header."""
    for name in ("RBEGIR_READ_TOKEN", "RBEGIR_WRITE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        InputError, match="can be reached from other machines, which needs a read and a write token"
    ):
        build(str(index_path), 1, 1, read_only=False)
    with pytest.raises(InputError, match="can be reached from other machines, which needs a read token"):
        build(str(index_path), 1, 1, read_only=True)


def test_hosted_by_ray_serve(nodes: Any, index_path: Path, index: rbegir.Index, encoder: HashEncoder) -> None:
    from ray import serve

    codes = encoder.encode_queries(["w1 w2"])
    with reserved_port() as port, contextlib.ExitStack() as stack:
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
        stack.callback(serve.shutdown)
        made = application({"index": str(index_path), "shards": "2", "read_only": "true"})
        environment = made._bound_deployment.ray_actor_options.setdefault("runtime_env", {})
        environment["env_vars"] = {"RBEGIR_READ_TOKEN": TOKEN}
        serve.run(made)
        body = {"codes": codes.values().tolist(), "k": 5, "where": "price < 50"}
        refused = httpx.post(f"http://127.0.0.1:{port}/v1/search", json=body, timeout=PATIENT)
        assert refused.status_code == 401
        ours = {"Authorization": f"Bearer {TOKEN}"}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/search", json=body, headers=ours, timeout=PATIENT)
        assert answer.status_code == 200, answer.text
        wanted = index.search_codes(codes, 5, where="price < 50")
        hits = answer.json()["results"][0]["hits"]
        assert [(hit["id"], hit["text"]) for hit in hits] == [(hit.id, hit.text) for hit in wanted[0]]
        assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in wanted[0]])
        about = httpx.get(f"http://127.0.0.1:{port}/v1/index", headers=ours, timeout=PATIENT).json()
        assert about["keywords"] == len(index)


def test_arguments_of_the_application(nodes: Any) -> None:
    with pytest.raises(
        InputError, match="takes index= and perhaps copies, read_only, replicas, shards, got x"
    ):
        application({"x": "1"})
    with pytest.raises(InputError, match="shards must be a whole number of at least 1, got 'many'"):
        application({"index": "a.rbe", "shards": "many"})


def test_what_clients_are_told() -> None:
    assert from_error(BusyError("full")).status == 503
    assert "Retry-After" in from_error(BusyError("full")).headers
    assert from_error(DeadlineError("late")).status == 504
    assert from_error(ClusterError("gone")).status == 503
