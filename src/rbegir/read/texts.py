"""What is to be searched: texts, with ids and attributes if there are any."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from rbegir.read.rows import Checker, Stream, text_column
from rbegir.read.source import Source, open_source, require_columns


class TextStream(Stream):
    """Texts as RecordBatches: `text` (string), `id` if the file has it, then its other columns."""

    what = "text"
    _others = True

    def __init__(self, source: Source, *, text_column: str, id_column: str, strict: bool) -> None:
        super().__init__(source, strict=strict)
        require_columns(source, [("text", text_column)])
        self._names = [text_column]
        self._text = text_column
        self._id = id_column
        others = [name for name in source.columns if name not in (text_column, id_column)]
        require_columns(source, [("text", name) for name in others])
        self.has_ids = id_column in source.columns
        if self.has_ids:
            require_columns(source, [("id", id_column)])
        self._order = [text_column, *([id_column] if self.has_ids else []), *others]
        self.attributes = tuple(others)

    def _convert(self, batch: pa.RecordBatch, checker: Checker) -> pa.RecordBatch:
        columns = {name: batch.column(name) for name in self._order}
        columns[self._text] = text_column(columns[self._text], self._text, self.path, checker)
        renamed = {self._text: "text", self._id: "id"}
        return pa.RecordBatch.from_arrays(
            list(columns.values()), names=[renamed.get(name, name) for name in columns]
        )


def read_texts(
    path: str | Path, *, text_column: str = "text", id_column: str = "id", strict: bool = False
) -> TextStream:
    """Stream texts from lines (.txt) or a table with `text`, optional `id`, and attribute columns.

    Batches have the columns `text`, `id` (only if the file has it, null allowed) and the attributes with the
    types of the file; for CSV, TSV and JSONL those are inferred from its first block.
    """
    return TextStream(open_source(path), text_column=text_column, id_column=id_column, strict=strict)
