"""A read-only service over an index that its builder replaces by one of another model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import rbegir
from rbegir.encode.binarizer.binarizer import Binarizer
from tests.serve.conftest import TEXTS, Local
from tests.serve.test_requests import problem
from tests.serve.test_socket import wait_until
from torture.frontdoor import make_model

Start = Callable[..., Local]


@pytest.fixture
def index_path(tmp_path: Path) -> Path:
    with rbegir.Index.create(tmp_path / "shop.rbe", make_model(tmp_path / "old", 5)) as index:
        index.add(TEXTS)
    return tmp_path / "shop.rbe"


def self_hits(service: Local) -> int:
    results = service.search(queries=TEXTS[:30], k=1)
    return sum(result["hits"][0]["text"] == result["query"] for result in results)


def test_a_service_follows_the_model_of_its_index(local: Start, index_path: Path, tmp_path: Path) -> None:
    service = local(read_only=True, refresh_s=0.01)
    assert self_hits(service) == 30
    new = make_model(tmp_path / "new", 7)
    with rbegir.Index.create(index_path, new, overwrite=True) as index:
        index.add(TEXTS)
    wait_until(lambda: service.index.info()["fingerprint"] == new.fingerprint and len(service.index))
    assert self_hits(service) == 30
    wait_until(lambda: service.client.get("/readyz").status_code == 200)


def test_a_batch_that_was_encoded_by_the_old_model_is_encoded_again(
    local: Start, index_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = local(read_only=True, refresh_s=1000.0)
    new = make_model(tmp_path / "new", 7)
    with rbegir.Index.create(index_path, new, overwrite=True) as index:
        index.add(TEXTS)
    original = service.index.search_codes
    calls = []

    def search_codes(*arguments: object, **options: object) -> object:
        if not calls:
            service.index.refresh()  # after the queries were encoded
        calls.append(1)
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(service.index, "search_codes", search_codes)
    assert self_hits(service) == 30
    assert len(calls) == 2


def test_a_service_that_cannot_follow_says_so(local: Start, index_path: Path) -> None:
    service = local(read_only=True, refresh_s=0.01)
    rbegir.Index.create(index_path, n=128, keyword_planes=1, overwrite=True).close()
    wait_until(lambda: service.client.get("/readyz").status_code == 503)
    assert self_hits(service) == 30  # it goes on with what it has


def test_a_service_goes_on_following_after_an_unexpected_error(
    local: Start, index_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = local(read_only=True, refresh_s=0.01)

    def refresh() -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(service.index, "refresh", refresh)
        wait_until(lambda: service.client.get("/readyz").status_code == 503)
        said = problem(service.client.get("/readyz"), 503, "not-ready")
        assert said["detail"] == "the index could not be refreshed"
    wait_until(lambda: service.client.get("/readyz").status_code == 200)
    assert service.log.getvalue().count("refresh failed") == 1
    with rbegir.Index.open(index_path) as writer:
        writer.add(["a late keyword"])
    wait_until(lambda: len(service.index) == len(TEXTS) + 1)


def test_a_service_learns_that_its_index_takes_vectors(local: Start, index_path: Path) -> None:
    service = local(read_only=True, refresh_s=0.01)
    vectors = np.random.default_rng(0).standard_normal((300, 64)).astype("float32")
    binarizer = Binarizer(64, n=64).fit(vectors)
    with rbegir.Index.create(index_path, binarizer, overwrite=True) as index:
        index.add_codes(binarizer.encode_keywords(vectors))
    service_state = service.client.app.state.catalog.default  # type: ignore[attr-defined]
    wait_until(lambda: service_state.encodes == "vectors" and len(service.index) == 300)
    problem(service.post("/v1/search", {"queries": ["hat"]}), 501, "not-supported")
    assert service.search(vectors=[vectors[3].tolist()], k=1)[0]["hits"][0]["id"] == 3


def test_the_openapi_document_follows_an_index_that_gets_tenants(
    local: Start, index_path: Path, tmp_path: Path
) -> None:
    """All else stays as it was."""

    def build(tenant: str | None) -> None:
        with rbegir.Index.create(index_path, model, tenant=tenant, overwrite=True) as index:
            index.add(TEXTS, attributes={"shop": ["a"] * len(TEXTS)})

    def tenants_known() -> list[bool]:
        found = service.client.get("/openapi.json").json()
        counted = found["paths"]["/v1/keywords:count"]["get"]["parameters"]
        search = found["components"]["schemas"]["SearchRequest"]["properties"]
        return ["tenant" in search, any(one["name"] == "tenant" for one in counted)]

    model = make_model(tmp_path / "new", 7)
    build(None)
    service = local(read_only=True, refresh_s=1000.0)
    assert tenants_known() == [False, False]
    build("shop")
    service.index.refresh()
    assert tenants_known() == [True, True]
    build(None)
    service.index.refresh()
    assert tenants_known() == [False, False]
