"""Ids, texts and attributes from callers, checked and converted to one form: Arrow arrays.

Ids are int64 or strings, texts are UTF-8, attributes are columns of plain Arrow types. A value that does not
fit is refused with its position and never converted silently: an int64 column takes whole numbers, a double
column any finite number, a string column strings. A missing value is None; NaN is refused, because it is
neither a value nor missing.

Indexes, clusters and clients all check their arguments here, so they report the same errors.
"""

import contextlib
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.errors import InputError, MismatchError

MAX_TEXT_BYTES = 2**15 - 1  # so that a chunk of rows fits Arrow's 32-bit offsets
MAX_COLUMNS = 256  # attributes of an index: every hit shows all of them
RESERVED = ("id", "text", "row", "score")
LEAVE_OUT = "name those to store with --columns (columns= in Python)"  # part of a hint
VECTORS_HINT = "only an index made with a Binarizer takes vectors"
_PLAIN = {
    str(t): t
    for t in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(),
        pa.uint64(), pa.float32(), pa.float64(), pa.string(), pa.date32(),
        pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"),
    )
}  # fmt: skip
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,18}")
_LIST = re.compile(r"list<item: (string|u?int(?:8|16|32|64))>")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([A-Za-z0-9_+:/-]{1,64})\]")


@contextlib.contextmanager
def fitting(what: str, hint: str) -> Iterator[None]:
    """Turn a MemoryError into an InputError that says what did not fit and what to do about it."""
    try:
        yield
    except MemoryError as error:  # of Python, of Arrow and of the native module
        raise InputError(f"there is not enough memory for {what}", hint=hint) from error


def check_texts(
    texts: Any, argument: str = "texts", vectors: str = VECTORS_HINT, *, missing: bool = False
) -> pa.Array:
    """Convert a list of str, or an Arrow or NumPy array of strings, to a string array; with `missing`, some
    may be None.

    `vectors` is the hint for a caller who gives these instead.
    """
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__len__"):
        raise InputError(
            f"{argument} must be a list of texts, got {type(texts).__name__}",
            hint=f"for a single text write {argument}=[text]",
        )
    if isinstance(texts, np.ndarray) and texts.ndim == 2:
        raise InputError(
            f"{argument} must be a list of texts, got {texts.dtype} {list(texts.shape)}", hint=vectors
        )
    if hasattr(texts, "iloc") and hasattr(texts, "columns"):  # a pandas DataFrame
        raise InputError(
            f"{argument} must be a list of texts, got {type(texts).__name__}", hint="give one of its columns"
        )
    try:
        array = _strings(texts, argument)
    except InputError:
        array = _strings(_without_gaps(texts, argument), argument)
    return array if missing else _complete(array, argument, "a text", hint="leave out rows without a text")


def _without_gaps(values: Any, argument: str) -> Any:
    """A list of texts with None for what pandas has in place of a missing one: NaN or NA."""
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(listed, (list, tuple)) or not any(isinstance(one, str) for one in listed):
        return values
    out: list[str | None] = []
    for place, one in enumerate(listed):
        nan = isinstance(one, float) and math.isnan(one)
        if not (isinstance(one, str) or one is None or nan or type(one).__name__ == "NAType"):
            raise InputError(
                f"{argument} must hold values of one type, but {argument}[{place}] is of type "
                f"{type(one).__name__}",
                hint="texts are of type str",
            )
        out.append(one if isinstance(one, str) else None)
    return out


def check_queries(queries: Any) -> list[str]:
    """Convert query texts to a list of str. A plain list of str, the usual case, is returned unchanged."""
    if isinstance(queries, list) and all(isinstance(text, str) for text in queries):
        return queries
    texts: list[str] = check_texts(queries, "queries").to_pylist()
    return texts


def as_batch(given: Any) -> Any:
    """Vectors in lists as an array, and a single vector as a batch of one; other values stay as they are."""
    if isinstance(given, np.ndarray) and given.dtype == object:
        given = given.tolist()
    if isinstance(given, (list, tuple)) and given:
        first = given[0]
        if (isinstance(first, (list, tuple)) or getattr(first, "ndim", 0) == 1) and len(first):
            first = first[0]
        if isinstance(first, Real):
            try:
                array = np.asarray(given)
            except ValueError as error:
                raise InputError("vectors must have one length, got several") from error
            given = array if array.dtype.kind in "fiu" else given
    numbers = isinstance(given, np.ndarray) and given.dtype.kind not in "OUSTM"
    return given[None] if (numbers or hasattr(given, "detach")) and given.ndim == 1 else given


def check_ids(ids: Any, argument: str = "ids", *, unique: bool = False) -> pa.Array:
    """Convert a list or array of int or str to an int64 or string array without nulls."""
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
    _complete(array, argument, "an id")
    if unique:
        refuse_repeats(array)
    return array


BETWEEN = r"[^\pL\pM\pN]"  # a character between words, for RE2


def words_in(phrase: str) -> list[str]:
    """Its runs of letters, marks and digits."""
    return "".join(one if unicodedata.category(one)[0] in "LMN" else " " for one in phrase).split()


def words_pattern(phrase: str) -> str | None:
    """A regular expression (RE2) for texts that contain the words of a phrase side by side, in any case; None
    if the phrase has no word."""
    words = words_in(phrase)
    return f"(?i)(?:^|{BETWEEN}){f'{BETWEEN}+'.join(words)}(?:$|{BETWEEN})" if words else None


def any_word_pattern(words: Sequence[str]) -> str:
    """A pattern for texts that contain at least one of these words."""
    return f"(?i)(?:^|{BETWEEN})(?:{'|'.join(words)})(?:$|{BETWEEN})"


def _complete(array: pa.Array, argument: str, expected: str, hint: str = "") -> pa.Array:
    """Return the array, or raise if a value is missing."""
    if array.null_count:
        place = pc.index(array.is_null(), True).as_py()
        raise InputError(f"{argument}[{place}] is None, expected {expected}", hint=hint)
    return array


def refuse_repeats(ids: pa.Array, hint: str = "give every id once in a call") -> None:
    """Refuse an id that is given more than once."""
    if len(pc.unique(ids)) == len(ids):
        return
    counts = pc.value_counts(ids)
    twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    raise InputError(f"ids holds {twice[0].as_py()!r} more than once ({len(twice)} such ids)", hint=hint)


def check_deletion(ids: Any, where: Any, tenant: Any) -> None:
    """Refuse a deletion that does not say what to delete, or says it twice."""
    if (ids is not None and where is not None) or (ids is None and where is None and tenant is None):
        raise InputError(
            "delete needs ids or where, and not both", hint="where='id is not null' deletes everything"
        )


def check_attributes(attributes: Any, count: int, known: Mapping[str, str]) -> dict[str, pa.Array]:
    """Convert columns by name, a table, or one dict per keyword to arrays of the index's column types."""
    if attributes is None:
        return {}
    columns: dict[str, pa.Array] = {}
    for name, values in _by_column(attributes, known).items():
        check_name(name)
        argument = f"attributes[{name!r}]"
        array = _arrow(values, argument)
        if len(array) != count:
            raise InputError(f"{argument} has {len(array)} values for {count} keywords")
        if pa.types.is_null(array.type) and name not in known:
            continue  # only None: no column is needed
        columns[name] = _typed(array, known.get(name), argument)
    return columns


def named_values(attributes: Any, columns: Mapping[str, pa.Array], count: int) -> list[dict[str, pa.Scalar]]:
    """The attributes that each keyword names, from the checked columns; records may leave some out."""
    named = attributes if isinstance(attributes, Sequence) else [columns] * count
    return [
        {name: column[row] for name, column in columns.items() if name in own}
        for row, own in enumerate(named)
    ]


def check_tenants(columns: Mapping[str, pa.Array], tenant: str | None) -> None:
    """Refuse keywords without a tenant, if the index has a tenant column."""
    if tenant is None:
        return
    if tenant not in columns:
        raise InputError(
            f"attributes lack {tenant!r}, which names the tenant of each keyword",
            hint="give every keyword a value in that column",
        )
    argument, dtype = f"attributes[{tenant!r}]", columns[tenant].type
    if not can_name(str(dtype)):
        raise InputError(
            f"{argument} must be strings or 64-bit integers, since it names tenants, got {dtype}"
        )
    _complete(columns[tenant], argument, "a tenant")


def can_name(dtype: str) -> bool:
    """Whether a column of this type can name the tenants or the items of keywords."""
    return dtype in ("string", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")


def one_tenant(tenant: Any) -> str | int:
    """The name of a tenant as a str or int; NumPy integers are accepted."""
    if isinstance(tenant, bool) or not isinstance(tenant, (str, int, np.integer)):
        raise InputError(f"tenant must be a string or an integer, got {tenant!r}")
    return tenant if isinstance(tenant, str) else int(tenant)


def check_tenant(tenant: str | int, column: str | None, dtype: str | None) -> pa.Array:
    """One tenant as an array; `dtype` is the type of the column, None before the first keyword."""
    if column is None:
        raise InputError(
            "this index has no tenants", hint="name their column when it is made: Index.create(…, tenant=…)"
        )
    if dtype is not None and (dtype == "string") != isinstance(tenant, str):
        raise MismatchError(f"tenant is {tenant!r}, in this index {column!r} is {dtype}")
    if isinstance(tenant, str):
        return _strings([tenant], "tenant")
    if not -(2**63) <= tenant < 2**63:
        raise InputError(f"tenant must be a 64-bit integer, got {tenant}")
    return pa.array([tenant], pa.int64())


def tenant_named(text: str | None, info: Mapping[str, Any]) -> str | int | None:
    """Parse a tenant given on a command line or in a URL, for the index that `info` describes; None: none."""
    if text is None or info["attributes"].get(info.get("tenant"), "string") == "string":
        return text
    if (number := number_named(text)) is None:
        raise InputError(f"the tenants of this index are whole numbers, got {text!r}")
    return number


def number_named(text: str) -> int | None:
    """The 64-bit integer that is written as `text`; None for anything else, such as 007, 1_0 or 1.0."""
    number = int(text) if _WHOLE.fullmatch(text) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


def _typed(array: pa.Array, known: str | None, argument: str) -> pa.Array:
    if _is_text(array.type):
        array = _strings(array, argument)
    if is_list(array.type):
        array = _lists(array, argument)
    if pa.types.is_floating(array.type):
        place = pc.index(pc.is_finite(array), False).as_py()
        if place >= 0:
            raise InputError(
                f"{argument}[{place}] is {array[place].as_py()}", hint="use None for a missing value"
            )
    if known is None:
        if is_list(array.type) and pa.types.is_null(array.type.value_type):
            array = array.cast(pa.list_(pa.string()))
        if type_named(str(array.type)) is None:
            raise InputError(
                f"{argument} has the type {array.type}, which cannot be stored",
                hint="use bool, integers, float, double, string, date32, timestamp, or lists of strings or "
                "integers; `rbegir index build --columns` leaves columns out",
            )
        return array
    dtype = type_named(known)
    if _casts(array.type, dtype):
        return _cast(array, dtype, argument)
    raise MismatchError(f"{argument} has the type {array.type}, in this index it is {known}")


def _casts(came: pa.DataType, dtype: pa.DataType) -> bool:
    """Whether values of one type may be stored as another, provided that each value fits."""
    if is_list(came) and is_list(dtype):
        return _casts(came.value_type, dtype.value_type)
    numbers = all(pa.types.is_integer(one) or pa.types.is_floating(one) for one in (came, dtype))
    times = pa.types.is_timestamp(came) and pa.types.is_timestamp(dtype)
    return came == dtype or pa.types.is_null(came) or numbers or times


def _by_column(attributes: Any, known: Mapping[str, str]) -> dict[Any, Any]:
    table = as_table(attributes)
    if table is not None:
        attributes = dict(zip(table.schema.names, table.columns, strict=True))
    if isinstance(attributes, Mapping):
        names = attributes.keys()
    elif isinstance(attributes, Sequence) and all(isinstance(row, Mapping) for row in attributes):
        names = dict.fromkeys(name for row in attributes for name in row).keys()
    else:
        raise InputError(
            "attributes must be columns by name, an Arrow table or one dict per keyword, "
            f"got {type(attributes).__name__}"
        )
    total = len(known.keys() | names)
    if total > MAX_COLUMNS and total > len(known):
        raise InputError(
            f"the index would have {total} attribute columns, at most {MAX_COLUMNS} are allowed",
            hint="keep rare attributes in one column; compact drops columns without values",
        )
    if isinstance(attributes, Mapping):
        return dict(attributes)
    return {name: [row.get(name) for row in attributes] for name in names}


def as_table(given: Any) -> pa.Table | None:
    """An Arrow table or batch, a DataFrame of pandas, or anything that offers an Arrow stream, as a table.

    DataFrames of polars and relations of DuckDB offer one (`__arrow_c_stream__`). None: it is none of these.
    """
    if hasattr(given, "iloc") and hasattr(given, "columns"):  # a pandas DataFrame
        return pa.Table.from_pandas(given, preserve_index=False)
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.table(given)
    if not hasattr(given, "__arrow_c_stream__"):
        return None
    table = pa.table(given)
    return pa.table({name: _without_views(table[name].combine_chunks()) for name in table.column_names})


def check_name(name: Any) -> None:
    """Refuse a name that cannot be used for an attribute."""
    if not isinstance(name, str) or not name or len(name) > 200:
        raise InputError(
            f"the name of an attribute must be a text of 1 to 200 characters, got {name!r}",
            hint=f"name the column, or {LEAVE_OUT}",
        )
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise InputError(f"the name of an attribute must be valid Unicode, got {name!r}")
    if name in RESERVED:
        raise InputError(
            f"an attribute cannot be called {name!r}",
            hint=f"reserved are {', '.join(RESERVED)}: rename the column, or {LEAVE_OUT}",
        )


def _arrow(values: Any, argument: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    elif hasattr(values, "__arrow_c_stream__") and not hasattr(values, "iloc"):  # but no pandas Series
        values = pa.chunked_array(values).combine_chunks()
    if isinstance(values, pa.DictionaryArray):
        values = _decoded(values)
    if isinstance(values, pa.Array):
        return _without_views(values)
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise InputError(f"{argument} must be a list, one value per keyword, got {type(values).__name__}")
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise InputError(f"{argument} must have one dimension, got {values.ndim}")
        values = values.tolist() if values.dtype.kind in "OU" else values
    with fitting(f"these {argument}", "give fewer at a time; nothing was changed"):
        try:
            return pa.array(values)
        except MemoryError:  # that of Arrow is an ArrowException too
            raise
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"{argument} must hold values of one type: {reason}") from error


def _without_views(array: pa.Array) -> pa.Array:
    """The array with its texts side by side; many functions of Arrow do not take views, which polars has."""
    if isinstance(array, pa.DictionaryArray) and pa.types.is_string_view(array.type.value_type):
        return _decoded(array)
    if pa.types.is_string_view(array.type):
        return array.cast(pa.large_string())
    if is_list(array.type) and pa.types.is_string_view(array.type.value_type):
        return array.cast(pa.large_list(pa.large_string()))
    return array


def _decoded(array: pa.DictionaryArray) -> pa.Array:
    return _without_views(array.dictionary).take(array.indices)


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
            f"{argument}[{place}] has {lengths[place].as_py()} bytes, at most {MAX_TEXT_BYTES} are allowed"
        )
    return _cast(array, pa.string(), argument)


def _lists(array: pa.Array, argument: str) -> pa.Array:
    """Check lists of strings or integers, without missing items."""
    flat = array.flatten()
    if pa.types.is_dictionary(flat.type):
        array = array.cast(pa.list_(flat.type.value_type))
        flat = array.flatten()
    if pa.types.is_null(flat.type) and not len(flat):
        return array  # all are empty, so they fit lists of any type
    items = pa.string() if _is_text(flat.type) else flat.type
    if flat.null_count or type_named(f"list<item: {items}>") is None:
        what = "holds None" if flat.null_count else f"has the type {array.type}, which cannot be stored"
        raise InputError(f"{argument} {what}", hint="a list may hold strings or integers")
    long = np.flatnonzero(stored_bytes(array) > MAX_TEXT_BYTES)
    if long.size:
        raise InputError(f"{argument}[{long[0]}] has more than {MAX_TEXT_BYTES} bytes, the limit of a row")
    return _cast(array, pa.list_(items), argument)


def stored_bytes(array: pa.Array) -> npt.NDArray[np.int64]:
    """The size of each row [count] of texts or lists, in bytes; an integer in a list counts as 8."""
    array = _without_views(array)
    if not is_list(array.type):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0), np.int64)
    flat = array.flatten()
    sizes = stored_bytes(flat) + 1 if _is_text(flat.type) else np.full(len(flat), 8, np.int64)
    return sums_of_lists(array, sizes)


def sums_of_lists(array: pa.Array, items: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The sum over each list [count] of a number per item; 0 for null."""
    counts = np.asarray(pc.fill_null(pc.list_value_length(array), 0), np.int64)
    ends, sums = np.cumsum(counts), np.concatenate([[0], np.cumsum(items)])
    return np.asarray(sums[ends] - sums[ends - counts], np.int64)


def is_list(dtype: pa.DataType) -> bool:
    """Whether this is any of Arrow's list types."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(kind(dtype) for kind in kinds)


def _is_text(dtype: pa.DataType) -> bool:
    return dtype in (pa.string(), pa.large_string(), pa.string_view())


def _cast(array: pa.Array, dtype: pa.DataType, argument: str) -> pa.Array:
    try:
        return array.cast(dtype)
    except pa.ArrowException as error:
        raise InputError(f"{argument} does not fit {dtype}: {str(error).splitlines()[0]}") from error


def type_named(name: object) -> pa.DataType | None:
    """The Arrow type with a stored name, or None if columns cannot have that type."""
    if not isinstance(name, str):
        return None
    if listed := _LIST.fullmatch(name):
        return pa.list_(_PLAIN[listed[1]])
    zoned = _ZONED.fullmatch(name)
    return pa.timestamp(zoned[1], tz=zoned[2]) if zoned else _PLAIN.get(name)
