# The native module, as Python sees it. Callers check their input: errors here are ValueError or TypeError.
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

# isa.cpp
def isas() -> dict[str, bool]: ...  # every known name, the best first: whether this CPU runs it

# checksum.cpp
def crc32c(buffer: Buffer | npt.NDArray[Any], start: int = 0, portable: bool = False) -> int: ...
def crc32c_blocks(
    buffer: Buffer | npt.NDArray[Any], block: int, indices: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]: ...

# mapping.cpp
def arm() -> None: ...
def guard(buffer: Buffer) -> int: ...
def unguard(slot: int) -> None: ...
def broken(slot: int) -> bool: ...

# hash.cpp
def hash_strings(offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]: ...

# masks.cpp
def divide(numbers: npt.NDArray[np.int32], start: int, masks: list[npt.NDArray[np.uint64]]) -> None: ...

# text.cpp
VOCABULARY: int
UNICODE_VERSION: str

class Texts:
    def __init__(self) -> None: ...
    def __len__(self) -> int: ...
    def add_strings(self, strings: tuple[object, ...]) -> tuple[int, str] | None: ...
    def add_arrow(
        self, offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
    ) -> tuple[int, str] | None: ...
    def foreign(self) -> bytes: ...
    def supply(self, normalised: bytes) -> None: ...

def tokenize(
    texts: Texts, buckets: int, threads: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...

# maxsim.cpp
def maxsim(
    # packed, count, mask, position of the first keyword
    parts: list[tuple[npt.NDArray[np.uint8], int, npt.NDArray[np.uint64] | None, int]],
    values: npt.NDArray[np.int16],
    order: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float64],
    first: npt.NDArray[np.int64],
    *,
    planes: int,
    threads: int,
    isa: str,
) -> None: ...

# scan*.cpp
ScannedPartition = tuple[
    npt.NDArray[np.uint8], int, npt.NDArray[np.uint64] | None, tuple[npt.NDArray[np.uint64] | None, ...]
]  # packed, count, mask, filters

def scan_search(
    partitions: list[ScannedPartition],
    values: npt.NDArray[np.int16],
    k: int,
    limits: npt.NDArray[np.int64] | None,
    *,
    planes: int,
    threads: int,
    isa: str,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def scan_rescore(
    partitions: list[ScannedPartition],
    values: npt.NDArray[np.int16],
    positions: npt.NDArray[np.int64],
    k: int,
    *,
    planes: int,
    threads: int,
    isa: str,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...
def read_sum(bytes: npt.NDArray[np.uint8], threads: int, streams: int = 1) -> int: ...

# batch.cpp
def cut_batch(
    text_offsets: npt.NDArray[np.int32],
    word_ids: npt.NDArray[np.int32],
    gram_offsets: npt.NDArray[np.int32],
    gram_ids: npt.NDArray[np.int32],
    items: npt.NDArray[np.int32],
    dropout: float,
    gram_dropout: float,
    key: int,
    places: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...
def transpose_grams(
    gram_offsets: npt.NDArray[np.int32], gram_ids: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...

# learn.cpp
def window_max(
    words: npt.NDArray[np.floating[Any]],
    text_offsets: npt.NDArray[np.int32],
    word_ids: npt.NDArray[np.int32],
    best: npt.NDArray[np.floating[Any]],
    where: npt.NDArray[np.int32],
) -> None: ...
def window_max_gradient(
    grad: npt.NDArray[np.floating[Any]],
    where: npt.NDArray[np.int32],
    text_offsets: npt.NDArray[np.int32],
    word_ids: npt.NDArray[np.int32],
    total: npt.NDArray[np.floating[Any]],
) -> None: ...
def update_rows(
    table: npt.NDArray[np.float32],
    second: npt.NDArray[np.float32],
    steps: npt.NDArray[np.float32],
    rows: npt.NDArray[np.int64],
    values: npt.NDArray[np.float32],
    rate: float,
    beta: float,
    eps: float,
    threads: int,
) -> None: ...

# tower.cpp
class Tower:
    def __init__(
        self,
        conv: npt.NDArray[np.float32] | npt.NDArray[np.int8],
        scales: npt.NDArray[np.float32] | None,
        bias: npt.NDArray[np.float32],
        cache_words: int,
        isa: str,
    ) -> None: ...
    def add_hidden(self, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32]) -> None: ...
    def set_head(self, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32]) -> None: ...
    def add_iteration(
        self,
        b: npt.NDArray[np.float32],
        b_bias: npt.NDArray[np.float32],
        r: npt.NDArray[np.float32],
        r_bias: npt.NDArray[np.float32],
        worth: float,
    ) -> None: ...
    def encode(self, texts: Texts, planes: npt.NDArray[np.uint64], start: int, threads: int) -> int: ...
    def embed(self, texts: Texts, vectors: npt.NDArray[np.float32], start: int, threads: int) -> int: ...
    @property
    def isa(self) -> str: ...

# product.cpp
def product(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], threads: int, isa: str
) -> npt.NDArray[np.float32]: ...
def nearest(
    y: npt.NDArray[np.float32], planes: int, steps: npt.NDArray[np.float32], threads: int, isa: str
) -> npt.NDArray[np.int16]: ...
def group_cosines(
    queries: npt.NDArray[np.float32],
    keywords: npt.NDArray[np.float32],
    offsets: npt.NDArray[np.int64],
    isa: str,
) -> npt.NDArray[np.float32]: ...
def dots(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], isa: str) -> npt.NDArray[np.float32]: ...

# spelling.cpp
SPELLING_FEATURES: list[str]

class SpellingWeights:
    def __init__(
        self, grams: npt.NDArray[np.float32], words: npt.NDArray[np.float32], mean_words: float
    ) -> None: ...

def spelling_features(
    queries: Texts,
    keywords: Texts,
    offsets: npt.NDArray[np.int64],
    weights: SpellingWeights,
    out: npt.NDArray[np.float32],
    threads: int,
) -> None: ...
def spelling_counts(texts: Texts, grams: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> int: ...

# lexical.cpp
class LexicalIndex:
    def __init__(self, texts: Texts, weights: SpellingWeights) -> None: ...
    def __len__(self) -> int: ...
    def search(
        self,
        queries: Texts,
        mask: npt.NDArray[np.uint64] | None,
        rows: npt.NDArray[np.int64],
        scores: npt.NDArray[np.float32],
        threads: int,
    ) -> None: ...

# refine.cpp
def refine(
    g: npt.NDArray[np.float32],
    v: npt.NDArray[np.float32],
    gram: npt.NDArray[np.float32],
    b: npt.NDArray[np.float32],
    h: npt.NDArray[np.float32],
    planes: int,
    moves: int,
    tenure: int,
    threads: int,
    seed: int,
    isa: str,
) -> None: ...
