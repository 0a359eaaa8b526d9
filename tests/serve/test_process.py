"""`rbegir serve` as a process: killed, drained, twice on one index, with its index deleted."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx

import rbegir
from tests.serve.conftest import PATIENT, TEXTS, Process, get, post
from tests.serve.test_requests import problem
from tests.serve.test_socket import wait_until

Serve = Callable[..., Process]
BODY = {"queries": ["red hat"], "k": 3}


def fails(*arguments: str | Path, **environment: str) -> str:
    """What a service that cannot start says; without a trace."""
    command = [sys.executable, "-m", "rbegir", "serve", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENT)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def test_kill_9_in_the_middle_of_writes_loses_nothing_acknowledged(serve: Serve, index_path: Path) -> None:
    acknowledged: dict[int, str | None] = {}
    attempted: dict[int, set[str | None]] = {}

    def writer(number: int, address: str) -> None:
        """Upserts and deletes its own ids, and notes what was acknowledged, until the service is gone."""
        with httpx.Client(base_url=address, timeout=PATIENT) as http:
            for turn in range(10_000):
                key, text = number * 100 + turn % 7, f"writer {number} turn {turn}"
                gone = turn % 3 == 2
                attempted.setdefault(key, {None}).add(None if gone else text)
                try:
                    if gone:
                        http.request("DELETE", "/v1/keywords", json={"ids": [key]}).raise_for_status()
                    else:
                        body = {"keywords": [{"id": key, "text": text}]}
                        http.post("/v1/keywords", json=body).raise_for_status()
                except httpx.HTTPError:
                    unsure.add(key)
                    return
                acknowledged[key] = None if gone else text

    unsure: set[int] = set()
    for round_ in range(2):
        process = serve(index_path)
        before = len(acknowledged)
        threads = [
            threading.Thread(target=writer, args=[10 * (1 + round_) + number, process.address])
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda before=before: len(acknowledged) > before + 12)
        process.stop(signal.SIGKILL)
        for thread in threads:
            thread.join()
        with rbegir.Index.open(index_path, read_only=True) as index:
            index.verify()
            keys = sorted(acknowledged)
            for key, found in zip(keys, index.get(keys), strict=True):
                text = found and found["text"]
                assert text == acknowledged[key] or (key in unsure and text in attempted[key]), key
            assert index.get([5])[0] is not None
    process = serve(index_path)
    sure = next(key for key, text in acknowledged.items() if text is not None and key not in unsure)
    assert get(f"{process.address}/v1/keywords/{sure}").json()["text"] == acknowledged[sure]


def test_sigterm_drains(serve: Serve, index_path: Path) -> None:
    delay = 2
    while not _drains(serve, index_path, delay):
        delay *= 4  # the machine was too busy to ask in time


def _drains(serve: Serve, index_path: Path, delay: int) -> bool:
    """Stop a service that is written to; whether it was still there to be asked during its delay."""
    process = serve(index_path, "--drain-delay", str(delay))
    answers: list[int] = []

    def client() -> None:
        with httpx.Client(base_url=process.address, timeout=PATIENT) as http:
            for number in range(10_000):
                body = {"keywords": [{"id": 5000 + number, "text": f"late {number}"}]}
                try:
                    answers.append(http.post("/v1/keywords", json=body).status_code)
                except httpx.HTTPError:
                    return  # refused: the socket is closed

    thread = threading.Thread(target=client)
    thread.start()
    wait_until(lambda: len(answers) > 3)
    process.send(signal.SIGTERM)
    try:
        wait_until(lambda: get(f"{process.address}/readyz").status_code == 503)
        problem(get(f"{process.address}/readyz"), 503, "not-ready")
        assert get(f"{process.address}/healthz").status_code == 200
        assert post(f"{process.address}/v1/search", json=BODY).status_code == 200
        in_time = True
    except httpx.TransportError:
        in_time = False
    assert process.wait() == 0
    thread.join()
    assert set(answers) == {200}
    assert [event["signal"] for event in process.events() if event["event"] == "draining"] == ["SIGTERM"]
    with rbegir.Index.open(index_path) as index:
        index.delete([5000])  # the lock is free
        assert all(index.get([5001 + number])[0] for number in range(len(answers) - 1))
    return in_time


def test_two_services_on_one_index(serve: Serve, index_path: Path) -> None:
    writer = serve(index_path)
    said = fails(index_path, "--port", "0")
    assert f"is being written by process {writer.pid}" in said
    assert "hint: " in said
    replica = serve(index_path, "--read-only")
    problem(post(f"{replica.address}/v1/keywords", json={"keywords": []}), 403, "read-only")
    body = {"keywords": [{"id": 777, "text": "seen by both"}]}
    assert post(f"{writer.address}/v1/keywords", json=body).status_code == 200
    wait_until(lambda: get(f"{replica.address}/v1/keywords/777").status_code == 200)
    assert get(f"{replica.address}/v1/index").json()["keywords"] == len(TEXTS) + 1


def test_an_index_that_is_deleted_under_it(serve: Serve, index_path: Path) -> None:
    process = serve(index_path)
    before = post(f"{process.address}/v1/search", json=BODY).json()["results"]
    shutil.rmtree(index_path)
    assert post(f"{process.address}/v1/search", json=BODY).json()["results"] == before
    body = {"keywords": [{"id": 1, "text": "lost"}]}
    answer = post(f"{process.address}/v1/keywords", json=body)
    found = problem(answer, 500, "storage")
    assert str(index_path) not in answer.text
    assert found["hint"] == "see the log of the service"
    problem(get(f"{process.address}/readyz"), 503, "not-ready")
    assert get(f"{process.address}/healthz").status_code == 200
    assert process.stop() == 0
    assert any(str(index_path) in event.get("detail", "") for event in process.events())


def test_tokens_guard_a_service_for_other_machines(serve: Serve, index_path: Path, tmp_path: Path) -> None:
    assert "needs a read and a write token" in fails(index_path, "--host", "0.0.0.0")
    file = tmp_path / "token"
    file.write_text("the-write-token\n")
    file.chmod(0o600)
    process = serve(
        index_path, "--host", "0.0.0.0", "--write-token-file", file, RBEGIR_READ_TOKEN="the-read-token"
    )
    address = f"http://127.0.0.1:{process.port}"
    problem(post(f"{address}/v1/search", json=BODY), 401, "unauthorized")
    headers = {"Authorization": "Bearer the-read-token", "Host": "search.example"}
    assert post(f"{address}/v1/search", json=BODY, headers=headers).status_code == 200
    headers = {"Authorization": "Bearer the-write-token"}
    assert post(f"{address}/v1/index:compact", headers=headers).status_code == 200
    assert not any("token" in line for line in process.lines)


def test_what_is_wrong_is_said_in_two_lines(index_path: Path, tmp_path: Path) -> None:
    assert fails(tmp_path / "nowhere.rbe").startswith("error: ")
    assert "cannot read the read token" in fails(index_path, "--read-token-file", tmp_path / "none")
