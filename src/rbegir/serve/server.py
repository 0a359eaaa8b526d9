"""From an index and settings to a listening process: what may be bound, and how it ends.

SIGTERM and SIGINT: /readyz turns to 503, the socket stops accepting, what is in flight is finished (for at
most `drain_s`), the index is closed. A second signal does not wait.
"""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from rbegir.base.devices import prompt_threads
from rbegir.errors import FileError, InputError
from rbegir.serve.catalog import Catalog
from rbegir.serve.monitor import RequestLog
from rbegir.serve.protocol import Unsent, bounded_protocol
from rbegir.serve.settings import Settings, is_loopback

# A scan leaves the interpreter and comes back several times; by default each return could wait 5 ms behind
# requests that are being read, longer than the scan itself.
SWITCH_SECONDS = 0.0005  # of `prompt_threads`
# Objects that may be added before the garbage collector runs. With Python's 700 it runs every 16 searches,
# takes a twentieth of the time of the event loop, and finds nothing.
GC_OBJECTS = 5000


def check_exposure(host: str, settings: Settings) -> None:
    """Refuse to listen beyond this machine without tokens."""
    if is_loopback(host):
        return
    needed = ("read_token",) if settings.read_only else ("read_token", "write_token")
    missing = [name.removesuffix("_token") for name in needed if getattr(settings, name) is None]
    if missing:
        raise InputError(
            f"host {host} can be reached from other machines, which needs a {' and a '.join(missing)} token",
            hint="set RBEGIR_READ_TOKEN and RBEGIR_WRITE_TOKEN, or use --read-token-file, --write-token-file",
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or an error with the reason. Port 0 takes a free one."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise FileError(
            f"cannot listen on {host} port {port}: {error.strerror or error}", hint="choose another --port"
        ) from None
    return listener


class Server(uvicorn.Server):
    """uvicorn's server for one service. `ready` is called when requests are answered."""

    def __init__(self, app: Starlette, ready: Callable[[], None]) -> None:
        self._catalog: Catalog = app.state.catalog
        self._ready = ready
        settings = self._catalog.settings
        config = uvicorn.Config(
            app,
            http=bounded_protocol(
                settings.header_timeout_s,
                settings.max_connections,
                Unsent(settings.send_timeout_s, settings.max_unsent_bytes),
            ),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=round(settings.keep_alive_s),
            timeout_graceful_shutdown=round(settings.drain_s),
        )
        super().__init__(config)

    def listen(self, listener: socket.socket) -> None:
        """Serve until a signal comes, or `stop`."""
        bridge = _Bridge(self._catalog.log)
        logger = logging.getLogger("uvicorn.error")
        logger.addHandler(bridge)
        logger.propagate = False
        try:
            with prompt_threads(SWITCH_SECONDS):
                self.run(sockets=[listener])
        finally:
            logger.removeHandler(bridge)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if not self.should_exit:
            gc.collect()
            gc.freeze()  # modules, model and index stay: collections need not look at them again
            gc.set_threshold(GC_OBJECTS)
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second one ends at once."""
        if self._catalog.draining:
            self.should_exit = self.force_exit = True
            return
        self._catalog.draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._drain, sig)

    def stop(self) -> None:
        """Finish what is in flight and end."""
        self.should_exit = True

    def _drain(self, sig: int) -> None:
        self._catalog.log.event("draining", signal=signal.Signals(sig).name)
        asyncio.get_running_loop().call_later(self._catalog.settings.drain_delay_s, self.stop)


class _Bridge(logging.Handler):
    """Messages of uvicorn as lines of our log."""

    def __init__(self, log: RequestLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._log.error("server", error)
        else:
            self._log.event("server", detail=record.getMessage().strip())
