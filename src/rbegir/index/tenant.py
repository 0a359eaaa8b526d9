"""Tenants: many small sets of keywords in one index, each searched as if it were alone.

    index = Index.create("ads.rbe", model, tenant="shop")
    index.add(["red shoes"], attributes={"shop": ["a"]})
    index.search("shoes", tenant="a")

A tenant is a value of one attribute, and every keyword has one. Each segment has a table from a tenant to its
positions (`keys.py`). The codes at these positions are gathered in memory, as a segment of their own;
everything else is read through the positions. Positions stay in the order of rows, so hits and their order
are those of a filter by the same attribute, but no work depends on how many keywords other tenants have.

Keywords of a tenant are not stored side by side, because every result relies on positions being in the order
of rows. Gathered segments are cached for the most recently searched tenants, up to KEPT_TENANTS of them with
KEPT_ROWS keywords in total.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import masks
from rbegir.base.arguments import check_tenant, one_tenant
from rbegir.codes import layout
from rbegir.index.columns import Int64s
from rbegir.index.segment import Segment
from rbegir.index.snapshot import LiveSegment, Positions, Snapshot

KEPT_TENANTS = 64
KEPT_ROWS = 1 << 20


def within(state: Snapshot, tenant: str | int | None) -> Snapshot:
    """The part of a state that belongs to a tenant; all of it if `tenant` is None."""
    if tenant is None:
        return state
    tenant = one_tenant(tenant)
    found: TenantSnapshot | None = state.tenants.pop(tenant, None)
    if found is None:
        manifest = state.manifest
        wanted = check_tenant(tenant, manifest.tenant, manifest.columns.get(manifest.tenant or ""))
        found = TenantSnapshot(state, wanted)
        others = list(state.tenants.items())
        rows = found.rows_kept + sum(one.rows_kept for _, one in others)
        while others and (rows > KEPT_ROWS or len(others) >= KEPT_TENANTS):
            oldest, one = others.pop(0)
            state.tenants.pop(oldest, None)
            rows -= one.rows_kept
    state.tenants[tenant] = found
    return found


class TenantSnapshot(Snapshot):
    """The live keywords of one tenant in one state of an index."""

    def __init__(self, state: Snapshot, tenant: pa.Array) -> None:
        self.manifest, self.deletes = state.manifest, state.deletes
        self.tenants, self.items = {}, {}
        self.files = state.files  # including segments without keywords of the tenant
        self._numbers: list[int] = []  # of the segments in the index
        self.segments = []
        for number, one in enumerate(state.segments):
            found = one.segment.of_tenant(tenant)
            if one.live is not None:
                found = found[masks.contains(one.live, found)]
            if found.size:
                entry = replace(one.entry, count=found.size, deletes=None, deleted=0)
                self.segments.append(LiveSegment(TenantSegment(one.segment, found), entry, None))
                self._numbers.append(number)
        self.rows_kept = self.keywords
        self.check_mapped()

    def original(self, places: Positions) -> Positions:
        segment, position = np.full((2, *places.segment.shape), -1)
        for number, where in places.by_segment:
            gathered = self.segments[number].segment
            assert isinstance(gathered, TenantSegment)
            segment[where], position[where] = self._numbers[number], gathered.at[places.position[where]]
        return Positions(segment, position)


class TenantSegment(Segment):
    """Some keywords of a segment as a segment of their own."""

    def __init__(self, segment: Segment, at: Int64s) -> None:
        self._segment, self.at = segment, at  # [count] positions, ascending
        self.path, self.file, self.shape = segment.path, segment.file, segment.shape
        self.count, self.has_ids, self._columns = at.size, segment.has_ids, segment._columns
        self._rows_here = segment.rows(at)
        self._packed = layout.pack(segment.codes(at))
        self.known_words, self._building = None, threading.Lock()
        self.filters, self.masks = {}, WeakValueDictionary()

    def packed(self) -> npt.NDArray[np.uint8]:
        return self._packed

    def rows(self, positions: Int64s) -> Int64s:
        return self._rows_here[positions]

    def up_to(self, rows: Int64s) -> Int64s:
        return np.searchsorted(self._rows_here, rows, "right")

    def ids(self, positions: Int64s) -> pa.Array:
        return self._segment.ids(self.at[positions])

    def column(self, name: str, positions: Int64s) -> pa.Array:
        return self._segment.column(name, self.at[positions])

    def sizes(self, names: Iterable[str], positions: Int64s) -> Int64s:
        return self._segment.sizes(names, self.at[positions])

    def whole(self, name: str) -> pa.Array:
        return self._segment.ids(self.at) if name == "id" else self._segment.column(name, self.at)

    def find(self, ids: pa.Array) -> Int64s:
        found = self._segment.find(ids)
        here = np.searchsorted(self.at, found)
        there = self.at[np.minimum(here, self.count - 1)] == found
        return np.where(there, here, -1)
