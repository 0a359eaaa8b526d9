"""From what callers hold, lists of str or Arrow columns, to the one form that the native code reads.

ASCII texts are read in place, without a copy. A text with any other character is normalised first:

    NFKC → case folding → NFKC

by Python's `unicodedata`, all such texts of a batch joined by newlines in one call. A newline is safe: it
neither composes with nor reorders past anything, nothing normalises to it, and one inside a text is a
separator like a space, so it is replaced by one beforehand. So is every code point that the pinned Unicode
version (see tools/unicode_classes.py) does not assign: the stability policy fixes the normal form and the
folding of assigned characters for ever, hence every Python yields the same grams. The second NFKC is needed
because folding can leave a sequence that composes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias
from unicodedata import normalize

import numpy as np

from rbegir._native import _core
from rbegir.errors import InputError, TextError

if TYPE_CHECKING:
    import pyarrow as pa

    TextInput: TypeAlias = "Sequence[str] | pa.Array[Any] | pa.ChunkedArray[Any]"


def read_texts(texts: TextInput, first: int = 0) -> _core.Texts:
    """Views of a list or tuple of str or a pyarrow string or large_string array, normalised where needed.

    `first` is the position of the first of them in what the caller was given, for the errors.
    """
    batch = _core.Texts()
    if isinstance(texts, (list, tuple)):
        _check(batch.add_strings(tuple(texts)), first)
    else:
        for chunk in _arrow_chunks(texts):
            _add_arrow(batch, chunk, first)
    foreign = batch.foreign()
    if foreign:
        batch.supply(normalise(foreign.decode()).encode())
    return batch


def count_texts(texts: TextInput) -> int:
    """How many texts there are, once it is sure that they are texts."""
    if not isinstance(texts, (list, tuple)):
        _arrow_chunks(texts)
    return len(texts)


def normalise(text: str) -> str:
    """NFKC, case-folded."""
    return normalize("NFKC", normalize("NFKC", text).casefold())


def _arrow_chunks(texts: object) -> Sequence[Any]:
    """The chunks of an Arrow column. pyarrow is imported only here: a list of str has no need of it."""
    hint = "pass a list of str or a pyarrow string array"
    if isinstance(texts, str):
        raise InputError("texts must be a list of str, got one str", hint="wrap it: [text]")
    if not type(texts).__module__.startswith("pyarrow"):
        raise InputError(f"texts must be a list of str, got {type(texts).__name__}", hint=hint)
    import pyarrow as pa

    if not isinstance(texts, (pa.Array, pa.ChunkedArray)):
        raise InputError(f"texts must be a list of str, got {type(texts).__name__}", hint=hint)
    if texts.type not in (pa.string(), pa.large_string()):
        raise InputError(
            f"texts must be an Arrow array of string or large_string, got {texts.type}",
            hint="cast it: texts.cast(pyarrow.string())",
        )
    return texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]


def _add_arrow(batch: _core.Texts, chunk: Any, first: int) -> None:
    if chunk.null_count:
        position = len(batch) + int(np.flatnonzero(chunk.is_null().to_numpy(zero_copy_only=False))[0])
        _check((position, "is null"), first)
    if len(chunk) == 0:
        return  # an empty array may have no buffers at all
    _, offsets, data = chunk.buffers()
    width = "int32" if str(chunk.type) == "string" else "int64"
    ends: Any = np.frombuffer(offsets, dtype=width)[chunk.offset : chunk.offset + len(chunk) + 1]
    letters = np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, dtype=np.uint8)
    _check(batch.add_arrow(ends, letters), first)


def _check(problem: tuple[int, str] | None, first: int) -> None:
    if problem:
        position, reason = problem
        raise TextError(f"text at position {first + position} {reason}", hint="drop or repair it first")
