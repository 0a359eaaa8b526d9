"""Keywords in memory, in the form that a segment is written from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rbegir.codes.planes import Codes
from rbegir.index.columns import Int64s, int64_array


@dataclass
class KeywordRows:
    """Keywords in memory, as a `Table` from which a segment can be written."""

    packed: Codes
    first_row: int
    given_ids: pa.Array | None  # int64 or string; None: the rows
    columns: dict[str, pa.Array]  # text, if given, and attributes

    @property
    def count(self) -> int:
        return len(self.packed)

    @property
    def has_ids(self) -> bool:
        return self.given_ids is not None

    @property
    def types(self) -> dict[str, pa.DataType]:
        return {name: column.type for name, column in self.columns.items()}

    def rows(self, positions: Int64s) -> npt.NDArray[np.int64]:
        return self.first_row + positions

    def ids(self, positions: Int64s) -> pa.Array:
        if self.given_ids is None:
            return int64_array(self.rows(positions))
        return self.given_ids.take(int64_array(positions))

    def column(self, name: str, positions: Int64s) -> pa.Array:
        return self.columns[name].take(int64_array(positions))

    def codes(self, positions: Int64s) -> Codes:
        return self.packed[positions]

    def slice(self, start: int, stop: int) -> KeywordRows:
        """The rows start … stop − 1."""
        return KeywordRows(
            self.packed[start:stop],
            self.first_row + start,
            None if self.given_ids is None else self.given_ids.slice(start, stop - start),
            {name: column.slice(start, stop - start) for name, column in self.columns.items()},
        )
