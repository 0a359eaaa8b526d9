"""A record of which version of each keyword a service may hold, to check its answers against.

Versions of one id are written one after the other by one client. While a change is under way, both the
old and the new version are possible. Once it is acknowledged, only the new one is. If it failed, or its
outcome is unknown, both stay possible until the next acknowledged change.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

Version = Hashable  # None: deleted, or never there


@dataclass
class _Entry:
    possible: frozenset[Version] = frozenset([None])
    begun: list[Version] = field(default_factory=list)  # every change that was ever sent


@dataclass(frozen=True)
class Glimpse:
    """The state of an id when a question was asked."""

    possible: frozenset[Version]
    begun: int


class Ledger:
    def __init__(self, ids: range) -> None:
        self.ids = ids
        self._entries = {key: _Entry() for key in ids}

    def begin(self, key: int, version: Version) -> None:
        entry = self._entries[key]
        entry.begun.append(version)
        entry.possible |= {version}

    def acknowledge(self, key: int, version: Version) -> None:
        self.settle(key, [version])

    def settle(self, key: int, versions: Iterable[Version]) -> None:
        """After an acknowledged change it is one of these, which depends on what was there before."""
        self._entries[key].possible = frozenset(versions)

    def glimpse(self, key: int) -> Glimpse:
        entry = self._entries[key]
        return Glimpse(entry.possible, len(entry.begun))

    def glimpses(self) -> dict[int, Glimpse]:
        return {key: self.glimpse(key) for key in self.ids}

    def possible(self, key: int, since: Glimpse) -> frozenset[Version]:
        """The versions that an answer may show for an id, if it was asked at `since` and answered now."""
        return since.possible | frozenset(self._entries[key].begun[since.begun :])

    def now(self, key: int) -> frozenset[Version]:
        return self._entries[key].possible


def text_of(key: int, version: int) -> str:
    return f"item {key} version {version} {WORDS[(key + version) % len(WORDS)]}"


def version_of(key: int, text: str) -> int:
    """The version named in a text; ValueError if nobody wrote such a text."""
    parts = text.split()
    version = int(parts[3])
    if text != text_of(key, version):
        raise ValueError(text)
    return version


WORDS = (
    "red shoes",
    "blue shirt",
    "green tea",
    "city maps",
    "old clock",
    "warm coat",
    "glass bowl",
    "sea salt",
)
