"""The indexes of a service under their names, and what they share.

    rbegir serve ads.rbe                      one index, called `default`
    rbegir serve ads=a.rbe shop=b.rbe         several; the first is the default
    rbegir serve FOLDER                       the indexes of a folder; names can be pointed at others

In a folder, `aliases.json` says which index a name stands for: {"shop": "shop-2"} for FOLDER/shop-2.rbe. The
first name is the default. Without that file every index is served under its own name. To point a name at
another index, the service opens that index, replaces the file atomically and durably, and then uses the new
index for new requests. Requests that have begun finish on the old one, which is closed after the last of them
unless another name stands for it. A read-only service follows the file.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rbegir.base import disk
from rbegir.errors import FileError
from rbegir.index import manifest
from rbegir.serve.auth import Guard
from rbegir.serve.batcher import cancelled
from rbegir.serve.body import Bodies
from rbegir.serve.monitor import Metrics, RequestLog, trim_memory
from rbegir.serve.served import ServedIndex
from rbegir.serve.service import Service
from rbegir.serve.settings import Settings
from rbegir.wire.problems import Problem

ALIASES = "aliases.json"
MAX_ALIASES_BYTES = 1 << 20
SUFFIX = ".rbe"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
TRIM_S = 1.0


class IndexFolder:
    """A directory of indexes and the names that stand for them. `opened` opens one for serving."""

    def __init__(self, path: Path, opened: Callable[[Path], ServedIndex]) -> None:
        self.path = path
        self._opened = opened

    def names(self) -> dict[str, str]:
        """Names and the indexes that they stand for, the default first."""
        path = self.path / ALIASES
        if not path.exists() and (found := indexes_in(self.path)):
            return {name: name for name in found}
        try:
            said = json.loads(disk.read_small(path, MAX_ALIASES_BYTES))
        except (ValueError, RecursionError) as error:
            raise FileError(
                f"{path} is not JSON: {error}", hint="remove it to serve every index under its own name"
            ) from None
        pairs = said.items() if isinstance(said, dict) else [(None, None)]
        if not said or not all(
            isinstance(text, str) and NAME.fullmatch(text) for pair in pairs for text in pair
        ):
            raise FileError(
                f"{path} must be an object of names and the indexes that they stand for",
                hint='write for example {"shop": "shop-2"}',
            )
        return dict(said)

    def save(self, names: Mapping[str, str]) -> None:
        """Replace the file of names, durably."""
        path = self.path / ALIASES
        with disk.explained("write", path), disk.staged(path) as stage:
            disk.write_new(stage, [json.dumps(names, indent=1).encode() + b"\n"])

    def open(self, name: str) -> ServedIndex:
        path = indexes_in(self.path).get(name)
        if path is None:
            raise FileError(f"{self.path} has no index {name!r}", hint="build it there first")
        return self._opened(path)


def indexes_in(path: Path) -> dict[str, Path]:
    """The indexes directly in a folder, by name; one that is being built is hidden, and a path that is an
    index itself has none."""
    indexes: dict[str, Path] = {}
    for found in sorted(path.iterdir()) if path.is_dir() and not (path / manifest.NAME).exists() else ():
        name = found.name.removesuffix(SUFFIX)
        if NAME.fullmatch(name) and (found / manifest.NAME).is_file():
            if name in indexes:
                raise FileError(
                    f"{path} has two indexes of the name {name!r}: with the suffix {SUFFIX} and without",
                    hint="rename one of them",
                )
            indexes[name] = found
    return indexes


class Catalog:
    """The services of all indexes by name, the first of which is the default."""

    def __init__(
        self,
        indexes: ServedIndex | Mapping[str, ServedIndex] | IndexFolder,
        settings: Settings,
        log: RequestLog,
    ) -> None:
        self.settings = settings
        self.log = log
        self.guard = Guard(settings)
        self.bodies = Bodies(settings.max_received_bytes)
        self.metrics = Metrics(named=isinstance(indexes, (Mapping, IndexFolder)))
        self.draining = False
        self.folder = indexes if isinstance(indexes, IndexFolder) else None  # where names can be pointed
        self._changing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()  # that retire indexes or change names
        self._leaving: dict[str, tuple[Service, asyncio.Task[None]]] = {}  # by index
        self._follower: asyncio.Task[None] | None = None
        self._failure: str | None = None  # of following the file of names
        self._trimming: asyncio.TimerHandle | None = None
        self._left = False  # an index has, since memory was trimmed last
        opened: Callable[[str], ServedIndex]
        if isinstance(indexes, IndexFolder):
            names, opened = indexes.names(), indexes.open
        else:
            named: Any = indexes if isinstance(indexes, Mapping) else {"default": indexes}
            names, opened = {name: name for name in named}, named.__getitem__
        services: dict[str, Service] = {}
        try:
            for index in dict.fromkeys(names.values()):
                services[index] = self._service(opened(index), index)
        except BaseException:
            for service in services.values():
                service.index.close()
            raise
        self.services = {name: services[index] for name, index in names.items()}

    def _service(self, index: ServedIndex, name: str) -> Service:
        return Service(index, self.settings, self.log, self.metrics, name)

    @property
    def default(self) -> Service:
        return next(iter(self.services.values()))

    @property
    def distinct(self) -> list[Service]:
        """The services, each once."""
        return list(dict.fromkeys(self.services.values()))

    def prepare(self) -> None:
        """Find out what would keep the service from starting."""
        for service in self.distinct:
            service.prepare()

    async def start(self) -> None:
        for service in self.distinct:
            await service.start()
        if self.folder is not None and self.settings.read_only:
            self._follower = asyncio.create_task(self._follow(self.folder), name="rbegir-follow")

    async def stop(self) -> None:
        """Finish what is running and close the indexes."""
        await cancelled(self._follower)
        for service in self.distinct:
            await service.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def close(self) -> None:
        """Close the indexes of a service that was never started."""
        for service in self.distinct:
            service.index.close()

    def enter(self, name: str | None) -> Service | None:
        """The service that a name stands for, None for the default; it is in use until its `leave`."""
        service = self.default if name is None else self.services.get(name)
        if service is not None:
            service.enter()
        return service

    def not_ready(self) -> str | None:
        """Why requests should go elsewhere, if they should."""
        if self.draining:
            return "the service is shutting down"
        if self._failure is not None:
            return "the names of the indexes could not be followed"
        for name, service in self.services.items():
            if (reason := service.not_ready()) is not None:
                return f"{name}: {reason}" if len(self.services) > 1 else reason
        return None

    def listed(self) -> list[dict[str, Any]]:
        """The response to GET /v1/indexes."""
        return [
            {
                "name": name,
                "index": service.name,
                "default": service is self.default,
                "keywords": len(service.index),
                "ready": service.not_ready() is None,
            }
            for name, service in self.services.items()
        ]

    async def point(self, name: str, index: str | None) -> None:
        """Point a name at an index of the folder; None removes the name."""
        if self.folder is None:
            raise Problem(
                "not-supported",
                "the indexes of this service are fixed",
                hint="to change names while it runs, serve a folder of indexes: rbegir serve FOLDER",
            )
        for text in (name, index or name):
            if not NAME.fullmatch(text):
                raise Problem(
                    "invalid",
                    f"{text[:80]!r} is not a valid name of an index",
                    hint="a name has letters, digits, dots, dashes and underscores, at most 64 in all",
                )
        task = self._begin(self._point(self.folder, name, index), "rbegir-point")
        await asyncio.shield(task)  # once begun it is finished, whether or not the client waits for it

    async def _point(self, folder: IndexFolder, name: str, index: str | None) -> None:
        async with self._changing:
            names = {known: service.name for known, service in self.services.items()}
            if index is None:
                if names.pop(name, None) is None:
                    raise Problem(
                        "not-found", f"there is no index {name!r}", hint="GET /v1/indexes lists them"
                    )
                if not names:
                    raise Problem("invalid", f"{name!r} is the last name", hint="point it at another index")
            elif index not in await asyncio.to_thread(indexes_in, folder.path):
                raise Problem(
                    "not-found",
                    f"the folder has no index {index!r}",
                    hint="build it in the served folder first",
                )
            else:
                names[name] = index
            await self._change(folder, names, save=True)

    async def _change(self, folder: IndexFolder, names: Mapping[str, str], *, save: bool) -> None:
        """Serve these names: open what is new, and retire what no name stands for any more."""
        opened = {service.name: service for service in self.services.values()}
        fresh: list[Service] = []
        try:
            for index in names.values():
                if index not in opened:
                    opened[index] = await self._kept(index) or self._service(
                        await asyncio.to_thread(folder.open, index), index
                    )
                    fresh.append(opened[index])
                    if not opened[index].ready:
                        await opened[index].start()
            if save:
                await asyncio.to_thread(folder.save, names)
        except BaseException:
            for service in fresh:
                self._retire(service)
            raise
        before = self.distinct
        self.services = {name: opened[index] for name, index in names.items()}
        self.log.event("names", names=dict(names))
        for service in before:
            if service not in self.distinct:
                self._retire(service)

    def _retire(self, service: Service) -> None:
        """Close an index after its last request."""
        task = self._begin(service.retire(), "rbegir-retire")
        self._leaving[service.name] = service, task

        def left(_: object) -> None:
            if self._leaving.get(service.name) == (service, task):
                del self._leaving[service.name]
            self._left = True
            self.trim_soon()

        task.add_done_callback(left)

    async def _kept(self, index: str) -> Service | None:
        """The service of an index that is leaving and still answers requests, which is kept then. One that is
        being closed is waited for, as it has the lock."""
        if index in self._leaving:
            service, task = self._leaving[index]
            if service.ready:
                task.cancel()
                return service
            await asyncio.wait([task])
        return None

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task, and keep it until it is done."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self, folder: IndexFolder) -> None:
        """Follow the file of names, which the writer of the folder replaces."""
        while True:
            await asyncio.sleep(self.settings.refresh_s)
            try:
                names = await asyncio.to_thread(folder.names)
                if list(names.items()) != [(name, service.name) for name, service in self.services.items()]:
                    await self._change(folder, names, save=False)
                self._failure = None
            except Exception as error:  # the loop must go on
                if self._failure is None:
                    self.log.error("following the names failed", error)
                self._failure = str(error)

    def trim_soon(self) -> None:
        """Return the memory of a large request to the system, a moment later, when it has been freed.

        So is that of an index that has left, which traces of failed requests keep until they are collected.
        """

        def trim() -> None:
            collect, self._trimming, self._left = self._left, None, False
            loop.run_in_executor(None, partial(trim_memory, collect=collect))

        if self._trimming is None:
            loop = asyncio.get_running_loop()
            self._trimming = loop.call_later(TRIM_S, trim)
