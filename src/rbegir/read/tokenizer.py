"""Texts → words → tri-letter grams.

A text is normalised and split into words, maximal runs of letters, digits and marks with at least one letter
or digit; `#word#` is split into overlapping grams of three characters:

    "Cheap Flights"  →  cheap, flights  →  #ch che hea eap ap#,  #fl fli lig igh ght hts ts#

A gram of a–z, 0–9 and # has an id of its own, `c0·37² + c1·37 + c2` with '#' → 0, a–z → 1–26, 0–9 → 27–36:
`VOCABULARY` = 37³ of them. Any other gram is assigned to one of `hash_buckets` shared ids after those, by
the 64-bit FNV-1a hash of its UTF-8 bytes, so every language is covered.

Words repeat a lot, so a batch lists each once, and an encoder sums the gram rows of a word once per batch:

    text i has the words   word_ids[text_offsets[i] : text_offsets[i + 1]]
    word w has the grams   gram_ids[gram_offsets[w] : gram_offsets[w + 1]]

*Normalisation.* ASCII texts are read in place. A text with any other character becomes NFKC → case folding →
NFKC by Python's `unicodedata`, in one call for all such texts of a batch, joined by newlines, which neither
compose with nor reorder past anything. The second NFKC is needed because folding can leave a sequence that
composes. Code points that the pinned Unicode version (tools/unicode_classes.py) does not assign become spaces
first: the stability policy fixes the rest, so every Python version yields the same grams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from unicodedata import normalize

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.errors import InputError, TextError, whole_number

if TYPE_CHECKING:
    import pyarrow as pa

    TextInput: TypeAlias = "Sequence[str] | pa.Array[Any] | pa.ChunkedArray[Any]"

VOCABULARY = _core.VOCABULARY  # 37³ grams with an id of their own
MAX_BUCKETS = 2**30


class GramBatch(NamedTuple):
    """The words and grams of a batch of texts; all arrays are int32."""

    text_offsets: npt.NDArray[np.int32]  # [texts + 1] into word_ids
    word_ids: npt.NDArray[np.int32]  # [words] into the unique words, numbered by first occurrence
    gram_offsets: npt.NDArray[np.int32]  # [unique + 1] into gram_ids
    gram_ids: npt.NDArray[np.int32]  # [grams] rows of the gram table


def tokenize(texts: TextInput, *, hash_buckets: int = 8192, threads: int = 1) -> GramBatch:
    """The words and grams of a list of str or a pyarrow string array; a text may have no words."""
    for name, value, limit in (("hash_buckets", hash_buckets, MAX_BUCKETS), ("threads", threads, 1024)):
        whole_number(name, value, 1, limit)
    return GramBatch(*_core.tokenize(text_views(texts), hash_buckets, threads))


def text_views(texts: TextInput, first: int = 0) -> _core.Texts:
    """Texts as the native module reads them, from a list or tuple of str or an Arrow string array.

    Texts are normalised if needed. `first` is the position of the first one in the caller's input.
    """
    batch = _core.Texts()
    if isinstance(texts, (list, tuple)):
        _check(batch.add_strings(tuple(texts)), first)
    else:
        for chunk in _arrow_chunks(texts):
            if chunk.null_count:
                nulls = chunk.is_null().to_numpy(zero_copy_only=False)
                _check((len(batch) + int(np.argmax(nulls)), "is null"), first)
            if len(chunk):  # an empty array may have no buffers at all
                _, offsets, data = chunk.buffers()
                width = "int32" if str(chunk.type) == "string" else "int64"
                ends: Any = np.frombuffer(offsets, dtype=width)
                letters = np.frombuffer(data or b"", dtype=np.uint8)
                _check(batch.add_arrow(ends[chunk.offset : chunk.offset + len(chunk) + 1], letters), first)
    foreign = batch.foreign()
    if foreign:
        batch.supply(normalise(foreign.decode()).encode())
    return batch


def count_texts(texts: TextInput) -> int:
    """The number of texts; raises InputError if they are not texts."""
    if not isinstance(texts, (list, tuple)):
        _arrow_chunks(texts)
    return len(texts)


def normalise(text: str) -> str:
    """NFKC → case folding → NFKC."""
    return normalize("NFKC", normalize("NFKC", text).casefold())


def _arrow_chunks(texts: object) -> Sequence[Any]:
    """The chunks of an Arrow column. pyarrow is imported only here, since lists of str do not need it."""
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


def _check(problem: tuple[int, str] | None, first: int) -> None:
    if problem:
        position, reason = problem
        raise TextError(f"text at position {first + position} {reason}", hint="drop or repair it first")
