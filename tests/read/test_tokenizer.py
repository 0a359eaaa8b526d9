"""The native tokeniser equals the plain reference, whatever the text and however it comes in."""

from __future__ import annotations

import random
import re
import sys
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir._native import _core
from rbegir.errors import InputError, TextError
from rbegir.read.tokenizer import VOCABULARY, GramBatch, normalise, tokenize
from tests.read import reference

# Characters that have broken tokenisers: folding to several letters, composing after folding, compatibility
# forms with separators inside, marks without a base, jamo, final sigma, dotted I, unassigned, private and
# noncharacters.
HOSTILE = (
    "ßẞſİıΣσςǅﬁﬃ½⅓①㎏㍿Ⅷªº²\u0345\u0301\u0323\u0338\u1100\u1161\u11a8가ﷺ"
    "\u0378\ue000\ufffe\uffff\U0001f600\ufe0f\u200d\u200b\ufeff\u2028\u0085\u00ad\U0002f800\U000e0001\U0010ffff"
    "<=>\x00\n\r\t #_-'.,aZ09éÉ中漢ёЖ٣३\u0bcd\u0d4d\U00010400\U0001e900"
)
hostile_texts = st.text(st.one_of(st.sampled_from(HOSTILE), st.characters(exclude_categories=["Cs"])))


def assert_equal(batch: GramBatch, texts: list[str], hash_buckets: int = 8192) -> None:
    for got, want in zip(batch, reference.tokenize(texts, hash_buckets), strict=True):
        assert got.dtype == np.int32
        assert got.tolist() == want


def test_the_example_of_the_docstring() -> None:
    batch = tokenize(["Cheap Flights", "flights!"])
    assert batch.text_offsets.tolist() == [0, 2, 3]
    assert batch.word_ids.tolist() == [0, 1, 1]
    assert batch.gram_offsets.tolist() == [0, 5, 12]
    assert batch.gram_ids[0] == 0 * 37**2 + 3 * 37 + 8  # '#ch'
    assert VOCABULARY == 50_653


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("!?", []),
        ("a", ["a"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("½ cup", ["1", "2", "cup"]),  # NFKC: 1, fraction slash, 2
        ("I ❤\ufe0f NY", ["i", "ny"]),  # a variation selector alone is no word
        ("\u0301", []),
        ("e\u0301te\u0301 été", ["été", "été"]),
        ("snake_case", ["snake", "case"]),
        ("İstanbul", ["i̇stanbul"]),
        ("中文 字", ["中文", "字"]),
        ("a\x00b", ["a", "b"]),
        ("x\u0378y", ["x", "y"]),  # unassigned in the pinned Unicode version
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert reference.words_of(text) == words
    assert_equal(tokenize([text]), [text])


@settings(max_examples=400)
@given(st.lists(hostile_texts, max_size=12), st.sampled_from([1, 2, 7, 8192]))
def test_equals_the_reference(texts: list[str], hash_buckets: int) -> None:
    assert_equal(tokenize(texts, hash_buckets=hash_buckets), texts, hash_buckets)


def test_every_code_point_of_unicode() -> None:
    points = [chr(c) for c in range(sys.maxunicode + 1) if not 0xD800 <= c < 0xE000]
    texts = ["b" + "c ".join(points[i : i + 1000]) for i in range(0, len(points), 1000)]
    assert_equal(tokenize(texts), texts)


def test_nothing_normalises_to_the_joining_newline() -> None:
    others = "".join(chr(c) for c in range(sys.maxunicode + 1) if c != 10 and not 0xD800 <= c < 0xE000)
    assert "\n" not in normalise(others)
    combining = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.combining(chr(c))]
    for mark in combining:
        assert normalise(f"é\n{mark}") == normalise("é") + "\n" + normalise(mark)


def random_texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    letters = "abcdefghij   XY09" + HOSTILE
    return [
        "".join(draw.choices(letters[: draw.choice([8, 17, 80])], k=draw.randrange(24))) for _ in range(count)
    ]


@pytest.mark.parametrize("threads", [2, 3, 8])
@pytest.mark.parametrize("count", [0, 1, 255, 511, 512, 513, 3000])
def test_any_number_of_threads_gives_the_same_batch(count: int, threads: int) -> None:
    texts = random_texts(count, seed=count)
    one, many = tokenize(texts), tokenize(texts, threads=threads)
    for a, b in zip(one, many, strict=True):
        assert np.array_equal(a, b)
    assert_equal(one, texts)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 15, 16, 17, 63, 64, 65])
def test_words_of_every_length_are_told_apart(size: int) -> None:
    word = "q" * size
    texts = [word, word[:-1] + "r", "r" + word[:-1], word + "q", word.upper(), "ж" + word, word[:-1] + "ж"]
    assert_equal(tokenize(texts), texts)


def test_many_unique_words_and_a_very_long_text() -> None:
    texts = [f"w{i} x{i % 97}" for i in range(5000)] + ["ab " * 200_000, "z" * 1_000_000, "é" * 300_000]
    assert_equal(tokenize(texts, threads=2), texts)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_arrow_arrays_and_their_slices(kind: pa.DataType) -> None:
    texts = [*random_texts(700, seed=1), "", "last"]
    whole = pa.array(texts, kind)
    assert_equal(tokenize(whole), texts)
    assert_equal(tokenize(whole[13:650], threads=2), texts[13:650])
    assert_equal(tokenize(whole[5:5]), [])
    assert_equal(tokenize(pa.chunked_array([whole[:3], whole[3:3], whole[600:]])), texts[:3] + texts[600:])
    assert_equal(tokenize(pa.chunked_array([], kind)), [])
    assert_equal(tokenize(pa.array([], kind)), [])
    assert_equal(tokenize(pa.array(["", ""], kind)), ["", ""])
    assert_equal(tokenize(tuple(texts)), texts)


def arrow_of_bytes(items: list[bytes]) -> pa.Array:
    return pa.array(items, pa.binary()).view(pa.string())


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff",
        b"a\x80",
        b"\xc0\xaf",
        b"\xc1\xbf",
        b"\xe0\x80\xaf",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xc3",
        b"ab\xe4\xb8",
        b"\xf0\x9f\x98",
        b"\xc3a",
        b"\xe4a\x80",
    ],
)
def test_invalid_utf8_in_an_arrow_array_is_refused(bad: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        bad.decode()
    with pytest.raises(TextError, match=r"text at position 2 is not valid UTF-8"):
        tokenize(arrow_of_bytes([b"good", "größe".encode(), bad, b"x"]))


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=6), max_size=3))
def test_utf8_is_judged_as_python_judges_it(items: list[bytes]) -> None:
    try:
        texts = [item.decode() for item in items]
    except UnicodeDecodeError:
        with pytest.raises(TextError, match=r"is not valid UTF-8"):
            tokenize(arrow_of_bytes(items))
    else:
        assert_equal(tokenize(arrow_of_bytes(items)), texts)


def test_arrow_offsets_outside_of_the_buffer_are_refused() -> None:
    """pyarrow itself looks at the first and last offset only; a file can lie about those between."""
    for offsets in ([0, 1, 9, 4], [0, 3, 1, 4], [0, 1, -1, 4]):
        buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(b"abcd")]
        with pytest.raises(TextError, match=r"text at position 1 lies outside of its Arrow buffer"):
            tokenize(pa.Array.from_buffers(pa.string(), 3, buffers))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["fine", "a\ud800b"], "text at position 1 holds a lone surrogate at character 1"),
        (["fine", 5], "text at position 1 is not a str but int"),
        ([None], "text at position 0 is not a str but NoneType"),
        ([b"bytes"], "text at position 0 is not a str but bytes"),
        (pa.array(["a", "b", None]), "text at position 2 is null"),
        (pa.chunked_array([pa.array(["a"]), pa.array(["b", None])])[1:], "text at position 1 is null"),
    ],
)
def test_a_bad_text_is_named(texts: object, message: str) -> None:
    with pytest.raises(TextError, match=f"^{re.escape(message)}") as caught:
        tokenize(texts)  # type: ignore[arg-type]
    assert caught.value.hint == "drop or repair it first"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "texts must be a list of str, got one str (hint: wrap it: [text])"),
        (
            None,
            "texts must be a list of str, got NoneType (hint: pass a list of str or a pyarrow string array)",
        ),
        (np.array(["a"]), "texts must be a list of str, got ndarray"),
        (pa.table({"a": ["x"]}), "texts must be a list of str, got Table"),
        (pa.array([1]), "texts must be an Arrow array of string or large_string, got int64 (hint: cast it"),
    ],
)
def test_what_is_no_list_of_texts_is_refused(texts: object, message: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        tokenize(texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "value"), [("hash_buckets", 0), ("hash_buckets", 2.0), ("threads", 0)])
def test_bad_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{name} must be a whole number from 1 to"):
        tokenize(["a"], **{name: value})  # type: ignore[arg-type]


def test_a_list_changed_meanwhile_does_not_matter() -> None:
    """The batch holds its own references: what the caller does to the list afterwards is harmless."""
    texts = [f"{i:032d}" for i in range(1000)]
    batch = _core.Texts()
    assert batch.add_strings(tuple(texts)) is None
    texts.clear()
    assert len(_core.tokenize(batch, 8192, 1)[1]) == 1000


def test_lines_lost_in_normalising_are_noticed() -> None:
    batch = _core.Texts()
    batch.add_strings(("é", "ü"))
    for lines in (b"e\n", b"e\nu\nx\n", b""):
        with pytest.raises(ValueError, match=r"normalising changed the number of lines"):
            batch.supply(lines)
