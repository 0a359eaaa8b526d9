"""Files made by chance: the readers agree with plain Python, line by line, and never fail otherwise."""

from __future__ import annotations

import json
import re
import unicodedata

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.errors import FileError, InputError
from rbegir.read import rows as rows_module
from rbegir.read import source as source_module
from rbegir.read.pairs import read_pairs, read_texts
from rbegir.read.tokenizer import tokenize
from tests.read.files import WRITERS, blocks_of, pairs_of, put


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["q\tk", "q\tk", "lone", "a\tb\tc", ""]), max_size=60))
def test_rows_keep_their_numbers(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Over many blocks, with malformed rows anywhere."""
    path = tmp_path_factory.mktemp("numbers") / "p.tsv"
    path.write_text("\n".join(["query\tkeyword", *lines]))
    rows = [line for line in lines if line]
    numbers: list[int] = []
    malformed: list[int] = []
    with blocks_of(16):
        source = source_module.open_source(path)
        asked = source_module.FileRequest(["query"], lambda number, _: malformed.append(number))
        for block in source.blocks(asked):
            numbers += block.numbers.tolist()
    assert numbers == [i for i, row in enumerate(rows) if row == "q\tk"]
    assert malformed == [i for i, row in enumerate(rows) if row != "q\tk"]
    for i, row in enumerate(rows):
        line = int(source.place(i).removeprefix("line "))
        assert lines[line - 2] == row


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["p.tsv", "p.jsonl"]),
    st.lists(st.sampled_from(["good", "good", "good", "good", "empty", "malformed", "blank"]), max_size=50),
    st.sampled_from([40, 1 << 22]),
)
def test_strict_names_the_very_first_bad_row(
    tmp_path_factory: pytest.TempPathFactory, name: str, kinds: list[str], block: int
) -> None:
    """Even where the parser runs ahead of the checks."""
    tsv = {"good": "q\tk", "empty": "q\t.", "malformed": "lone", "blank": ""}
    jsonl = {
        "good": '{"query":"q","keyword":"k"}',
        "empty": '{"query":"q","keyword":"."}',
        "malformed": "lone",
    }
    lines = ["query\tkeyword"] if name == "p.tsv" else [jsonl["good"]]
    lines += [(tsv if name == "p.tsv" else jsonl | {"blank": " "})[kind] for kind in ["good", *kinds]]
    path = tmp_path_factory.mktemp("strict") / name
    path.write_text("\n".join(lines))
    wrong = [i for i, kind in enumerate(kinds) if kind in ("empty", "malformed")]
    with blocks_of(block):
        if wrong:
            with pytest.raises(InputError, match=rf", line {wrong[0] + 3}: "):
                read_pairs(path, strict=True).read_all()
        else:
            read_pairs(path, strict=True).read_all()


def reference_jsonl(content: bytes) -> tuple[list[tuple[str, str]], int]:
    """What a JSONL file holds, line by line."""
    good, bad = [], 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            found = json.loads(line.decode())
            query, keyword = found["query"], found["keyword"]
            (query + keyword).encode()
            if has_word(query) and has_word(keyword):
                good.append((query, keyword))
                continue
        except (ValueError, TypeError, KeyError, AttributeError):
            pass
        bad += 1
    return good, bad


values = st.none() | st.text(max_size=3) | st.integers() | st.booleans()
json_lines = st.one_of(
    st.fixed_dictionaries({"query": st.text(max_size=5), "keyword": st.text(max_size=5)}).map(json.dumps),
    st.dictionaries(st.sampled_from(["query", "keyword", "other"]), values).map(json.dumps),
    st.sampled_from(["", " ", "{", "null", "{}", '{"query": "a", "keyword": "b"} x']),
    st.just('{"query": "\\ud800", "keyword": "b"}'),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(json_lines, max_size=25), st.sampled_from([16, 100, 1 << 22]))
def test_jsonl_agrees_with_plain_python(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], block: int
) -> None:
    path = tmp_path_factory.mktemp("jsonl") / "p.jsonl"
    content = "\n".join(['{"query": "first", "keyword": "row"}', *lines]).encode()
    path.write_bytes(content)
    good, bad = reference_jsonl(content)
    with blocks_of(block):
        stream = read_pairs(path)
        assert pairs_of(stream) == good
    assert stream.skipped.total == bad
    assert stream.skipped.read == len(good) + bad


def has_word(text: str) -> bool:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return any(unicodedata.category(letter)[0] in "LN" for letter in folded)


def reference_tsv(content: bytes) -> tuple[list[tuple[str, str]], int]:
    """What a TSV file holds, line by line in plain Python."""
    good, bad = [], 0
    for line in re.split(b"\r\n|\n|\r", content)[1:]:
        if not line:
            continue
        fields = line.split(b"\t")
        try:
            query, keyword = (field.decode() for field in fields)
        except ValueError:
            bad += 1
            continue
        if has_word(query) and has_word(keyword):
            good.append((query, keyword))
        else:
            bad += 1
    return good, bad


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(st.text(max_size=6).map(str.encode), min_size=1, max_size=3).map(b"\t".join),
            st.binary(max_size=12),
            st.sampled_from([b"a\tb", b"", b"\t", b'"\t"', b"\xff\ta"]),
        ),
        max_size=30,
    )
)
def test_tsv_agrees_with_plain_python(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("tsv") / "p.tsv"
    content = b"query\tkeyword\n" + b"\n".join(lines)
    path.write_bytes(content)
    good, bad = reference_tsv(content)
    stream = read_pairs(path)
    if good:
        assert pairs_of(stream) == good
    else:
        with pytest.raises(InputError, match="holds no"):
            stream.read_all()
    assert stream.skipped.total == bad


PIECES = [b"query", b"keyword", b'"', b",", b"\t", b"\n", b"\r", b"{", b"}", b":", b"null", b"a", b"PAR1"]
PIECES += [b"\0", b"\xff", b"\xef\xbb\xbf", "\U0010ffff".encode()]


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["p.tsv", "p.csv", "p.jsonl", "p.txt", "p.tsv.gz", "p.parquet"]),
    st.lists(st.sampled_from(PIECES), max_size=40),
    st.booleans(),
)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, parts: list[bytes], header: bool
) -> None:
    """Never another exception than ours, never a crash, and always each row accounted for."""
    start = {"p.csv": b"query,keyword\n", "p.tsv": b"query\tkeyword\n"}.get(name, b"") if header else b""
    path = put(tmp_path_factory.mktemp("any") / name, start + b"".join(parts))
    try:
        stream = read_texts(path) if name == "p.txt" else read_pairs(path)
        kept = stream.read_all().num_rows
    except (InputError, FileError):
        return
    assert kept == stream.skipped.read - stream.skipped.total


texts = st.text(min_size=1, max_size=8).filter(
    lambda t: has_word(t) and not set(t) & set("\r\n\t\0") and t == t.strip()
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(WRITERS)), st.lists(st.tuples(texts, texts), min_size=1, max_size=20))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, kind: str, pairs: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("trip") / f"p.{kind}"
    WRITERS[kind](path, [{"query": q, "keyword": k} for q, k in pairs])
    assert pairs_of(read_pairs(path, strict=True)) == pairs


def test_the_quick_look_for_letters_is_never_wrong() -> None:
    """Whatever the regular expression clears must be a word for the tokeniser."""
    letters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    plain = pc.match_substring_regex(pa.array(letters), rows_module._PLAIN).to_pylist()
    cleared = [c for c, clear in zip(letters, plain, strict=True) if clear]
    words = np.diff(tokenize(cleared).text_offsets)
    assert words.min() == 1
    assert sum(plain) > 39_000
