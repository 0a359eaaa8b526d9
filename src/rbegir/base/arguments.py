"""Ids, texts and attributes as callers give them, checked and brought into one form: Arrow arrays.

Ids are int64 or strings, texts are UTF-8, attributes are columns of plain Arrow types. A value that does not
fit is refused with its position and never converted silently: an int64 column takes whole numbers, a double
column any finite number, a string column strings. A missing value is None; NaN is refused, because it is
neither a value nor missing.

An index, a cluster and a client all check their arguments here, so a mistake reads the same everywhere.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.errors import InputError, MismatchError

MAX_TEXT_BYTES = 2**15 - 1  # so that a chunk of rows fits Arrow's 32-bit offsets
MAX_COLUMNS = 256  # attributes of an index: every hit shows all of them
RESERVED = ("id", "text", "row", "score")
VECTORS_HINT = "add vectors with index.add_codes(binarizer.encode_keywords(vectors), texts=…)"
_PLAIN = {
    str(t): t
    for t in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.date32(),
        pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"),
    )
}  # fmt: skip
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([A-Za-z0-9_+:/-]{1,64})\]")


@contextlib.contextmanager
def fitting(what: str, hint: str) -> Iterator[None]:
    """Turn a MemoryError into an InputError that says what did not fit, and the way out."""
    try:
        yield
    except MemoryError as error:  # of Python, of Arrow and of the native module
        raise InputError(f"there is not enough memory for {what}", hint=hint) from error


def check_texts(texts: Any, argument: str = "texts") -> pa.Array:
    """A list of str, or an Arrow or NumPy array of strings → a string array without nulls."""
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__len__"):
        raise InputError(
            f"{argument} must be a list of texts, got {type(texts).__name__}",
            hint=f"for a single text write {argument}=[text]",
        )
    if isinstance(texts, np.ndarray) and texts.ndim == 2:
        raise InputError(
            f"{argument} must be a list of texts, got {texts.dtype} {list(texts.shape)}", hint=VECTORS_HINT
        )
    array = _strings(texts, argument)
    if array.null_count:
        place = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(
            f"{argument}[{place}] is None, expected a text", hint="leave out rows without a text"
        )
    return array


def check_queries(queries: Any) -> list[str]:
    """Texts to search for → a list of str. A plain list of str, the usual case, is returned as it is."""
    if isinstance(queries, list) and all(isinstance(text, str) for text in queries):
        return queries
    texts: list[str] = check_texts(queries, "queries").to_pylist()
    return texts


def check_ids(ids: Any, argument: str = "ids") -> pa.Array:
    """A list of int or of str, or such an array → an int64 or string array without nulls."""
    if isinstance(ids, (str, bytes)) or not hasattr(ids, "__len__"):
        raise InputError(
            f"{argument} must be a list of int or str, got {type(ids).__name__}",
            hint=f"for a single id write {argument}=[id]",
        )
    array = _arrow(ids, argument)
    if pa.types.is_null(array.type) and not len(array):
        return pa.array([], pa.int64())
    if pa.types.is_integer(array.type):
        array = _cast(array, pa.int64(), argument)
    elif _is_text(array.type):
        array = _strings(array, argument)
    else:
        raise InputError(f"{argument} must be 64-bit integers or strings, got {array.type}")
    if array.null_count:
        place = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(f"{argument}[{place}] is None, expected an id")
    return array


def refuse_repeats(ids: pa.Array, hint: str = "give every id once in a call") -> None:
    """Refuse an id that is given more than once."""
    if len(pc.unique(ids)) == len(ids):
        return
    counts = pc.value_counts(ids)
    twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    raise InputError(
        f"ids holds {twice[0].as_py()!r} more than once ({len(twice)} such ids)",
        hint=hint,
    )


def check_attributes(attributes: Any, count: int, known: Mapping[str, str]) -> dict[str, pa.Array]:
    """Columns by name, an Arrow table or batch, or one dict per keyword → arrays of the index's types."""
    if attributes is None:
        return {}
    columns: dict[str, pa.Array] = {}
    for name, values in _by_column(attributes, known).items():
        _check_name(name)
        argument = f"attributes[{name!r}]"
        array = _arrow(values, argument)
        if len(array) != count:
            raise InputError(f"{argument} has {len(array)} values for {count} keywords")
        if pa.types.is_null(array.type) and name not in known:
            continue  # nothing but None: the column need not exist
        columns[name] = _typed(array, known.get(name), argument)
    return columns


def _typed(array: pa.Array, known: str | None, argument: str) -> pa.Array:
    if _is_text(array.type):
        array = _strings(array, argument)
    if pa.types.is_floating(array.type):
        finite = pc.fill_null(pc.is_finite(array), True)
        if not pc.all(finite).as_py() and len(array):
            place = int(np.flatnonzero(~finite.to_numpy(zero_copy_only=False))[0])
            raise InputError(
                f"{argument}[{place}] is {array[place].as_py()}", hint="use None for a missing value"
            )
    if known is None:
        if type_named(str(array.type)) is None:
            raise InputError(
                f"{argument} has the type {array.type}, which cannot be stored",
                hint="use bool, integers, float, double, string, date32 or timestamp",
            )
        return array
    dtype = type_named(known)
    numbers = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    to_number = pa.types.is_integer(dtype) or pa.types.is_floating(dtype)
    times = pa.types.is_timestamp(array.type) and pa.types.is_timestamp(dtype)
    if array.type == dtype or pa.types.is_null(array.type) or (numbers and to_number) or times:
        return _cast(array, dtype, argument)
    raise MismatchError(f"{argument} has the type {array.type}, in this index it is {known}")


def _by_column(attributes: Any, known: Mapping[str, str]) -> dict[Any, Any]:
    if hasattr(attributes, "to_dict") and hasattr(attributes, "columns"):  # a pandas DataFrame
        attributes = pa.Table.from_pandas(attributes, preserve_index=False)
    if isinstance(attributes, (pa.Table, pa.RecordBatch)):
        attributes = dict(zip(attributes.schema.names, attributes.columns, strict=True))
    if isinstance(attributes, Mapping):
        _check_count(attributes, known)
        return dict(attributes)
    if isinstance(attributes, Sequence) and all(isinstance(row, Mapping) for row in attributes):
        names = dict.fromkeys(name for row in attributes for name in row)
        _check_count(names, known)
        return {name: [row.get(name) for row in attributes] for name in names}
    raise InputError(
        "attributes must be columns by name, an Arrow table or one dict per keyword, "
        f"got {type(attributes).__name__}"
    )


def _check_count(names: Mapping[Any, Any], known: Mapping[str, str]) -> None:
    """Refuse new columns beyond MAX_COLUMNS."""
    total = len(known.keys() | names.keys())
    if total > MAX_COLUMNS and total > len(known):
        raise InputError(
            f"the index would have {total} attribute columns, at most {MAX_COLUMNS} are kept",
            hint="keep rare attributes in one column; compact drops columns without values",
        )


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name or len(name) > 200:
        raise InputError(f"the name of an attribute must be a text of 1 to 200 characters, got {name!r}")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise InputError(f"the name of an attribute must be valid Unicode, got {name!r}")
    if name in RESERVED:
        raise InputError(
            f"an attribute cannot be called {name!r}", hint=f"reserved are {', '.join(RESERVED)}"
        )


def _arrow(values: Any, argument: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise InputError(f"{argument} must be a list, one value per keyword, got {type(values).__name__}")
    try:
        if isinstance(values, np.ndarray):
            if values.ndim != 1:
                raise InputError(f"{argument} must have one dimension, got {values.ndim}")
            values = values.tolist() if values.dtype.kind in "OU" else values
        with fitting(f"these {argument}", "give fewer at a time; nothing was changed"):
            return pa.array(values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{argument} must hold values of one type: {str(error).splitlines()[0]}") from error


def _strings(values: Any, argument: str) -> pa.Array:
    array = _arrow(values, argument)
    if pa.types.is_null(array.type):
        array = array.cast(pa.string())
    if not _is_text(array.type):
        raise InputError(f"{argument} must hold texts, got {array.type}")
    lengths = pc.binary_length(array)
    if len(array) and (pc.max(lengths).as_py() or 0) > MAX_TEXT_BYTES:
        place = int(np.argmax(pc.fill_null(lengths, 0).to_numpy()))
        raise InputError(
            f"{argument}[{place}] has {lengths[place].as_py()} bytes, at most {MAX_TEXT_BYTES} are kept"
        )
    return _cast(array, pa.string(), argument)


def _is_text(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(dtype) or pa.types.is_large_string(dtype) or pa.types.is_string_view(dtype)
    )


def _cast(array: pa.Array, dtype: pa.DataType, argument: str) -> pa.Array:
    try:
        return array.cast(dtype)
    except pa.ArrowException as error:
        raise InputError(f"{argument} does not fit {dtype}: {str(error).splitlines()[0]}") from error


def type_named(name: object) -> pa.DataType | None:
    """The Arrow type of a stored name, or None for a type that columns cannot have."""
    if not isinstance(name, str):
        return None
    zoned = _ZONED.fullmatch(name)
    return pa.timestamp(zoned[1], tz=zoned[2]) if zoned else _PLAIN.get(name)
