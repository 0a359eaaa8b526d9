"""Connecting to Ray, which does scheduling, membership, restarts and transport.

Ray is imported at the first use, never with `import rbegir`. It is made quiet: no usage statistics, no
dashboard, no output of workers on the terminal.

A Ray that is started here, for this machine alone, listens on the loopback interface and requires a token:
anyone who reaches the ports of a Ray without one can run any code. docs/cluster.md shows how to start Ray for
several machines.

An address is first tried by a short-lived process. Ray ends a process that cannot reach its head node within
a minute, and a library must not do that to its caller.
"""

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rbegir.errors import ClusterError, InputError, VersionError, needing

NAMESPACE = "rbegir"
AUTH_MODE = "RAY_AUTH_MODE"
CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
PROBE_SECONDS = 20.0
DIAL_SECONDS = 3.0
STORE_BYTES = 256 << 20  # of a cluster on this machine alone: questions and answers are small
UNPROTECTED = (
    "the Ray cluster at {} accepts clients without a token: anyone who reaches its ports can run programs on "
    "its machines. Make a token with `ray get-auth-token --generate`, copy it to all of them, and start Ray "
    "again with RAY_AUTH_MODE=token. If only trusted users reach its network, set RAY_AUTH_MODE=disabled to "
    "silence this warning."
)
# GcsClient is refused at once, ray.init after 20 s. It is private, so its other errors do not count.
ATTEMPT = """
import sys, ray
try:
    from ray._raylet import GcsClient
    GcsClient(address=sys.argv[1])
except ray.exceptions.AuthenticationError:
    raise
except Exception:
    pass
ray.init(address=sys.argv[1], log_to_driver=False)
ray.shutdown()
"""
START_HINT = "start Ray there with `ray start --head`, or leave the address out to use this machine alone"

_lock = threading.Lock()
_sessions = 0  # of those that share the connection which this module made


def import_ray() -> Any:
    """The module `ray`, with usage statistics switched off."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the behaviour that Ray will default to
    os.environ.setdefault("RAY_worker_niceness", "0")  # shards are not batch jobs; Ray would nice them by 15
    with needing("a cluster needs Ray, which is not installed", "pip install 'rbegir[cluster]'"):
        import ray
    return ray


def named_actor(
    kind: type[Any], name: str, *arguments: Any, groups: dict[str, int] | None = None, **options: Any
) -> tuple[Any, bool]:
    """The actor of this name, and whether it had to be made here; `groups` are its extra threads, by name."""
    ray = import_ray()
    try:
        return ray.get_actor(name, namespace=NAMESPACE), False
    except ValueError:
        named = {"name": name, "namespace": NAMESPACE, "get_if_exists": True, "max_restarts": -1}
        return ray.remote(concurrency_groups=groups)(kind).options(**named, **options).remote(
            *arguments
        ), True


class Session:
    """A connection to Ray; the last one that is closed ends what the first one started."""

    def __init__(self, address: str | None) -> None:
        global _sessions
        wanted = (os.environ.get("RAY_ADDRESS") or "local") if address is None else address
        connected = "ray" in sys.modules and import_ray().is_initialized()
        if wanted not in ("auto", "local") and not connected and find_spec("ray") is not None:
            probe(wanted)  # it may set how Ray authenticates, which Ray reads when imported
        ray = import_ray()
        with _lock:
            self._counted = not ray.is_initialized() or _sessions > 0
            if not ray.is_initialized():
                _connect(ray, wanted)
            elif address not in (None, "auto", "local"):
                _check_same(ray, wanted)
            if self._counted:
                _sessions += 1
        self.address: str = ray.get_runtime_context().gcs_address

    def close(self) -> None:
        global _sessions
        ray = import_ray()
        with _lock:
            if self._counted:
                self._counted = False
                _sessions -= 1
                if _sessions == 0:
                    ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    quiet: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "include_dashboard": None,
    }
    if address == "local":
        quiet |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        with _on_loopback(ray) if address == "local" else contextlib.nullcontext():
            ray.init(address=address, **quiet)
    except ConnectionError as error:
        raise ClusterError(f"no Ray cluster was found at address {address!r}", hint=START_HINT) from error
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise _refusal(address, reason, str(error)) from error
    # Ray prints the death of a worker to standard output, where data belongs. There is no option against it;
    # this is the switch that its own debugger uses.
    worker = ray._private.worker
    if hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = False


@contextlib.contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Let a Ray that is started meanwhile listen on the loopback interface alone.

    There is no option for it on Linux; this is the switch by which Ray does so on macOS, where no other
    machine can join. Ray itself asks for a token unless RAY_AUTH_MODE says otherwise.
    """
    constants, given = ray._private.ray_constants, os.environ.get(CLUSTERS)
    joined = getattr(constants, "ENABLE_RAY_CLUSTER", True)
    constants.ENABLE_RAY_CLUSTER, os.environ[CLUSTERS] = False, "0"
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = joined
        if given is None:
            del os.environ[CLUSTERS]
        else:
            os.environ[CLUSTERS] = given


def probe(address: str) -> None:
    """Refuse an address where no Ray cluster answers, within bounded time.

    It is tried without a token first. A Ray that accepts this accepts a token as well, so trying with a token
    would not tell whether it requires one.
    """
    host, port = _parts(address)
    try:
        socket.create_connection((host, port), timeout=DIAL_SECONDS).close()
    except OSError as error:
        reason = (error.strerror or str(error) or "no answer").lower()
        raise ClusterError(f"nothing answers at {address}: {reason}", hint=START_HINT) from error
    chosen = os.environ.get(AUTH_MODE)
    problem = _try(address, "disabled")
    if problem is None:
        if chosen != "disabled":
            warnings.warn(UNPROTECTED.format(address), stacklevel=2)
        return
    if chosen not in (None, "disabled") or (chosen is None and _has_token()):
        problem = _try(address, chosen or "token")
    if problem is not None:
        raise problem
    os.environ[AUTH_MODE] = chosen or "token"


def _has_token() -> bool:
    """Whether the user has a token: `ray start` uses it, but `ray.init` only sends it when told to."""
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or (Path.home() / ".ray" / "auth_token").exists()


def _try(address: str, mode: str) -> ClusterError | VersionError | None:
    """Connect from a process of its own; None if that works, or else why not."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ATTEMPT, address],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            env={**os.environ, AUTH_MODE: mode},
        )
    except subprocess.TimeoutExpired:
        return ClusterError(
            f"something listens at {address}, but it did not answer as Ray within {PROBE_SECONDS:.0f} s",
            hint=START_HINT,
        )
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.strip().splitlines() if line.strip()] or ["no message"]
    return _refusal(address, lines[-1], done.stderr)


def _refusal(address: str, reason: str, said: str) -> ClusterError | VersionError:
    """Why Ray could not connect, from all that it said."""
    if "ersion mismatch" in said:
        return VersionError(
            f"the Ray cluster at {address} has another version of Ray or Python: {reason}",
            hint="install the same versions on all nodes and here",
        )
    if "AuthenticationError" in said:
        return ClusterError(
            f"the Ray cluster at {address} requires a token, and this user has none that it accepts",
            hint="copy ~/.ray/auth_token from a node of the cluster, or name its file in RAY_AUTH_TOKEN_PATH",
        )
    return ClusterError(f"Ray could not connect to {address}: {reason}", hint=START_HINT)


def _parts(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in host:
        raise InputError(
            f"address must be host:port, 'auto' or 'local', got {address!r}",
            hint="`ray start --head` prints it; this machine must be a node of the cluster",
        )
    return host.strip("[]"), int(port)


def _check_same(ray: Any, address: str) -> None:
    here: str = ray.get_runtime_context().gcs_address
    if _parts(address)[1] == _parts(here)[1]:
        return
    raise ClusterError(
        f"this process is connected to the Ray cluster at {here} already, not to {address}",
        hint="a process uses one cluster: call ray.shutdown() first, or leave the address out",
    )
