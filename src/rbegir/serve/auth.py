"""Who may do what: bearer tokens for reading, others for changing.

A write token also reads. Without tokens everyone may do everything; `server.py` allows that on loopback only.
Then the Host header must name this machine, so that a web page cannot reach the service through a name of its
own that resolves to 127.0.0.1, and a change must not come from a page of another origin, which could do harm
without reading the response. Tokens are compared in constant time.
"""

import hmac
import os
import stat
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from rbegir.errors import FileError, InputError
from rbegir.serve.settings import Settings, Tokens, listed
from rbegir.wire.problems import Problem

REALM = {"WWW-Authenticate": 'Bearer realm="rbegir"'}


def load_token(kind: str, file: Path | None, environment: Mapping[str, str] = os.environ) -> Tokens:
    """The tokens for "read" or "write": from a file, or else from RBEGIR_READ_TOKEN or RBEGIR_WRITE_TOKEN.

    Several are given one per line, so that clients can be told apart.
    """
    if file is None:
        return _lines(environment.get(f"RBEGIR_{kind.upper()}_TOKEN", ""))
    try:
        if file.stat().st_mode & stat.S_IROTH:
            raise InputError(
                f"the {kind} token file {file} can be read by every user of this machine",
                hint=f"chmod 600 {file}",
            )
        tokens = _lines(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise FileError(f"cannot read the {kind} token from {file}: {reason}") from None
    if tokens is None:
        raise InputError(f"the {kind} token file {file} is empty")
    return tokens


def _lines(text: str) -> Tokens:
    found = tuple(line.strip() for line in text.splitlines() if line.strip())
    return found if len(found) > 1 else found[0] if found else None


class Guard:
    """Decides by the headers of a request."""

    def __init__(self, settings: Settings) -> None:
        self._write = [token.encode() for token in listed(settings.write_token)]
        self._read = [token.encode() for token in listed(settings.read_token)] + self._write
        self._open = not self._read
        self._hosts = settings.allowed_hosts
        self._origins = settings.cors_origins

    def check_host(self, headers: Sequence[bytes]) -> None:
        """Refuse a foreign Host header, and more than one."""
        if len(headers) > 1:
            raise Problem("bad-host", "there is more than one Host header", hint="send one")
        if not self._hosts:
            return
        host = b"".join(headers).decode("latin-1").lower()
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if name not in self._hosts:
            raise Problem(
                "bad-host",
                "without tokens the service answers to local names only",
                hint=f"use one of {', '.join(self._hosts)}, or configure tokens",
            )

    def check_origin(self, head: Mapping[bytes, bytes]) -> None:
        """Refuse a change that a page of another origin makes a browser send. Tokens prove more."""
        if not self._open:
            return
        origin, site = head.get(b"origin"), head.get(b"sec-fetch-site")
        if site is None:  # an old browser, or none
            ours = origin is None or origin.partition(b"://")[2] == head.get(b"host")
        else:
            ours = site in (b"same-origin", b"none")
        if not ours and (origin or b"").decode("latin-1") not in self._origins:
            raise Problem(
                "bad-origin",
                "a page of another origin cannot change the index of a service without tokens",
                hint="name the origin with --cors-origin, or configure tokens",
            )

    def check(self, authorization: str | None, *, write: bool) -> None:
        """Refuse a request without the right token."""
        if self._open:
            return
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Problem(
                "unauthorized",
                "a bearer token is needed",
                hint="send the header: Authorization: Bearer TOKEN",
                headers=REALM,
            )
        known = self._known(authorization)
        if known is None:
            raise Problem("unauthorized", "the token is not known", hint="check the token", headers=REALM)
        if write and self._read[known] not in self._write:
            raise Problem("forbidden", "the token may read but not write", hint="use the write token")

    def client(self, authorization: str | None, address: str) -> Hashable:
        """Whose request it is: the number of its token, or its address if it has no known token."""
        known = None if self._open else self._known(authorization)
        return address if known is None else known

    def _known(self, authorization: str | None) -> int | None:
        """The number of the token that was sent; all are compared, each in constant time."""
        token = (authorization or "").partition(" ")[2].strip().encode("utf-8", "surrogateescape")
        found = None
        for number, known in enumerate(self._read):
            if hmac.compare_digest(token, known):
                found = number
        return found
