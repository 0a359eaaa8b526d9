"""The three kinds of input files: clicked pairs, judged pairs (labels) and texts to search.

    pairs    query, keyword and optionally weight
    labels   query, keyword, label
    texts    text and optionally id; all other columns are attributes. In a .txt file, one text per line

Arguments give other column names; other columns of pairs and labels are ignored. Files are streamed, so they
may be larger than memory, and a stream can be iterated again (each epoch reopens the file).

    for batch in read_pairs("clicks.tsv.gz", query_column="alias", keyword_column="title"):
        batch["query"], batch["keyword"], batch["weight"]      # string, string, float32

Ids of CSV and TSV files are whole numbers if all of the first block are written as such; `00123` is not, so
then all ids are texts. `id_type` decides otherwise.

Bad rows (a lone field, null, invalid UTF-8, a text without a letter or digit or too long to store, a weight
that is not a positive finite number, an unknown label) are left out and counted in `stream.skipped`; with
strict=True the first one raises an error. A file without any usable row is always an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.read.rows import Checker, Stream, as_binary, id_texts, number_column, reject_long, text_column
from rbegir.read.source import Source, attributes_of, not_whole, open_source, require_columns

GRADES = {"bad": 0.0, "fair": 1.0, "good": 2.0, "excellent": 3.0}
_SPELLINGS = {
    way(word).encode(): grade for word, grade in GRADES.items() for way in (str, str.title, str.upper)
}
BAD_WEIGHT = "a weight that is not a positive finite number"
WHOLE_NUMBER = r"^(0|-?[1-9][0-9]{0,17})$"
BAD_LABEL = f"a label that is neither {'/'.join(GRADES)} nor a finite number"


class _TextPairs(Stream):
    """Rows of a query, a keyword and perhaps a number."""

    def __init__(self, source: Source, columns: dict[str, str], *, strict: bool) -> None:
        """`columns` has the name of each column in the file by its role."""
        super().__init__(source, strict=strict)
        require_columns(source, list(columns.items()))
        self._columns = columns
        self._names = list(dict.fromkeys(columns.values()))

    def _texts(self, batch: pa.RecordBatch, checker: Checker) -> list[pa.StringArray]:
        names = [self._columns[role] for role in ("query", "keyword")]
        return [text_column(batch.column(name), name, self.name, checker) for name in names]


class PairStream(_TextPairs):
    """Pairs as RecordBatches with the columns query, keyword (string) and weight (float32, 1 by default)."""

    what = "pair"
    schema = pa.schema([("query", pa.string()), ("keyword", pa.string()), ("weight", pa.float32())])

    def _convert(self, batch: pa.RecordBatch, checker: Checker) -> pa.RecordBatch:
        texts, name = self._texts(batch, checker), self._columns.get("weight")
        weights = np.ones(batch.num_rows, dtype=np.float32)
        if name is not None:
            with np.errstate(over="ignore", under="ignore"):
                weights = number_column(batch.column(name), name, self.name).astype(np.float32)
            checker.reject(~(np.isfinite(weights) & (weights > 0)), BAD_WEIGHT)
        return pa.RecordBatch.from_arrays([*texts, pa.array(weights)], schema=self.schema)


class LabelStream(_TextPairs):
    """Judged pairs as RecordBatches with the columns query, keyword (string) and label (float64 grade)."""

    what = "label"
    schema = pa.schema([("query", pa.string()), ("keyword", pa.string()), ("label", pa.float64())])

    def _convert(self, batch: pa.RecordBatch, checker: Checker) -> pa.RecordBatch:
        texts, name = self._texts(batch, checker), self._columns["label"]
        labels = _grades(batch.column(name), name, self.name)
        checker.reject(~np.isfinite(labels.to_numpy()), BAD_LABEL)
        return pa.RecordBatch.from_arrays([*texts, labels], schema=self.schema)


@dataclass(frozen=True)
class Reading:
    """How to read texts: the names of their columns, whether a bad row is an error, which attributes."""

    text_column: str = "text"  # "": no texts
    id_column: str = "id"
    strict: bool = False
    columns: Sequence[str] | None = None  # None: all
    id_type: str | None = None  # "int64" or "string"; None: that of the file


class TextStream(Stream):
    """Texts as RecordBatches: `text` (string), `id` if the file has it, then its other columns."""

    what = "text"

    def __init__(self, source: Source, reading: Reading) -> None:
        super().__init__(source, strict=reading.strict)
        self._text, self._id, self._id_type = reading.text_column, reading.id_column, reading.id_type
        self._others = None
        chosen = attributes_of(source, (self._text or "text", self._id), reading.columns)
        self.has_ids = not self._text or self._id in source.columns
        self._names = [self._text] if self._text else []
        require_columns(source, [("text", name) for name in self._names])
        self._order = [*self._names, *([self._id] if self.has_ids else []), *chosen]
        require_columns(source, [("id", name) for name in self._order])
        if self.has_ids and {".csv", ".tsv"} & {suffix.lower() for suffix in source.path.suffixes}:
            self._names.append(self._id)  # as text: inferred numbers would lose leading zeros
        elif self.has_ids:
            self._ids = (self._id, self._id_type)
        if reading.columns is not None:
            self._others = [name for name in self._order if name not in self._names]
        self.attributes = tuple(chosen)

    def _convert(self, batch: pa.RecordBatch, checker: Checker) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in self._order}
        if self._text:
            columns[self._text] = text_column(columns[self._text], self._text, self.name, checker)
        for name, column in columns.items():
            if name != self._id:
                reject_long(column, checker)
        if self.has_ids:
            columns[self._id] = self._as_ids(columns[self._id], checker)
        renamed = {self._text: "text", self._id: "id"}
        return pa.RecordBatch.from_arrays(
            list(columns.values()), names=[renamed.get(name, name) for name in columns]
        )

    def _as_ids(self, column: pa.Array, checker: Checker) -> pa.Array:
        """Ids of the type asked for; without one, text of CSV and TSV is read by its first block."""
        if pa.types.is_binary(column.type):
            column = id_texts(column, checker)
            if self._id_type is None and checker.good.any():
                whole = pc.match_substring_regex(column.filter(pa.array(checker.good)), WHOLE_NUMBER)
                self._id_type = "int64" if pc.all(whole).as_py() else "string"
            column = pc.if_else(pa.array(checker.good), column, None)
        if self._id_type is None:
            return column
        try:
            return column.cast(self._id_type)
        except pa.ArrowInvalid as error:
            raise not_whole(self.name, str(error).splitlines()[0]) from None


def _grades(column: pa.Array, name: str, file: str) -> pa.DoubleArray:
    """Words and numbers as grades, NaN for anything else."""
    numbers = pa.array(number_column(column, name, file))
    words = as_binary(column)
    if words is None:
        return numbers
    position = pc.index_in(words, pa.array(list(_SPELLINGS), pa.binary()))
    return pc.coalesce(pc.take(pa.array(list(_SPELLINGS.values())), position), numbers)


def read_pairs(
    path: Any,
    *,
    query_column: str = "query",
    keyword_column: str = "keyword",
    weight_column: str | None = "weight",
    strict: bool = False,
) -> PairStream:
    """Stream clicked pairs from a file, a DataFrame, an Arrow table or a list of (query, keyword) pairs.

    The column `weight` is used if it exists; weight_column=None ignores it.
    """
    source = open_source(path)
    columns = {"query": query_column, "keyword": keyword_column}
    if weight_column is not None and (weight_column != "weight" or "weight" in source.columns):
        columns["weight"] = weight_column
    return PairStream(source, columns, strict=strict)


def read_labels(
    path: str | Path,
    *,
    query_column: str = "query",
    keyword_column: str = "keyword",
    label_column: str = "label",
    strict: bool = False,
) -> LabelStream:
    """Stream judged pairs; bad, fair, good and excellent become 0, 1, 2 and 3, numbers stay as they are."""
    columns = {"query": query_column, "keyword": keyword_column, "label": label_column}
    return LabelStream(open_source(path), columns, strict=strict)


def read_texts(
    path: Any,
    *,
    text_column: str = "text",
    id_column: str = "id",
    strict: bool = False,
    id_type: str | None = None,
    columns: Sequence[str] | None = None,
) -> TextStream:
    """Stream texts from lines (.txt) or from a table with `text`, optional `id`, and attribute columns.

    Batches have the columns `text`, `id` (if the file has it, null allowed) and the attributes. Attributes
    keep the types of the file; for CSV, TSV and JSONL types are inferred from the first block. `path` may
    also be `-` for standard input, an Arrow table, a DataFrame or a list. `id_type` is "int64" or "string".
    `columns` are the attributes to read, by default all.
    """
    return TextStream(open_source(path), Reading(text_column, id_column, strict, columns, id_type))


def read_attributes(
    path: Any,
    *,
    id_column: str = "id",
    strict: bool = False,
    id_type: str | None = None,
    columns: Sequence[str] | None = None,
) -> TextStream:
    """Stream ids and attributes from a table, as `read_texts` does; its texts, if it has any, are ignored."""
    return TextStream(open_source(path), Reading("", id_column, strict, columns, id_type))
