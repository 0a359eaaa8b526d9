"""What a Ray that is started for this machine alone shows to others, and one that asks nobody for a token."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import until

PROGRAM = """
import json, os, psutil
from rbegir.cluster.session import CLUSTERS, Session

session = Session("local")
process = psutil.Process()
listening = set()
for one in (process, *process.children(recursive=True)):
    try:
        found = one.net_connections(kind="tcp")
    except psutil.Error:  # it has ended
        continue
    listening |= {c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN}
import ray
left = [ray._private.ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(CLUSTERS)]
session.close()
print(json.dumps([sorted(listening), os.environ.get("RAY_AUTH_MODE"), left]))
"""


def test_a_local_ray_listens_on_loopback_and_asks_for_a_token(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["HOME"] = str(tmp_path)  # where Ray keeps its token
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listening, mode, left = json.loads(done.stdout.splitlines()[-1])
    addresses = [ipaddress.ip_address(one.removeprefix("::ffff:")) for one in listening]
    assert addresses
    assert all(one.is_loopback for one in addresses), listening
    assert mode == "token"
    assert (tmp_path / ".ray" / "auth_token").read_text()
    assert left == [True, None]  # another cluster can be joined afterwards


CONNECT = """
import sys, warnings
from rbegir.cluster.session import Session

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    session = Session(sys.argv[1])
print(*[str(one.message) for one in caught if "without a token" in str(one.message)], sep="\\n")
session.close()
"""


@pytest.mark.parametrize("protected", [True, False])
def test_a_ray_without_tokens_is_warned_of(tmp_path: Path, protected: bool) -> None:
    """The client has a token in both cases: a Ray that requires none would accept it without a word."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("5" * 64)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={address.split(':')[1]}"]
    ray += ["--block", "--num-cpus=1", "--include-dashboard=false", f"--object-store-memory={80 << 20}"]
    mode = "token" if protected else "disabled"
    log = tmp_path / "log"
    with log.open("wb") as out:
        head = subprocess.Popen(ray, env={**environment, "RAY_AUTH_MODE": mode}, stdout=out, stderr=out)
    try:
        until(lambda: "ray start --address" in log.read_text() or head.poll() is not None)
        assert head.poll() is None, log.read_text()
        for chosen, warns in ((None, not protected), ("token", not protected), ("disabled", False)):
            if chosen == "disabled" and protected:
                continue  # which such a Ray refuses
            variables = environment if chosen is None else {**environment, "RAY_AUTH_MODE": chosen}
            command = [sys.executable, "-c", CONNECT, address]
            done = subprocess.run(command, env=variables, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            said = f"the Ray cluster at {address} accepts clients without a token" in done.stdout
            assert said == warns, (chosen, done.stdout)
        if protected:
            (tmp_path / ".ray" / "auth_token").write_text("6" * 64)
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert f"the Ray cluster at {address} requires a token" in done.stderr
    finally:
        head.terminate()
        head.wait()
