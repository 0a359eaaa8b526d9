"""Every limit and switch of the service, in one frozen dataclass.

The defaults suit a machine of a few cores behind a proxy. A limit that a request can meet is also written
into the OpenAPI document, so that a client can know it beforehand.
"""

import ipaddress
from dataclasses import dataclass, fields

from rbegir.errors import InputError, whole_number

Tokens = str | tuple[str, ...] | None  # one, several, or none


def listed(tokens: Tokens) -> tuple[str, ...]:
    return () if tokens is None else (tokens,) if isinstance(tokens, str) else tokens


@dataclass(frozen=True)
class Settings:
    """The settings of a service that its operator chooses."""

    # micro-batching
    max_batch: int = 128  # queries scored in one scan; 1 switches micro-batching off
    max_write_batch: int = 4096  # keywords committed in one durable write; 1: every request alone
    # beyond these the response is 503, except for clients that hold less than an equal share of the queue
    max_waiting: int = 4096  # queries that may wait for a scan, and as many for their filters
    max_waiting_writes: int = 65_536  # keywords that may wait to be written

    # limits on a client: a token, or without tokens an address
    max_client_requests: int = 0  # under way at once; beyond that the response is 429. 0: no limit

    # limits on a request
    max_body_bytes: int = 16 << 20
    max_search_bytes: int = 8 << 20  # of the body of a search, if that is less
    max_queries: int = 1024  # in one search request
    max_k: int = 10_000
    max_hits: int = 200_000  # queries times k of one request
    max_hit_bytes: int = 64 << 20  # of texts and attributes of the hits of one request
    max_explained: int = 1000  # the same with explain, which searches once more for every plane
    max_keywords: int = 10_000  # in one upsert or delete
    max_text_chars: int = 4096
    max_where_chars: int = 4096
    max_filter_chars: int = 65_536  # of all different filters of a search together
    max_slow_tests: int = 256  # the words and patterns that they look for in texts and lists

    # time, in seconds
    timeout_s: float = 30.0  # deadline of a request, and the most that its header may ask for
    body_timeout_s: float = 20.0  # from the end of the headers to the end of the body
    header_timeout_s: float = 10.0  # from the first byte, or from connecting, to the end of the headers
    send_timeout_s: float = 10.0  # a client that reads less than 256 KiB of its response in it is dropped
    keep_alive_s: float = 30.0  # an idle connection
    drain_delay_s: float = 0.0  # after SIGTERM: still accept, with /readyz at 503, so that balancers notice
    drain_s: float = 30.0  # then, for what is in flight
    refresh_s: float = 1.0  # how often a read-only service looks for a new state of the index

    # access
    read_token: Tokens = None
    write_token: Tokens = None
    read_only: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()  # Host headers that are answered; empty: any

    # housekeeping
    devices: tuple[str, ...] = ("cpu",)  # what searches, as /v1/index reports it
    compact_deleted: float = 0.25  # compact when this share of the rows is deleted …
    compact_min_deleted: int = 10_000  # … and at least this many rows; a share of 0: never
    max_connections: int = 1024
    max_received_bytes: int = 128 << 20  # of all large bodies that are being received and parsed
    max_unsent_bytes: int = 256 << 20  # of all responses that clients have yet to read
    log_queries: bool = False
    access_log: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                whole_number(field.name, value, 0 if field.name == "max_client_requests" else 1)
            if field.type is float and not (isinstance(value, (int, float)) and 0 <= value < 1e9):
                raise InputError(f"{field.name} must be a number of at least 0, got {value!r}")
        for name in ("read_token", "write_token"):
            for token in listed(getattr(self, name)):
                if not (token.isascii() and token.isprintable() and len(token) >= 8):
                    raise InputError(
                        f"{name} must have at least 8 printable ASCII characters, got {len(token)}",
                        hint='make one with: python -c "import secrets; print(secrets.token_urlsafe())"',
                    )
        if {*listed(self.read_token)} & {*listed(self.write_token)}:
            raise InputError(
                "read_token and write_token are equal, so every reader may write",
                hint="use two tokens, or the write token alone",
            )
        if "*" in self.cors_origins and self.read_token is None and self.write_token is None:
            raise InputError(
                "with the CORS origin '*' and no tokens any web page could read and change the index",
                hint="name the origins, or configure tokens",
            )


def number_limits(settings: Settings) -> dict[str, int]:
    """The most that the numeric options of a search may be."""
    most = 2**31 - 1
    return {"k": settings.max_k, "candidates": settings.max_k, "per_thread": most, "queue": most}


LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(host: str) -> bool:
    """Whether an address to bind to is reachable from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
