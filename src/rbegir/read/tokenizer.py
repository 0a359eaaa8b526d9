"""Texts → words → tri-letter grams.

A text is normalised (`read.text_batch`) and cut into words, maximal runs of letters, digits and marks with
at least one letter or digit; `#word#` is cut into overlapping grams of three letters:

    "Cheap Flights"  →  cheap, flights  →  #ch che hea eap ap#,  #fl fli lig igh ght hts ts#

A gram of a–z, 0–9 and # has an id of its own, `c0·37² + c1·37 + c2` with '#' → 0, a–z → 1–26, 0–9 → 27–36:
`VOCABULARY` = 37³ of them. Any other gram goes to one of `hash_buckets` shared rows behind those, by the
64-bit FNV-1a hash of its UTF-8 bytes, so no language is left out. The ids are the same on every machine, with
any number of threads.

Words repeat a lot, so a batch lists each once, and the texts refer to them:

    text i has the words   word_ids[text_offsets[i] : text_offsets[i + 1]]
    word w has the grams   gram_ids[gram_offsets[w] : gram_offsets[w + 1]]

which lets an encoder sum the gram rows of a word once, however often the word occurs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rbegir._native import _core
from rbegir.base.checks import whole_number
from rbegir.read.text_batch import read_texts

if TYPE_CHECKING:
    from rbegir.read.text_batch import TextInput

VOCABULARY = _core.VOCABULARY  # 37³ grams with an id of their own
MAX_BUCKETS = 2**30


class GramBatch(NamedTuple):
    """The words and grams of a batch of texts; all arrays are int32."""

    text_offsets: npt.NDArray[np.int32]  # [texts + 1] into word_ids
    word_ids: npt.NDArray[np.int32]  # [words] into the unique words, numbered by first occurrence
    gram_offsets: npt.NDArray[np.int32]  # [unique + 1] into gram_ids
    gram_ids: npt.NDArray[np.int32]  # [grams] rows of the gram table


def tokenize(texts: TextInput, *, hash_buckets: int = 8192, threads: int = 1) -> GramBatch:
    """The grams of a list of str or a pyarrow string array. A text without letters or digits has no words."""
    for name, value, limit in (("hash_buckets", hash_buckets, MAX_BUCKETS), ("threads", threads, 1024)):
        whole_number(name, value, 1, limit)
    return GramBatch(*_core.tokenize(read_texts(texts), hash_buckets, threads))
