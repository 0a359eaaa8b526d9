"""Tokens, hosts, origins, and what may be bound."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from rbegir.errors import FileError, InputError
from rbegir.serve.auth import load_token
from rbegir.serve.server import bind, check_exposure
from rbegir.serve.settings import LOOPBACK_NAMES, Settings, is_loopback
from tests.serve.conftest import PATIENT, Local
from tests.serve.test_requests import problem

Start = Callable[..., Local]
READ, WRITE = "read-token-123", "write-token-456"
BODY = {"queries": ["hat"]}
KEYWORD = {"keywords": [{"id": 1, "text": "hat"}]}
UPDATE = {"keywords": [{"id": 1, "attributes": {"price": 1.5}}]}


@pytest.fixture
def guarded(local: Start) -> Local:
    return local(read_token=READ, write_token=WRITE)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Basic abc", f"Bearer {READ}x", "Bearer é"]
)
def test_a_token_is_needed(guarded: Local, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header.encode()}
    requests = [
        ("POST", "/v1/search", BODY), ("POST", "/v1/keywords", KEYWORD),
        ("DELETE", "/v1/keywords", {"ids": [1]}), ("DELETE", "/v1/keywords", {"where": "id = 1"}),
        ("PATCH", "/v1/keywords", UPDATE), ("GET", "/v1/keywords:count", None),
        ("GET", "/v1/keywords/1", None),
        ("GET", "/v1/keywords", None), ("GET", "/v1/index", None),
        ("POST", "/v1/index:compact", None), ("GET", "/metrics", None),
    ]  # fmt: skip
    for method, path, body in requests:
        answer = guarded.client.request(method, path, json=body, headers=headers)
        problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"] == 'Bearer realm="rbegir"'


def test_the_page_and_the_probes_are_open(guarded: Local) -> None:
    for path in ("/", "/healthz", "/readyz", "/openapi.json"):
        assert guarded.client.get(path).status_code == 200


def test_each_token_allows_its_own(guarded: Local) -> None:
    read, write = {"authorization": f"Bearer {READ}"}, {"authorization": f"bearer {WRITE}"}
    assert guarded.client.post("/v1/search", json=BODY, headers=read).status_code == 200
    assert guarded.client.post("/v1/search", json=BODY, headers=write).status_code == 200
    assert guarded.client.post("/v1/keywords", json=KEYWORD, headers=write).status_code == 200
    assert guarded.client.get("/v1/keywords:count", headers=read).status_code == 200
    for method, path, body in CHANGES:
        problem(guarded.client.request(method, path, json=body, headers=read), 403, "forbidden")


def test_several_tokens_of_a_kind(local: Start) -> None:
    service = local(read_token=(READ, "another-reader"), write_token=(WRITE, "another-writer"))
    for token, status in ((READ, 403), ("another-reader", 403), (WRITE, 200), ("another-writer", 200)):
        headers = {"authorization": f"Bearer {token}"}
        assert service.client.post("/v1/search", json=BODY, headers=headers).status_code == 200
        assert service.client.post("/v1/keywords", json=KEYWORD, headers=headers).status_code == status
    problem(
        service.client.get("/v1/index", headers={"authorization": "Bearer a-stranger"}), 401, "unauthorized"
    )


@pytest.mark.parametrize("tokens", [(), (READ, "another-reader")])
def test_searches_are_queued_by_token_or_by_address(
    local: Start, monkeypatch: pytest.MonkeyPatch, tokens: tuple[str, ...]
) -> None:
    service = local(read_token=tokens or None)
    batcher = service.client.app.state.catalog.default.batcher  # type: ignore[attr-defined]
    clients: list[object] = []
    submit = batcher.submit

    def noted(search: object, client: object) -> object:
        clients.append(client)
        return submit(search, client)

    monkeypatch.setattr(batcher, "submit", noted)
    for token in tokens or ("one", "another"):
        headers = {"authorization": f"Bearer {token}"}
        assert service.client.post("/v1/search", json=BODY, headers=headers).status_code == 200
    assert clients == ([0, 1] if tokens else ["testclient"] * 2)


def test_each_token_has_a_limit_of_its_own(local: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    service = local(read_token=(READ, "another-reader"), write_token=WRITE, max_client_requests=2)
    began, go = threading.Semaphore(0), threading.Event()
    get = service.index.get

    def slow(ids: list[int]) -> object:
        began.release()
        assert go.wait(PATIENT)
        return get(ids)

    def ask(token: str, path: str = "/v1/keywords/1") -> httpx.Response:
        return service.client.get(path, headers={"authorization": f"Bearer {token}"})

    monkeypatch.setattr(service.index, "get", slow)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(ask, READ) for _ in range(2)]
        for _ in waiting:
            assert began.acquire(timeout=PATIENT)
        refused = ask(READ, "/v1/index")
        said = problem(refused, 429, "too-many-requests")
        assert said["detail"] == "2 requests of this client are under way; nothing was done"
        assert refused.headers["retry-after"] == "1"
        assert ask("another-reader", "/v1/index").status_code == 200
        assert ask(READ, "/metrics").status_code == 200
        go.set()
        assert [answer.result(PATIENT).status_code for answer in waiting] == [200, 200]
    assert ask(READ, "/v1/index").status_code == 200


def test_with_a_read_token_alone_nobody_writes(local: Start) -> None:
    service = local(read_token=READ)
    headers = {"authorization": f"Bearer {READ}"}
    problem(service.client.post("/v1/keywords", json=KEYWORD, headers=headers), 403, "forbidden")


def test_with_a_write_token_alone_reading_needs_it_too(local: Start) -> None:
    service = local(write_token=WRITE)
    problem(service.client.post("/v1/search", json=BODY), 401, "unauthorized")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "", "localhost.evil.example", "[::2]:80"]
)
def test_foreign_hosts_are_refused_without_tokens(local: Start, host: str) -> None:
    service = local(allowed_hosts=LOOPBACK_NAMES)
    problem(service.client.post("/v1/search", json=BODY, headers={"host": host}), 400, "bad-host")
    for ours in ("localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]", "[::1]:8080"):
        assert service.client.post("/v1/search", json=BODY, headers={"host": ours}).status_code == 200


def test_no_other_origin_by_default(local: Start) -> None:
    answer = local().client.post("/v1/search", json=BODY, headers={"origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in answer.headers


def test_an_origin_can_be_allowed(local: Start) -> None:
    service = local(cors_origins=("https://shop.example",))
    for method in ("POST", "PATCH", "DELETE"):
        asked = {"origin": "https://shop.example", "access-control-request-method": method}
        answer = service.client.options("/v1/search", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
    wrong = service.client.post("/v1/search", json={}, headers={"origin": "https://shop.example"})
    assert wrong.status_code == 422
    assert wrong.headers["access-control-allow-origin"] == "https://shop.example"
    other = service.client.post("/v1/search", json=BODY, headers={"origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_read_only_service_refuses_changes(local: Start) -> None:
    service = local(read_only=True)
    for method, path, body in CHANGES:
        problem(service.client.request(method, path, json=body), 403, "read-only")
    assert service.search(queries=["hat"])


def test_tokens_come_from_files_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    file.chmod(0o640)
    assert load_token("read", file, {"RBEGIR_READ_TOKEN": "other"}) == "from-the-file"
    assert load_token("write", None, {"RBEGIR_WRITE_TOKEN": "from-outside"}) == "from-outside"
    assert load_token("write", None, {"RBEGIR_WRITE_TOKEN": ""}) is None
    file.write_text("token-of-anna\n\n token-of-bert\n")
    assert load_token("read", file, {}) == ("token-of-anna", "token-of-bert")
    assert load_token("read", None, {"RBEGIR_READ_TOKEN": "one-token\ntwo-token"}) == (
        "one-token",
        "two-token",
    )
    file.write_text(" \n")
    with pytest.raises(InputError, match=r"the read token file .* is empty"):
        load_token("read", file, {})
    with pytest.raises(FileError, match=r"cannot read the write token from .*: No such file"):
        load_token("write", tmp_path / "nowhere", {})


def test_a_token_file_that_everybody_can_read_is_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-the-file\n")
    file.chmod(0o604)
    with pytest.raises(InputError, match="can be read by every user of this machine") as caught:
        load_token("write", file, {})
    assert caught.value.hint == f"chmod 600 {file}"


CHANGES = [
    ("POST", "/v1/index:compact", None),
    ("POST", "/v1/keywords", KEYWORD),
    ("PATCH", "/v1/keywords", UPDATE),
    ("DELETE", "/v1/keywords", {"ids": [1]}),
    ("DELETE", "/v1/keywords", {"where": "id = 2"}),
]
NAMED = "/v1/indexes/default"
CHANGES += [
    (method, path.replace("/v1/index:", f"{NAMED}:").replace("/v1/keywords", f"{NAMED}/keywords"), body)
    for method, path, body in CHANGES
]


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"origin": "http://localhost:9999", "sec-fetch-site": "same-site"},
        {"origin": "http://localhost:9999"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},  # no origin: a form sent by an image, or a stripped header
    ],
)
def test_a_page_of_another_origin_changes_nothing_without_tokens(
    local: Start, headers: dict[str, str]
) -> None:
    service = local(allowed_hosts=LOOPBACK_NAMES)
    before = service.index.info()["generation"]
    for method, path, body in CHANGES:
        answer = service.client.request(method, path, json=body, headers=headers)
        problem(answer, 403, "bad-origin")
    assert service.index.info()["generation"] == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost"},
        {"origin": "http://localhost", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none"},
        {"origin": "https://shop.example"},
        {"origin": "https://shop.example", "sec-fetch-site": "cross-site"},
    ],
)
def test_programs_our_page_and_named_origins_change_it(local: Start, headers: dict[str, str]) -> None:
    service = local(allowed_hosts=LOOPBACK_NAMES, cors_origins=("https://shop.example",))
    for method, path, body in CHANGES:
        assert service.client.request(method, path, json=body, headers=headers).status_code == 200


def test_a_token_is_enough_from_any_origin(guarded: Local) -> None:
    headers = {"authorization": f"Bearer {WRITE}", "origin": "https://proxied.example"}
    assert guarded.client.post("/v1/index:compact", headers=headers).status_code == 200


@pytest.mark.parametrize("hosts", [(), LOOPBACK_NAMES])
def test_two_hosts_are_none(local: Start, hosts: tuple[str, ...]) -> None:
    twice = [("host", "evil.example"), ("host", "localhost")]
    answer = local(allowed_hosts=hosts).client.post("/v1/search", json=BODY, headers=twice)
    assert "more than one Host" in problem(answer, 400, "bad-host")["detail"]


def test_only_loopback_is_bound_without_tokens() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.1", "example.org", ""]))
    check_exposure("127.0.0.1", Settings())
    with pytest.raises(InputError, match=r"host 0\.0\.0\.0 .* needs a read and a write token"):
        check_exposure("0.0.0.0", Settings())
    with pytest.raises(InputError, match="needs a write token"):
        check_exposure("0.0.0.0", Settings(read_token=READ))
    check_exposure("0.0.0.0", Settings(read_token=READ, write_token=WRITE))
    check_exposure("0.0.0.0", Settings(read_token=READ, read_only=True))


def test_a_port_in_use_is_named() -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(
            FileError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"
        ):
            bind("127.0.0.1", port)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_batch": 0}, "max_batch must be a whole number of at least 1, got 0"),
        ({"max_k": 1.5}, "max_k must be a whole number of at least 1, got 1.5"),
        ({"timeout_s": -1}, "timeout_s must be a number of at least 0, got -1"),
        ({"read_token": "short"}, "read_token must have at least 8 printable ASCII characters, got 5"),
        ({"write_token": "with a\nnewline"}, "write_token must have at least 8 printable ASCII characters"),
        ({"read_token": READ, "write_token": READ}, "read_token and write_token are equal"),
        ({"read_token": (READ, WRITE), "write_token": WRITE}, "read_token and write_token are equal"),
        (
            {"read_token": (READ, "short")},
            "read_token must have at least 8 printable ASCII characters, got 5",
        ),
        ({"max_client_requests": -1}, "max_client_requests must be a whole number of at least 0, got -1"),
        ({"cors_origins": ("*",)}, "any web page could read and change the index"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings(**settings)  # type: ignore[arg-type]
