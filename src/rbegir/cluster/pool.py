"""The processes of a cluster: the shards, and the one writer of an index.

    devices="auto"     one shard per GPU if the cluster has any, else one per node (with its cores)
    devices=4          four shards that share the cores of the cluster
    devices="cuda"     one shard per GPU, and an error if there is none
    devices=["cuda", "cuda"]    as many as named

Each shard has `replicas` processes, on different nodes if there are enough. Shards are named actors, so all
clients of one index in one cluster share them (and their batches). Ray restarts a shard that dies, and ends
all shards with the process that started them. Ray reserves a tenth of a shard's cores: enough to spread
shards over nodes by size, while other work still finds room.

All clients send their changes to the writer, which locks the index at its first change. It makes one change
at a time, and beside them one compaction. Clients encode the texts, so the writer needs no model. After a
change, a client reads the new manifest, and its next question makes the shards open the new segments.
"""

import hashlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rbegir
from rbegir.cluster.session import import_ray, named_actor
from rbegir.cluster.shard import About, Shard
from rbegir.codes.layout import LAYOUT_VERSION
from rbegir.errors import ClusterError, DeviceError, InputError, RbegirError, VersionError, whole_number
from rbegir.index.format import VERSION
from rbegir.index.store import Index

START_SECONDS = 60.0
RESERVED = 0.1  # of a shard's cores
MOST = 4096
AGAIN_SECONDS = 60.0  # for which a change is sent again to a writer that died
PAUSE = 0.1  # seconds between two attempts
COMPACT = "compact"  # the method with a thread of its own in the writer

Devices = str | int | Sequence[str]


@dataclass(frozen=True)
class Layout:
    """How many shards and replicas, on which device, with how many threads."""

    device: str  # "cpu" or "cuda"
    shards: int
    replicas: int
    threads: int  # per shard
    reserved: float  # cores per shard, with Ray


def layout(
    devices: Devices, replicas: int, nodes: list[dict[str, Any]], threads: int | None = None
) -> Layout:
    """The layout for what the user asked for, on these nodes (as ray.nodes() lists them)."""
    whole_number("replicas", replicas, 1, MOST)
    if threads is not None:
        whole_number("threads", threads)
    alive = [node["Resources"] for node in nodes if node.get("Alive", node.get("alive"))]
    gpus = int(sum(resources.get("GPU", 0) for resources in alive))
    cores = sum(resources.get("CPU", 0) for resources in alive)
    workers = [resources for resources in alive if resources.get("CPU", 0) > 0]
    if devices == "auto":
        devices = "cuda" if gpus else max(1, len(workers) // replicas)
    device, shards = "", 0
    if isinstance(devices, str):
        device, shards = devices, max(1, gpus // replicas) if devices == "cuda" else 1
    elif type(devices) is int:
        device, shards = "cpu", devices
    elif isinstance(devices, Sequence) and len(set(devices)) == 1:
        device, shards = devices[0], len(devices)
    if device not in ("cpu", "cuda") or not 1 <= shards <= MOST:
        raise InputError(
            "devices must be 'auto', 'cpu', 'cuda', a number of shards or a list of one of the names, "
            f"got {devices!r}"
        )
    actors = shards * replicas
    if device == "cuda" and actors > gpus:
        raise DeviceError(
            f"{shards} × {replicas} shards need {actors} GPUs, the nodes of the cluster have {gpus}",
            hint="start Ray on the GPU machines (`ray start --address=…`), or use devices='cpu'",
        )
    if device == "cpu" and not cores:
        raise ClusterError("no node of the cluster offers a CPU", hint="start a node with --num-cpus")
    share = cores / actors
    reserved = 0.0 if device == "cuda" else int(share * RESERVED * 1e4) / 1e4  # Ray's own granularity
    return Layout(device, shards, replicas, threads or max(1, int(share)), reserved)


class Pool:
    """The shard processes of one client: `actor(shard, replica)` is where to ask."""

    def __init__(self, name: str, wanted: Layout, queue: int) -> None:
        ray = import_ray()
        self.layout = wanted
        self._queue = queue
        identity = repr((name, wanted, queue, rbegir.__version__))
        self._prefix = hashlib.blake2b(identity.encode(), digest_size=8).hexdigest()
        self._nodes = sorted(
            node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0
        )
        self._changing = threading.Lock()
        self._stopped = False
        self._own: set[tuple[int, int]] = set()  # made by this client
        self._actors = {
            (shard, replica): self._make(shard, replica)
            for shard in range(wanted.shards)
            for replica in range(wanted.replicas)
        }

    def actor(self, shard: int, replica: int) -> Any:
        return self._actors[shard, replica]

    def renew(self, shard: int, replica: int) -> None:
        """Replace an actor that is gone for good: by one that another client has started, or by a new one."""
        with self._changing:
            if self._stopped:
                raise ClusterError("the cluster was closed during a search", hint="open it again")
            self._actors[shard, replica] = self._make(shard, replica)

    def check(self) -> None:
        """Wait until all shards run, and refuse those that cannot do their work."""
        ray = import_ray()
        refs = [actor.about.remote() for actor in self._actors.values()]
        ready, waiting = ray.wait(refs, num_returns=len(refs), timeout=START_SECONDS)
        if waiting:
            free = ray.available_resources()
            needs = "a GPU" if self.layout.device == "cuda" else f"{self.layout.reserved:g} CPUs"
            raise ClusterError(
                f"{len(waiting)} of {len(refs)} shards did not start within {START_SECONDS:.0f} s; one needs "
                f"{needs}, and {free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs are free",
                hint="add nodes, stop other work in the cluster, or ask for fewer shards or replicas",
            )
        try:
            found: list[About] = ray.get(ready)
        except ray.exceptions.RayError as error:
            raise ClusterError(
                f"a shard could not start: {root_cause(error)}",
                hint=f"install rbegir {rbegir.__version__} with its extra [cluster] on every node",
            ) from error
        for about in found:
            refuse(about)

    def stop(self) -> None:
        """End the shards that this client made; those of others stay."""
        ray = import_ray()
        with self._changing:
            self._stopped = True
            for place in self._own:
                ray.kill(self._actors[place])
            self._own.clear()

    def _make(self, shard: int, replica: int) -> Any:
        ray = import_ray()
        name = f"rbegir-{self._prefix}-{shard}-{replica}"
        # replicas of a shard on different nodes; `soft`: elsewhere if that node is gone
        node = self._nodes[(shard + replica) % len(self._nodes)] if self._nodes else None
        strategy = "DEFAULT"
        if node is not None and self.layout.device == "cpu":
            strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        actor, made = named_actor(
            Shard,
            name,
            self.layout.device,
            self.layout.threads,
            self._queue,
            num_cpus=self.layout.reserved,
            num_gpus=1 if self.layout.device == "cuda" else 0,
            max_task_retries=0,  # a question is asked again of another replica, see `fanout`
            scheduling_strategy=strategy,
        )
        if made:
            self._own.add((shard, replica))
        return actor


def refuse(about: About) -> None:
    """Raise an error for a shard process that cannot be used."""
    here = (rbegir.__version__, LAYOUT_VERSION, VERSION)
    there = (about.rbegir, about.layout, about.format)
    if here != there:
        raise VersionError(
            f"{about.node} runs rbegir {there[0]} (code layout {there[1]}, files {there[2]}), here it is "
            f"{here[0]} ({here[1]}, {here[2]})",
            hint="install the same version on every node",
        )
    if about.error is not None:
        error: RbegirError = about.error
        raise type(error)(
            f"{about.node} cannot search on the device it was given: {error.message}",
            hint=error.hint or "start Ray there with --num-gpus=0, or use devices='cpu'",
        )


class WriterActor:
    """Changes one index."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._index: Index | None = None
        self._opening = threading.Lock()

    def change(
        self, method: str, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, RbegirError | None]:
        """Call a method of the index; gives (result, None) or (None, error)."""
        try:
            with self._opening:
                if self._index is None:
                    self._index = Index.open(self._path)
            return getattr(self._index, method)(*arguments, **named), None
        except RbegirError as error:
            return None, error


class WriterHandle:
    """The writer of an index as a client sees it. Ray restarts one that dies."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._own = False
        self._actor: Any = None

    def close(self) -> None:
        """End the writer if this client made it, and with it the lock."""
        if self._own and self._actor is not None:
            import_ray().kill(self._actor)
        self._own = False

    def change(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the index.

        An idempotent call is repeated until the writer is back. Adding without `upsert` is not: it is unknown
        whether it was done.
        """
        ray = import_ray()
        once = named.get("upsert") is False
        until = time.monotonic() + (0.0 if once else AGAIN_SECONDS)
        while True:
            actor = self._actor  # another thread may replace it
            if actor is None:
                actor, made = named_actor(
                    WriterActor,
                    f"rbegir-writer-{self._path}",
                    str(self._path),
                    num_cpus=0,
                    groups={COMPACT: 1},
                )
                self._actor, self._own = actor, self._own or made
            call = actor.change.options(concurrency_group=COMPACT) if method == COMPACT else actor.change
            try:
                result, error = ray.get(call.remote(method, arguments, named))
            except ray.exceptions.RayTaskError as problem:
                raise ClusterError(f"the writer failed: {root_cause(problem)}") from problem
            except ray.exceptions.RayError as problem:
                if time.monotonic() >= until:
                    what = "add" if once else method
                    raise ClusterError(
                        f"the writer of {self._path} died during {what}; it may or may not have been done",
                        hint="call refresh and check, then repeat it if necessary; an upsert can be repeated",
                    ) from problem
                time.sleep(PAUSE)
                self._actor = None
                continue
            if error is not None:
                raise error
            return result


def root_cause(error: BaseException) -> str:
    """The root cause of an error of Ray, in one line."""
    while inner := getattr(error, "cause", None) or error.__cause__:
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
