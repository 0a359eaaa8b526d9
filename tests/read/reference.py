"""The tokeniser once more, in plain Python straight from its definition: what the native one must equal."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path

LETTERS = "#abcdefghijklmnopqrstuvwxyz0123456789"
PINNED = "14.0.0"
TABLE = Path(__file__).parents[2] / "src" / "rbegir" / "_native" / "unicode_classes.hpp"


def _kinds() -> str:
    """One letter a code point: - unassigned, S separator, W letter or digit, M mark, in the pinned version.

    A Python with the pinned Unicode version knows them itself. A later one has assigned more since, and takes
    them from the committed table, which `test_unicode_classes` holds against the former.
    """
    if unicodedata.unidata_version == PINNED:
        categories = (unicodedata.category(chr(c)) for c in range(sys.maxunicode + 1))
        return "".join(
            "-" if c == "Cn" else {"L": "W", "N": "W", "M": "M"}.get(c[0], "S") for c in categories
        )
    body = TABLE.read_text(encoding="utf-8").split("UNICODE_RUNS[] = {")[1]
    return "".join("-SWM"[int(run) % 4] * (int(run) // 4) for run in re.findall(r"\d+", body))


KINDS = _kinds()


def fnv1a(data: bytes) -> int:
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % 2**64
    return value


def words_of(text: str) -> list[str]:
    assigned = "".join(" " if KINDS[ord(c)] == "-" else c for c in text)
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", assigned).casefold())
    runs = "".join(c if KINDS[ord(c)] in "WM" else "\n" for c in folded).split("\n")
    return [run for run in runs if any(KINDS[ord(c)] == "W" for c in run)]


def grams_of(word: str, hash_buckets: int) -> list[int]:
    bounded = f"#{word}#"
    grams = [bounded[i : i + 3] for i in range(len(word))]
    ids = []
    for gram in grams:
        if all(c in LETTERS for c in gram):
            a, b, c = (LETTERS.index(x) for x in gram)
            ids.append((a * 37 + b) * 37 + c)
        else:
            ids.append(37**3 + fnv1a(gram.encode()) % hash_buckets)
    return ids


def tokenize(texts: Sequence[str], hash_buckets: int) -> tuple[list[int], list[int], list[int], list[int]]:
    number: dict[str, int] = {}
    text_offsets, word_ids, gram_offsets, gram_ids = [0], [], [0], []
    for text in texts:
        for word in words_of(text):
            if word not in number:
                number[word] = len(number)
                gram_ids += grams_of(word, hash_buckets)
                gram_offsets.append(len(gram_ids))
            word_ids.append(number[word])
        text_offsets.append(len(word_ids))
    return text_offsets, word_ids, gram_offsets, gram_ids
