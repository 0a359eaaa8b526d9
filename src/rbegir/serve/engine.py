"""What the service asks of an index: `rbegir.Index` is one, a cluster is another.

All calls block and may come from several threads at once; changes come from one thread only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Unpack, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.codes.planes import Codes
from rbegir.encode.encoder import Encoder
from rbegir.index.query import Filters, SearchOptions
from rbegir.search.hits import Hits


class Engine(Protocol):
    """The methods of `rbegir.Index` that a service needs."""

    @property
    def model(self) -> Encoder: ...
    def __len__(self) -> int: ...
    def search_codes(
        self, codes: Codes | npt.NDArray[Any], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits: ...
    def upsert(self, texts: Sequence[str], ids: Any, attributes: Any = None) -> npt.NDArray[Any]: ...
    def delete(self, ids: Any) -> int: ...
    def get(self, ids: Any) -> list[dict[str, Any] | None]: ...
    def info(self) -> dict[str, Any]: ...
    def compact(self) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class Refreshing(Protocol):
    """An engine that can look for what other writers have done."""

    def refresh(self) -> None: ...


@runtime_checkable
class Exporting(Protocol):
    """An engine that can hand out all of its keywords."""

    def batches(self) -> Iterator[pa.RecordBatch]: ...


@runtime_checkable
class Explaining(Protocol):
    """An engine that can show the codes of keywords and rank them by fewer planes."""

    def codes(self, ids: Any) -> Codes: ...
    def coarse_rows(
        self, values: npt.NDArray[np.int16], k: int, *, planes: int, **filters: Unpack[Filters]
    ) -> npt.NDArray[np.int64]: ...
