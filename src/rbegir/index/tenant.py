"""Tenants: many small sets of keywords in one index, each searched as if it were alone.

    index = Index.create("ads.rbe", model, tenant="shop")
    index.add(["red shoes"], attributes={"shop": ["a"]})
    index.search("shoes", tenant="a")

A tenant is a value of one attribute, and every keyword has one. Each segment has a table from a tenant to its
positions (`keys.py`). Positions stay in the order of rows, so hits and their order are those of a filter by
the same attribute.

A small tenant is *gathered*: the codes at its positions are copied in memory, as a segment of their own, and
everything else is read through the positions. No work depends on how many keywords other tenants have. A
large tenant is *masked*: the index is scanned as with a filter. To gather a keyword costs as much as to scan
about twenty, so a tenant is masked if it has at least a SHARE-th of all keywords. Codes in memory are scanned
by the CPU; if the index is on a GPU, tenants with LARGE keywords are masked too, so that the GPU scans them.

Keywords of a tenant are not stored side by side, because every result relies on positions being in the order
of rows. Segments never change, so what was gathered or masked of a segment, deleted keywords included, is
cached from state to state; each state masks its deleted keywords. The tenants searched last are cached, up to
KEPT_TENANTS of them, in KEPT_BYTES or a byte per keyword of the index, whichever is more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.base import masks
from rbegir.base.arguments import check_tenant, one_tenant
from rbegir.codes import layout
from rbegir.index.columns import Int64s
from rbegir.index.segment import Segment
from rbegir.index.snapshot import LiveSegment, Snapshot

SHARE = 4
LARGE = 1 << 20
KEPT_TENANTS = 64
KEPT_BYTES = 32 << 20


def within(state: Snapshot, tenant: str | int | None) -> Snapshot:
    """The part of a state that belongs to a tenant; all of it if `tenant` is None."""
    if tenant is None:
        return state
    tenant = one_tenant(tenant)
    parts, known = state.tenants.pop(tenant, ({}, None))
    found: TenantSnapshot
    if known is not None:
        found = known
    else:
        manifest = state.manifest
        wanted = check_tenant(tenant, manifest.tenant, manifest.columns.get(manifest.tenant or ""))
        found = TenantSnapshot(state, wanted, parts)
        others = {name: _bytes(held) for name, (held, _) in [*state.tenants.items()]}
        used, room = _bytes(found.parts) + sum(others.values()), max(KEPT_BYTES, state.keywords)
        while others and (used > room or len(others) >= KEPT_TENANTS):
            oldest = next(iter(others))
            used -= others.pop(oldest)
            state.tenants.pop(oldest, None)
    found.lent = state.lent
    state.tenants[tenant] = found.parts, found
    return found


class Part:
    """The keywords of one tenant in one segment, deleted ones included."""

    def __init__(self, segment: Segment, tenant: pa.Array) -> None:
        self._segment, self._tenant = segment, tenant
        self.most = segment.most_of_tenant(tenant)

    @cached_property
    def gathered(self) -> TenantSegment:
        return TenantSegment(self._segment, self._segment.of_tenant(self._tenant))

    @cached_property
    def mask(self) -> masks.Mask:
        flags = np.zeros(self._segment.count, np.bool_)
        flags[self._segment.of_tenant(self._tenant)] = True
        return masks.freeze(masks.from_bools(flags))

    @property
    def bytes(self) -> int:
        copied = self.gathered.packed().nbytes + 16 * self.most if "gathered" in vars(self) else 0
        return copied + (self.mask.nbytes if "mask" in vars(self) else 0)


def _bytes(parts: dict[Segment, Part]) -> int:
    return sum(part.bytes for part in parts.values())


class TenantSnapshot(Snapshot):
    """The live keywords of one tenant in one state of an index."""

    def __init__(self, state: Snapshot, tenant: pa.Array, known: dict[Segment, Part]) -> None:
        self.manifest, self.deletes, self.accelerated = state.manifest, state.deletes, state.accelerated
        self.tenants, self.items = {}, {}
        self.files = state.files  # including segments without keywords of the tenant
        counts = {one.segment: one.entry.count for one in state.segments}
        self.parts = {one: known.get(one) or Part(one, tenant) for one in counts}
        own = sum(part.most for part in self.parts.values())
        self.gathered = SHARE * own < sum(counts.values()) and not (state.accelerated and own >= LARGE)
        self.segments = []
        for one in state.segments:
            part = self.parts[one.segment]
            if not part.most:
                continue
            segment: Segment = part.gathered if self.gathered else one.segment
            if not self.gathered:
                live = masks.both(part.mask, one.live)
            elif (live := one.live) is not None:
                live = masks.from_bools(masks.contains(live, part.gathered.at))
            count = segment.count if live is None else masks.size(live)
            if count:
                entry = replace(one.entry, count=segment.count, deletes=None, deleted=segment.count - count)
                self.segments.append(LiveSegment(segment, entry, None, live=live, start=one.start))
        self.check_mapped()

    def original(self, positions: Int64s) -> Int64s:
        def place(one: LiveSegment, at: Int64s) -> Int64s:
            return one.start + (one.segment.at[at] if isinstance(one.segment, TenantSegment) else at)

        return self._gathered(positions, np.int64, place, -1)


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
