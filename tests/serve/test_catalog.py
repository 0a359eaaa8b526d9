"""Several indexes in one service: names, the default, and a name that is pointed at another index."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import rbegir
from rbegir.base import disk
from rbegir.cli.search import named_indexes
from rbegir.errors import FileError, InputError
from rbegir.serve.app import create_app
from rbegir.serve.catalog import ALIASES, Catalog, IndexFolder
from rbegir.serve.monitor import RequestLog
from rbegir.serve.settings import Settings
from rbegir.wire import schema
from tests.serve.conftest import PATIENT, Process, get, post
from tests.serve.test_replaced import wait_until
from tests.serve.test_requests import problem

READ, WRITE = "read-token-123", "write-token-456"


@pytest.fixture
def folder(model: rbegir.Model, tmp_path: Path) -> Path:
    """Three indexes whose only keyword is called like the index, and what is no index."""
    path = tmp_path / "indexes"
    for name in ("ads", "shop-1", "shop-2"):
        with rbegir.Index.create(path / f"{name}.rbe", model) as index:
            index.add([f"keyword of {name}"], ids=[7], attributes={"price": [1.0]})
    (path / "notes.txt").write_text("not an index")
    (path / ".hidden.rbe").mkdir()
    return path


@contextlib.contextmanager
def serving(indexes: Any, log: io.StringIO | None = None, **settings: Any) -> Iterator[TestClient]:
    """A service, spoken to without a socket."""
    app = create_app(indexes, Settings(**settings), log=RequestLog(log or io.StringIO()))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def in_folder(path: Path, *, read_only: bool = False) -> IndexFolder:
    return IndexFolder(path, lambda index: rbegir.Index.open(index, read_only=read_only))


def best(client: TestClient, name: str | None = None, **headers: str) -> str:
    """The text of the only hit: it says which index answered."""
    path = "/v1/search" if name is None else f"/v1/indexes/{name}/search"
    answer = client.post(path, json={"queries": ["keyword"]}, headers=headers)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["results"][0]["hits"][0]["text"])


def names(client: TestClient) -> dict[str, str]:
    answer = client.get("/v1/indexes")
    schema.IndexesResponse.model_validate_json(answer.content, strict=True)
    listed = answer.json()["indexes"]
    assert [one["default"] for one in listed].index(True) == 0
    return {one["name"]: one["index"] for one in listed}


def test_every_route_of_every_index(folder: Path) -> None:
    opened = {name: rbegir.Index.open(folder / f"{name}.rbe") for name in ("shop-1", "ads")}
    log = io.StringIO()
    with serving(opened, log) as client:
        assert names(client) == {"shop-1": "shop-1", "ads": "ads"}
        assert best(client) == best(client, "shop-1") == "keyword of shop-1"
        assert best(client, "ads") == "keyword of ads"
        keyword = {"id": 8, "text": "new", "attributes": {"price": 2.0}}
        change = "/v1/indexes/ads/keywords"
        assert client.post(change, json={"keywords": [keyword]}).json() == {"upserted": 1}
        assert client.get(f"{change}/8").json() == keyword
        update = {"keywords": [{"id": 8, "attributes": {"price": 3.0}}]}
        assert client.patch(change, json=update).json() == {"updated": 1}
        assert client.get(f"{change}:count", params={"where": "price = 3"}).json() == {"keywords": 1}
        assert len(client.get(change).text.splitlines()) == 2
        assert client.get("/v1/indexes/ads").json()["keywords"] == 2
        assert client.get("/v1/index").json()["keywords"] == 1
        assert client.request("DELETE", change, json={"where": "price = 3"}).json() == {"deleted": 1}
        assert client.post("/v1/indexes/ads:compact").json()["keywords"] == 1
        page = client.get("/metrics").text
        assert 'rbegir_keywords{index="ads"} 1.0' in page
        assert 'rbegir_search_stage_seconds_count{index="shop-1",stage="scan"} 2.0' in page
        assert 'rbegir_search_stage_seconds_count{index="ads",stage="scan"} 1.0' in page
        for path in ("/v1/indexes/none/search", "/v1/indexes/none", "/v1/indexes/ads/nothing"):
            problem(client.request("POST" if "search" in path else "GET", path), 404, "not-found")
        problem(client.put("/v1/indexes/ads/search"), 405, "method-not-allowed")
        assert "/v1/indexes/{index}/search" in client.get("/openapi.json").json()["paths"]
        assert client.get("/readyz").status_code == 200
    said = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line.get("index") for line in said if line.get("route") == "/v1/search"][:3] == [
        None, "shop-1", "ads"
    ]  # fmt: skip


def test_one_index_has_a_name_too_and_metrics_without_one(folder: Path) -> None:
    with serving(rbegir.Index.open(folder / "ads.rbe")) as client:
        assert names(client) == {"default": "default"}
        assert best(client, "default") == best(client)
        assert "rbegir_keywords 1.0" in client.get("/metrics").text
        answer = client.put("/v1/aliases/shop", json={"index": "ads"})
        assert "rbegir serve FOLDER" in problem(answer, 501, "not-supported")["hint"]
        assert "/v1/aliases/{name}" not in client.get("/openapi.json").json()["paths"]


def test_the_open_document_tells_no_names_to_strangers(model: rbegir.Model, tmp_path: Path) -> None:
    made = {name: rbegir.Index.create(tmp_path / name, model) for name in ("secret-one", "secret-two")}
    made["secret-one"].add(["tea"], attributes={"secret-band": ["a"]})
    with serving(made, read_token=READ, write_token=WRITE) as client:

        def document(authorization: str = "") -> str:
            return client.get("/openapi.json", headers={"authorization": authorization}).text

        told, open_ = document(f"Bearer {READ}"), client.get("/openapi.json").text
        for name in ("secret-one", "secret-two", "secret-band"):
            assert name in told
        assert "secret" not in open_
        assert json.loads(open_)["paths"].keys() == json.loads(told)["paths"].keys()
        assert document(f"Bearer {WRITE}") == told
        for wrong in ("", "Bearer a-stranger", f"Basic {READ}"):
            assert document(wrong) == open_
    with serving(rbegir.Index.open(tmp_path / "secret-one")) as client:
        assert "secret-band" in client.get("/openapi.json").text  # without tokens everyone may read


def test_names_are_told_to_readers_only(folder: Path) -> None:
    with serving(in_folder(folder), read_token=READ, write_token=WRITE) as client:
        for name in ("ads", "none"):
            problem(client.get(f"/v1/indexes/{name}"), 401, "unauthorized")
        problem(client.get("/v1/indexes"), 401, "unauthorized")
        read, write = {"authorization": f"Bearer {READ}"}, {"authorization": f"Bearer {WRITE}"}
        problem(client.get("/v1/indexes/none", headers=read), 404, "not-found")
        assert best(client, "ads", **read) == "keyword of ads"
        for method, body in (("PUT", {"index": "ads"}), ("DELETE", None)):
            answer = client.request(method, "/v1/aliases/shop-1", json=body, headers=read)
            problem(answer, 403, "forbidden")
        assert client.put("/v1/aliases/shop", json={"index": "ads"}, headers=write).status_code == 200


def test_a_name_is_pointed_at_another_index_for_good(folder: Path) -> None:
    with serving(in_folder(folder)) as client:
        assert list(names(client)) == ["ads", "shop-1", "shop-2"]
        answer = client.put("/v1/aliases/shop", json={"index": "shop-1"})
        schema.AliasResponse.model_validate_json(answer.content, strict=True)
        assert answer.json() == {"name": "shop", "index": "shop-1"}
        assert best(client, "shop") == "keyword of shop-1"
        assert client.put("/v1/aliases/shop", json={"index": "shop-2"}).status_code == 200
        assert best(client, "shop") == "keyword of shop-2"
        assert client.delete("/v1/aliases/shop-1").json() == {"name": "shop-1", "index": None}
        assert client.delete("/v1/aliases/shop-2").status_code == 200
        problem(client.get("/v1/indexes/shop-1"), 404, "not-found")
        with rbegir.Index.open(folder / "shop-1.rbe") as index:  # closed, so its lock is free
            wait_until(lambda: writable(index))
        assert best(client, "shop") == "keyword of shop-2"
        assert 'index="shop-1"' not in client.get("/metrics").text
        assert json.loads((folder / ALIASES).read_text()) == {"ads": "ads", "shop": "shop-2"}
    with serving(in_folder(folder)) as client:
        assert names(client) == {"ads": "ads", "shop": "shop-2"}
        assert client.delete("/v1/aliases/ads").status_code == 200
        problem(client.delete("/v1/aliases/shop"), 422, "invalid")  # the last one


def writable(index: rbegir.Index) -> bool:
    with contextlib.suppress(rbegir.errors.LockedError):
        index.delete([])
        return True
    return False


@pytest.mark.parametrize("name", ["event", "time", "self"])
def test_any_name_can_be_pointed(folder: Path, name: str) -> None:
    log = io.StringIO()
    with serving(in_folder(folder), log) as client:
        answer = client.put(f"/v1/aliases/{name}", json={"index": "shop-1"})
        assert answer.status_code == 200, answer.text
        assert best(client, name) == "keyword of shop-1"
    (told,) = (json.loads(line) for line in log.getvalue().splitlines() if '"event":"names"' in line)
    assert told["names"][name] == "shop-1"


def held_up(index: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Searches of an index set the first event, and wait for the second."""
    began, go = threading.Event(), threading.Event()
    search = index.search_codes

    def slow(*given: Any, **options: Any) -> Any:
        began.set()
        assert go.wait(PATIENT)
        return search(*given, **options)

    monkeypatch.setattr(index, "search_codes", slow)
    return began, go


def test_requests_that_have_begun_finish_on_the_old_index(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ALIASES).write_text('{"shop": "shop-1"}')
    with serving(in_folder(folder)) as client, ThreadPoolExecutor(1) as threads:
        catalog: Catalog = client.app.state.catalog  # type: ignore[attr-defined]
        old = catalog.services["shop"]
        began, go = held_up(old.index, monkeypatch)
        waiting = threads.submit(best, client, "shop")
        assert began.wait(PATIENT)
        assert client.put("/v1/aliases/shop", json={"index": "shop-2"}).status_code == 200
        assert best(client, "shop") == "keyword of shop-2"
        assert not waiting.done()
        assert len(old.index) == 1, "an index in use stays open"
        back = threads.submit(lambda: None)  # behind the search
        go.set()
        assert waiting.result(PATIENT) == "keyword of shop-1"
        back.result(PATIENT)
        # pointed back, it is opened again when the old one has given up its lock
        assert client.put("/v1/aliases/shop", json={"index": "shop-1"}).status_code == 200
        assert best(client, "shop") == "keyword of shop-1"
        assert catalog.services["shop"] is not old


def test_a_name_is_pointed_back_while_the_old_index_still_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export that takes long must not keep an operator from taking a change back."""
    (folder / ALIASES).write_text('{"shop": "shop-1"}')
    with serving(in_folder(folder)) as client, ThreadPoolExecutor(1) as threads:
        catalog: Catalog = client.app.state.catalog  # type: ignore[attr-defined]
        old = catalog.services["shop"]
        began, go = held_up(old.index, monkeypatch)
        waiting = threads.submit(best, client, "shop")
        assert began.wait(PATIENT)
        try:
            for index in ("shop-2", "shop-1", "ads", "shop-1"):
                answer = client.put(
                    "/v1/aliases/shop", json={"index": index}, headers={"x-timeout-ms": "5000"}
                )
                assert answer.status_code == 200, answer.text
            assert catalog.services["shop"] is old
        finally:
            go.set()
        assert waiting.result(PATIENT) == "keyword of shop-1"
        assert best(client, "shop") == "keyword of shop-1"
        assert client.put("/v1/aliases/shop", json={"index": "shop-2"}).status_code == 200
        with rbegir.Index.open(folder / "shop-1.rbe") as index:  # then it is closed after all
            wait_until(lambda: writable(index))


def test_a_refused_change_leaves_the_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ALIASES).write_text('{"shop": "shop-1"}')
    with serving(in_folder(folder)) as client:
        for name, body, status, kind in (
            ("shop", {"index": "shop-9"}, 404, "not-found"),
            ("shop", {"index": "../indexes/ads"}, 422, "invalid"),
            ("shop", {"index": ".hidden"}, 422, "invalid"),
            ("shop", {"index": "notes.txt"}, 404, "not-found"),
            ("shop", {"index": ""}, 422, "invalid"),
            ("shop", {"index": 7}, 422, "invalid"),
            (".shop", {"index": "ads"}, 422, "invalid"),
            ("x" * 65, {"index": "ads"}, 422, "invalid"),
        ):
            problem(client.put(f"/v1/aliases/{name}", json=body), status, kind)
        problem(client.delete("/v1/aliases/ads"), 404, "not-found")
        problem(client.post("/v1/aliases/ads"), 405, "method-not-allowed")
        crossed = {"origin": "https://evil.example"}
        problem(client.put("/v1/aliases/shop", json={"index": "ads"}, headers=crossed), 403, "bad-origin")
        problem(client.delete("/v1/aliases/shop", headers=crossed), 403, "bad-origin")

        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(disk, "replace", full)
            problem(client.put("/v1/aliases/shop", json={"index": "shop-2"}), 507, "full")
        assert names(client) == {"shop": "shop-1"}
        assert json.loads((folder / ALIASES).read_text()) == {"shop": "shop-1"}
        assert client.put("/v1/aliases/shop", json={"index": "shop-2"}).status_code == 200


def test_a_read_only_service_follows_the_names(folder: Path) -> None:
    with serving(in_folder(folder, read_only=True), read_only=True, refresh_s=0.01) as client:
        problem(client.put("/v1/aliases/shop", json={"index": "ads"}), 403, "read-only")
        with serving(in_folder(folder)) as writer:
            assert writer.put("/v1/aliases/shop", json={"index": "shop-2"}).status_code == 200
        wait_until(lambda: names(client).get("shop") == "shop-2")
        assert best(client, "shop") == "keyword of shop-2"
        (folder / ALIASES).write_text('{"shop": "shop-9"}')
        wait_until(lambda: client.get("/readyz").status_code == 503)
        assert best(client, "shop") == "keyword of shop-2"
        (folder / ALIASES).write_text('{"shop": "shop-1"}')
        wait_until(lambda: client.get("/readyz").status_code == 200)
        assert best(client) == "keyword of shop-1"


@pytest.mark.parametrize(
    "said", ["[]", "{}", "7", '{"a": 7}', '{"../a": "ads"}', '{"a": "../ads"}', "{", "[" * 100_000]
)
def test_a_wrong_file_of_names_is_named(folder: Path, said: str) -> None:
    (folder / ALIASES).write_text(said)
    with pytest.raises(FileError, match=ALIASES):
        in_folder(folder).names()


def test_two_indexes_of_one_name_are_refused(folder: Path) -> None:
    (folder / "shop-1.rbe").rename(folder / "tea")
    assert list(in_folder(folder).names()) == ["ads", "shop-2", "tea"]
    (folder / "shop-2.rbe").rename(folder / "tea.rbe")
    with pytest.raises(FileError, match="has two indexes of the name 'tea'"):
        in_folder(folder).names()


def test_names_are_followed_again_after_an_unexpected_error(folder: Path) -> None:
    indexes = in_folder(folder, read_only=True)
    with serving(indexes, read_only=True, refresh_s=0.01) as client:

        def names() -> dict[str, str]:
            raise OSError(errno.EMFILE, "too many open files")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(indexes, "names", names)
            wait_until(lambda: client.get("/readyz").status_code == 503)
            said = problem(client.get("/readyz"), 503, "not-ready")
            assert said["detail"] == "the names of the indexes could not be followed"
        wait_until(lambda: client.get("/readyz").status_code == 200)


def test_readiness_names_the_index(folder: Path) -> None:
    with serving(in_folder(folder)) as client:
        catalog: Catalog = client.app.state.catalog  # type: ignore[attr-defined]
        catalog.services["shop-1"].committer.failure = "the disk is gone"
        said = problem(client.get("/readyz"), 503, "not-ready")
        assert said["detail"] == "shop-1: the last change could not be written"
        ready = {one["name"]: one["ready"] for one in client.get("/v1/indexes").json()["indexes"]}
        assert ready == {"ads": True, "shop-1": False, "shop-2": True}


def test_the_command_line_names_indexes() -> None:
    assert named_indexes(["a.rbe"]) == {"": "a.rbe"}
    assert named_indexes(["./a=b.rbe"]) == {"": "./a=b.rbe"}
    assert named_indexes(["https://h/a.rbe?x=1"]) == {"": "https://h/a.rbe?x=1"}
    assert named_indexes(["shop=a.rbe", "ads=s3://b/ads=1"]) == {"shop": "a.rbe", "ads": "s3://b/ads=1"}
    for wrong in (["a.rbe", "b.rbe"], ["a=x", "b.rbe"], ["a=x", "a=y"]):
        with pytest.raises(InputError, match="each of several indexes needs a name of its own"):
            named_indexes(wrong)
    with pytest.raises(InputError, match=r"x\.rbe is given twice"):
        named_indexes(["a=x.rbe", "b=x.rbe"])


def test_processes_over_several_indexes_and_over_a_folder(folder: Path, serve: Any) -> None:
    named: Process = serve(f"b={folder / 'shop-1.rbe'}", f"a={folder / 'ads.rbe'}")
    asked = {"queries": ["keyword"]}
    found = post(f"{named.address}/v1/search", json=asked).json()["results"][0]["hits"]
    assert found[0]["text"] == "keyword of shop-1"
    with rbegir.Client(named.address, index="a") as client:
        assert client.search("keyword").texts.tolist() == [["keyword of ads"]]
        assert client.get([7]) == [{"id": 7, "text": "keyword of ads", "price": 1.0}]
        assert client.count() == len(client) == 1
        assert [one["name"] for one in client.indexes()] == ["b", "a"]
        with pytest.raises(rbegir.errors.ServiceError, match="the indexes of this service are fixed"):
            client.alias("c", "ads")
    with (
        rbegir.Client(named.address, index="nothing") as client,
        pytest.raises(rbegir.errors.ServiceError, match="there is no index of this name"),
    ):
        client.info()
    assert named.stop() == 0
    whole: Process = serve(folder)
    assert "serving 3 indexes, 3 keywords at" in whole.lines[0]
    with rbegir.Client(whole.address, index="shop") as client:
        client.alias("shop", "shop-2")
        assert client.search("keyword").texts.tolist() == [["keyword of shop-2"]]
        client.alias("ads", None)
        assert [one["name"] for one in client.indexes()] == ["shop-1", "shop-2", "shop"]
    assert get(f"{whole.address}/readyz").status_code == 200
    assert whole.stop() == 0


def test_an_index_that_has_left_holds_no_files(folder: Path) -> None:
    """Nor the memory that belongs to them, which is not left to a garbage collection that may never come."""

    def opened() -> list[str]:
        links = [Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        return [target for link in links if "/shop-1.rbe/" in (target := os.path.realpath(link))]

    (folder / ALIASES).write_text('{"shop": "shop-1"}')
    with serving(in_folder(folder)) as client:
        gc.collect()
        gc.disable()
        try:
            assert best(client, "shop") == "keyword of shop-1"
            assert opened()
            wrong = {"keywords": [{"id": "a", "text": "ids are numbers"}]}
            problem(client.post("/v1/indexes/shop/keywords", json=wrong), 422, "mismatch")
            wrong = {"queries": ["a"], "where": "nothing = 1"}
            problem(client.post("/v1/indexes/shop/search", json=wrong), 422, "invalid-filter")
            assert client.put("/v1/aliases/shop", json={"index": "shop-2"}).status_code == 200
            wait_until(lambda: not opened())
        finally:
            gc.enable()
