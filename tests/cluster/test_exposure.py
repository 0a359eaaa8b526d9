"""What a Ray that is started for this machine alone shows to others."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from pathlib import Path

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
