"""Readers: the same good rows whatever the format, and every bad row counted or named."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.errors import CorruptError, FileError, InputError
from rbegir.tables import rows as rows_module
from rbegir.tables import source as source_module
from rbegir.text.tokenizer import tokenize
from rbegir.training.pairs import count_pairs, read_labels, read_pairs, read_texts

Rows = list[dict[str, object]]


def write_tsv(path: Path, rows: Rows) -> None:
    names = list(rows[0])
    lines = ["\t".join(names), *("\t".join(str(row[n]) for n in names) for row in rows)]
    path.write_bytes("".join(line + "\n" for line in lines).encode())


def write_csv(path: Path, rows: Rows) -> None:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_bytes(out.getvalue().encode())


def write_jsonl(path: Path, rows: Rows) -> None:
    path.write_bytes("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def write_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "tsv": write_tsv,
    "csv": write_csv,
    "jsonl": write_jsonl,
    "parquet": write_parquet,
}


def pairs_of(stream: object) -> list[tuple[str, str]]:
    return [
        (row["query"], row["keyword"])
        for batch in stream  # type: ignore[attr-defined]
        for row in batch.to_pylist()
    ]


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# ---------------------------------------------------------------- what comes out

GOOD: Rows = [
    {"query": "cheap flights", "keyword": "low cost airlines", "weight": 2.5},
    {"query": "straße 7", "keyword": "北京", "weight": 1},
    {"query": "null", "keyword": "NaN", "weight": 0.25},
]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("zipped", [False, True])
def test_all_formats_give_the_same_rows(tmp_path: Path, kind: str, zipped: bool) -> None:
    path = tmp_path / f"pairs.{kind}"
    WRITERS[kind](path, GOOD)
    if zipped:
        if kind == "parquet":
            return
        path = put(tmp_path / f"pairs.{kind}.gz", path.read_bytes())
    stream = read_pairs(path)
    table = stream.read_all()
    assert table.schema == pa.schema(
        [("query", pa.string()), ("keyword", pa.string()), ("weight", pa.float32())]
    )
    assert table.to_pylist() == GOOD
    assert not stream.skipped
    assert stream.progress == 1.0
    assert stream.read_all().to_pylist() == GOOD  # again, as each epoch does
    assert count_pairs(path) == 3


@pytest.mark.parametrize("kind", WRITERS)
def test_columns_can_be_renamed_and_others_are_ignored(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    WRITERS[kind](path, [{"day": "2020-01-01", "title": "b", "alias": "a", "clicks": 3}])
    stream = read_pairs(path, query_column="alias", keyword_column="title", weight_column="clicks")
    assert stream.read_all().to_pylist() == [{"query": "a", "keyword": "b", "weight": 3.0}]
    assert read_pairs(path, query_column="alias", keyword_column="title").read_all()[
        "weight"
    ].to_pylist() == [1.0]


def test_weights_can_be_ignored(tmp_path: Path) -> None:
    write_tsv(tmp_path / "p.tsv", GOOD)
    assert read_pairs(tmp_path / "p.tsv", weight_column=None).read_all()["weight"].to_pylist() == [1.0] * 3


def test_quotes_mean_something_in_csv_only(tmp_path: Path) -> None:
    row = b'7" vinyl%s"he said ""so""\n'
    put(tmp_path / "p.tsv", b"query\tkeyword\n" + row % b"\t")
    assert pairs_of(read_pairs(tmp_path / "p.tsv")) == [('7" vinyl', '"he said ""so""')]
    put(tmp_path / "p.csv", b'query,keyword\n"7"" vinyl, new","two\nlines"\n')
    assert pairs_of(read_pairs(tmp_path / "p.csv")) == [('7" vinyl, new', "two\nlines")]


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.jsonl"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_blank_lines_and_byte_order_mark(tmp_path: Path, name: str, end: bytes, last: bool) -> None:
    lines = {
        "p.tsv": [b"query\tkeyword", b"", b"a\tb", b"", b"c\td"],
        "p.csv": [b"query,keyword", b"", b"a,b", b"", b"c,d"],
        "p.jsonl": [b'{"query":"a","keyword":"b"}', b"", b"  ", b'{"query":"c","keyword":"d"}'],
    }[name]
    content = b"\xef\xbb\xbf" + end.join(lines) + (end if last else b"")
    stream = read_pairs(put(tmp_path / name, content), strict=True)
    assert pairs_of(stream) == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "txt"])
def test_files_of_many_blocks(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("source", "delimited"):
        monkeypatch.setattr(f"rbegir.tables.{module}.BLOCK_BYTES", 1000)
    path = tmp_path / f"x.{kind}"
    wanted: Rows = [{"query": f"query {i}", "keyword": f"keyword {i * i}"} for i in range(997)]
    if kind == "txt":
        path.write_text("".join(f"query {i}\n" for i in range(997)))
        batches = list(read_texts(path))
        assert [t for b in batches for t in b["text"].to_pylist()] == [row["query"] for row in wanted]
    else:
        WRITERS[kind](path, wanted)
        stream = read_pairs(path)
        progress, batches = [], []
        for batch in stream:
            progress.append(stream.progress)
            batches.append(batch)
        assert [row["query"] for b in batches for row in b.to_pylist()] == [row["query"] for row in wanted]
        assert progress == sorted(progress)
        assert 0 < progress[0] <= progress[-1] <= 1
    assert len(batches) > 5


def test_head_reads_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rbegir.tables.source.BLOCK_BYTES", 200)
    monkeypatch.setattr("rbegir.tables.delimited.BLOCK_BYTES", 200)
    path = put(tmp_path / "p.tsv", b"query\tkeyword\n" + b"".join(b"q%d\tk\n" % i for i in range(500)))
    stream = read_pairs(path)
    for rows in (1, 7, 100, 500, 501):
        table = stream.head(rows)
        assert table["query"].to_pylist() == [f"q{i}" for i in range(min(rows, 500))]
        assert (stream.skipped.read < 500) == (rows <= 100)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()]
)
@pytest.mark.parametrize("encoded", [False, True])
def test_parquet_text_types(tmp_path: Path, kind: pa.DataType, encoded: bool) -> None:
    text = pa.array(["a", "b"], pa.string()).cast(kind)
    if encoded:
        if kind == pa.string_view():
            return
        text = text.dictionary_encode()
    pq.write_table(pa.table({"query": text, "keyword": text}), tmp_path / "p.parquet")
    assert pairs_of(read_pairs(tmp_path / "p.parquet")) == [("a", "a"), ("b", "b")]


# ---------------------------------------------------------------- bad rows

TSV_BAD = [  # line, reason
    (b"lone", "wrong number of fields"),
    (b"a\tb\t1\textra", "wrong number of fields"),
    (b"\tb\t1", "no letter or digit"),
    (b"a\t \t1", "no letter or digit"),
    (b"a\t--!?\t1", "no letter or digit"),
    (b"\xff\xfe\tb\t1", "invalid UTF-8"),
    (b"a\tb\xe2\x28\t1", "invalid UTF-8"),
    (b"a\t\xed\xa0\x80x\t1", "invalid UTF-8"),  # a lone surrogate
    *((b"a\tb\t" + w, "a weight that is not a positive finite number") for w in (
        b"0", b"-1", b"nan", b"inf", b"", b"x", b"1e400", b"1e-60", b"1e39", b"0x10", b"\xff",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("line", "reason"), TSV_BAD)
@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.tsv.gz"])
def test_a_bad_row_is_counted_or_named(tmp_path: Path, line: bytes, reason: str, name: str) -> None:
    content = b"query\tkeyword\tweight\n\nq\tk\t1\n" + line + b"\nr\tl\t2\n"
    if name == "p.csv":
        content = content.replace(b"\t", b",")
    path = put(tmp_path / name, content)
    stream = read_pairs(path)
    assert pairs_of(stream) == [("q", "k"), ("r", "l")]
    assert stream.skipped.to_dict() == {reason: 1}
    assert stream.skipped.read == 3
    assert str(stream.skipped) == f"skipped 1 of 3 rows: 1 with {reason}"
    with pytest.raises(InputError, match=re.escape(f"{path}, line 4: {reason}")) as caught:
        read_pairs(path, strict=True).read_all()
    assert "--strict" in caught.value.hint


JSON_BAD = [
    (b'{"query": "a"}', "missing field or null"),
    (b'{"query": null, "keyword": "b"}', "missing field or null"),
    (b'{"query": 7, "keyword": "b"}', "wrong type of value"),
    (b'{"query": ["a"], "keyword": "b"}', "wrong type of value"),
    (b'{"query": "a", "keyword": "b", "weight": "heavy"}', "wrong type of value"),
    (b'{"query": "a", "keyword": "b", "weight": -0.5}', "a weight that is not a positive finite number"),
    (b'{"query": "a", "keyword": "b", "weight": null}', "a weight that is not a positive finite number"),
    (b'{"query": "a", "keyword": "."}', "no letter or digit"),
    (b'{"query": "a", "keyword": "b"', "not a JSON object"),
    (b'{"query": "a", "keyword": "b"} {"query": "a", "keyword": "b"}', "not a JSON object"),
    (b'["a", "b"]', "not a JSON object"),
    (b"null", "not a JSON object"),
    (b'{"query": "a", "keyword": "b"} null', "not a JSON object"),
    (b'{"query": "a", "keyword": "b"}, {"query": "a", "keyword": "b"}', "not a JSON object"),
    (b'{"query": "a", "keyword": "b"}], [{"query": "a", "keyword": "b"}', "not a JSON object"),
    (b'{"query": "a", "keyword": "b", "weight": 1' + b"0" * 5000 + b"}", "not a JSON object"),
    (b'"a"', "not a JSON object"),
    (b'{"query": "\\ud800", "keyword": "b"}', "invalid UTF-8"),
    (b'{"query": "\xff", "keyword": "b"}', "invalid UTF-8"),
    (b'{"query": "\xff", "keyword": 1}', "invalid UTF-8"),
    (b"[" * 100_000, "not a JSON object"),
]


@pytest.mark.parametrize(("line", "reason"), JSON_BAD)
@pytest.mark.parametrize("name", ["p.jsonl", "p.ndjson.gz"])
def test_a_bad_json_line_is_counted_or_named(tmp_path: Path, line: bytes, reason: str, name: str) -> None:
    good = [b'{"query": "q", "keyword": "k", "weight": 1}', b'{"query": "r", "keyword": "l", "weight": 0.5}']
    path = put(tmp_path / name, good[0] + b"\n\n" + line + b"\n" + good[1] + b"\n")
    stream = read_pairs(path)
    assert pairs_of(stream) == [("q", "k"), ("r", "l")]
    assert stream.skipped.to_dict() == {reason: 1}
    with pytest.raises(InputError, match=re.escape(f"{path}, line 3: {reason}")):
        read_pairs(path, strict=True).read_all()


def test_json_that_is_odd_but_good(tmp_path: Path) -> None:
    lines = [
        b'{"query": "a", "keyword": "b", "extra": [1, {"x": null}]}',
        b'{"query": "a", "query": "c", "keyword": "d"}',  # the last one counts, as in most parsers
        b' {"keyword": "\\u00e9\\n", "query": "e"}\r',
    ]
    stream = read_pairs(put(tmp_path / "p.jsonl", b"\n".join(lines)), strict=True)
    assert pairs_of(stream) == [("a", "b"), ("c", "d"), ("e", "é\n")]


def test_bad_parquet_rows(tmp_path: Path) -> None:
    raw = pa.array([b"a", None, b"\xff", b"...", b"a", b"a", "™".encode()], pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())  # Arrow does not look at the bytes
    weight = pa.array([1.0, 1.0, 1.0, 1.0, math.nan, None, 1.0])
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"query": text, "keyword": ["k"] * 7, "weight": weight}), path)
    stream = read_pairs(path)
    assert pairs_of(stream) == [("a", "k"), ("™", "k")]  # ™ normalises to the letters tm
    assert stream.skipped.to_dict() == {
        "missing field or null": 1,
        "invalid UTF-8": 1,
        "no letter or digit": 1,
        "a weight that is not a positive finite number": 2,
    }
    with pytest.raises(InputError, match="row 2: missing field or null"):
        read_pairs(path, strict=True).read_all()


def test_strict_names_the_first_bad_row_of_several(tmp_path: Path) -> None:
    lines = [b"query\tkeyword", *[b"q\tk"] * 50, b"..\tk", b"lone", b"\xff\tk", b"q\tk"]
    path = put(tmp_path / "p.tsv", b"\n".join(lines))
    with pytest.raises(InputError, match="line 52: no letter or digit"):
        read_pairs(path, strict=True).read_all()
    lines[10] = b"lone"
    with pytest.raises(InputError, match="line 11: wrong number of fields"):
        read_pairs(put(path, b"\n".join(lines)), strict=True).read_all()
    with pytest.raises(InputError, match="line 3: wrong number of fields"):
        read_pairs(put(path, b"query\tkeyword\nq\tk\nlone\n"), strict=True).read_all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["q\tk", "q\tk", "lone", "a\tb\tc", ""]), max_size=60))
def test_rows_keep_their_numbers(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Over many blocks, with malformed rows anywhere."""
    path = tmp_path_factory.mktemp("numbers") / "p.tsv"
    path.write_text("\n".join(["query\tkeyword", *lines]))
    rows = [line for line in lines if line]
    numbers: list[int] = []
    malformed: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rbegir.tables.source.BLOCK_BYTES", 16)
        patch.setattr("rbegir.tables.delimited.BLOCK_BYTES", 16)
        source = source_module.open_source(path)
        for block in source.blocks(["query"], lambda number, _: malformed.append(number)):
            numbers += [block.numbers(i) for i in range(block.batch.num_rows)]
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rbegir.tables.source.BLOCK_BYTES", block)
        patch.setattr("rbegir.tables.delimited.BLOCK_BYTES", block)
        if wrong:
            with pytest.raises(InputError, match=rf", line {wrong[0] + 3}: "):
                read_pairs(path, strict=True).count()
        else:
            read_pairs(path, strict=True).count()


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rbegir.tables.source.BLOCK_BYTES", block)
        stream = read_pairs(path)
        assert pairs_of(stream) == good
    assert stream.skipped.total == bad
    assert stream.skipped.read == len(good) + bad


def test_strict_counts_lines_through_quoted_newlines(tmp_path: Path) -> None:
    path = put(tmp_path / "p.csv", b'query,keyword\n"two\nlines",k\n\nq,"..\n"\nq,k\n')
    with pytest.raises(InputError, match="line 5: no letter or digit"):
        read_pairs(path, strict=True).read_all()


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
        kept = stream.count()
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


# ---------------------------------------------------------------- bad files


def test_unknown_suffix(tmp_path: Path) -> None:
    for name in ("pairs", "pairs.gz", "pairs.xlsx", "pairs.parquet.gz"):
        with pytest.raises(InputError, match="does not tell its format") as caught:
            read_pairs(put(tmp_path / name, b"x"))
        assert ".parquet" in caught.value.hint


def test_missing_directory_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileError, match=r"no\.tsv does not exist"):
        read_pairs(tmp_path / "no.tsv")
    (tmp_path / "dir.parquet").mkdir()
    with pytest.raises(FileError, match="is a directory"):
        read_pairs(tmp_path / "dir.parquet")
    path = put(tmp_path / "p.tsv", b"query\tkeyword\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")  # chmod does not stop root, so the test says no itself

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(FileError, match=r"p\.tsv cannot be read: Permission denied"):
        read_pairs(path)


@pytest.mark.parametrize("name", ["p.tsv", "p.csv.gz", "p.jsonl", "p.jsonl.gz", "p.txt", "p.parquet"])
def test_empty_file(tmp_path: Path, name: str) -> None:
    read = read_texts if ".txt" in name else read_pairs
    with pytest.raises(InputError, match="is empty"):
        read(put(tmp_path / name, b""))


@pytest.mark.parametrize("name", ["p.tsv", "p.csv", "p.tsv.gz"])
@pytest.mark.parametrize("tail", [b"", b"\n", b"\n\n\n"])
def test_header_only(tmp_path: Path, name: str, tail: bytes) -> None:
    header = b"query,keyword" if ".csv" in name else b"query\tkeyword"
    stream = read_pairs(put(tmp_path / name, header + tail))
    with pytest.raises(InputError, match="holds no pair"):
        list(stream)


def test_nothing_but_bad_rows(tmp_path: Path) -> None:
    stream = read_pairs(put(tmp_path / "p.tsv", b"query\tkeyword\nlone\n.\t.\n"))
    with pytest.raises(InputError, match="holds no usable pair: skipped 2 of 2 rows"):
        list(stream)


@pytest.mark.parametrize("kind", WRITERS)
def test_missing_column(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"p.{kind}"
    WRITERS[kind](path, [{"alias": "a", "keyword": "b"}])
    with pytest.raises(
        InputError, match="has no column 'query'; its columns are 'alias', 'keyword'"
    ) as caught:
        read_pairs(path)
    assert "--query-column" in caught.value.hint
    with pytest.raises(InputError, match="has no column 'clicks'"):
        read_pairs(path, query_column="alias", weight_column="clicks")
    with pytest.raises(InputError, match="has no column 'label'"):
        read_labels(path, query_column="alias")


def test_column_twice(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has 2 columns named 'query'"):
        read_pairs(put(tmp_path / "p.tsv", b"query\tquery\tkeyword\na\tb\tc\n"))


def test_wrong_column_type(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"query": [1], "keyword": ["a"], "weight": ["1"], "day": [True]}), path)
    with pytest.raises(InputError, match=r"the column 'query' of .* must hold text, got int64"):
        list(read_pairs(path))
    with pytest.raises(InputError, match=r"the column 'day' of .* must hold numbers, got bool"):
        list(read_pairs(path, query_column="keyword", weight_column="day"))
    with pytest.raises(InputError, match=r"the column 'query' of .* must hold text, got double"):
        list(read_pairs(put(tmp_path / "p.jsonl", b'{"query": 1, "keyword": "b"}\n')))


def big_tsv() -> bytes:
    return b"query\tkeyword\n" + b"".join(b"%d q\t%d k\n" % (i * 7919 % 10007, i) for i in range(60_000))


@pytest.mark.parametrize("cut", [1, 8, 1000, 100_000])
def test_truncated_gzip(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "p.tsv.gz"
    path.write_bytes(gzip.compress(big_tsv(), mtime=0)[:-cut])
    with pytest.raises(CorruptError, match=r"p\.tsv\.gz is damaged or cut short: Truncated"):
        read_pairs(path).count()


def test_damaged_and_false_gzip(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    data = bytearray(gzip.compress(b'{"query": "a", "keyword": "b"}\n', mtime=0))
    data[-6] ^= 1  # the checksum
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="damaged"):
        read_pairs(path).count()
    path.write_bytes(b'{"query": "a", "keyword": "b"}\n')
    with pytest.raises(CorruptError, match="damaged"):
        read_pairs(path)


def test_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    write_parquet(path, [{"query": f"q{i}", "keyword": "k"} for i in range(5000)])
    whole = path.read_bytes()
    for part in (whole[:-1], whole[: len(whole) // 2], b"PAR1", b"query,keyword\n"):
        path.write_bytes(part)
        with pytest.raises(CorruptError, match="is not a whole Parquet file"):
            read_pairs(path)
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(FileError, match=r"p\.parquet is damaged or cut short"):
        read_pairs(path).count()


def test_a_quote_that_is_not_closed(tmp_path: Path) -> None:
    for rows in (0, 1, 2_000_000):
        path = put(tmp_path / "p.csv", b'query,keyword\nq,k\nq,"k\n' + b"a,b\n" * rows)
        with pytest.raises(InputError, match=r"p\.csv opens a quote that is never closed") as caught:
            read_pairs(path).count()
        assert '""' in caught.value.hint


def test_rows_that_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "p.tsv", b"query\tkeyword\nq\tk\nq\t" + b"k" * (9 << 20) + b"\nq\tk\n")
    with pytest.raises(InputError, match=r"p\.tsv has a row longer than 4 MB"):
        read_pairs(path).count()
    monkeypatch.setattr(source_module, "MAX_ROW_BYTES", 1 << 20)
    with pytest.raises(InputError, match="has a line longer than 1 MB"):
        read_texts(put(tmp_path / "p.txt", b"x" * (5 << 20))).count()


def test_header_that_is_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no column 'query'"):
        read_pairs(put(tmp_path / "p.tsv", b"\xff\xfe\tkeyword\na\tb\n"))


def test_no_json_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no JSON object in its first lines"):
        read_pairs(put(tmp_path / "p.jsonl", b"query\tkeyword\na\tb\n"))


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize("kind", WRITERS)
def test_labels_in_words(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"l.{kind}"
    words = ["bad", "fair", "good", "excellent", "Bad", "EXCELLENT", "2.5", "-1", "superb", "nan", ""]
    WRITERS[kind](path, [{"query": "q", "title": f"k{i}", "grade": w} for i, w in enumerate(words)])
    stream = read_labels(path, keyword_column="title", label_column="grade")
    table = stream.read_all()
    assert table["label"].to_pylist() == [0, 1, 2, 3, 0, 3, 2.5, -1]
    assert table.schema.names == ["query", "keyword", "label"]
    reason = "a label that is neither bad/fair/good/excellent nor a finite number"
    assert stream.skipped.to_dict() == {reason: 3}
    with pytest.raises(InputError, match=f"(line|row) 1?[09]: {reason}"):
        read_labels(path, keyword_column="title", label_column="grade", strict=True).read_all()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_labels_in_numbers(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"l.{kind}"
    WRITERS[kind](path, [{"query": "q", "keyword": "k", "label": v} for v in (0, 1, None, 3)])
    stream = read_labels(path)
    assert stream.read_all()["label"].to_pylist() == [0, 1, 3]
    assert stream.skipped.total == 1


# ---------------------------------------------------------------- texts


def test_texts_by_line(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt.gz", 'a\r\n\n"b\tc\n \n\xff\nlast'.encode("latin-1"))
    stream = read_texts(path)
    assert [t for b in stream for t in b["text"].to_pylist()] == ["a", '"b\tc', "last"]
    assert stream.skipped.to_dict() == {"no letter or digit": 2, "invalid UTF-8": 1}
    assert not stream.has_ids
    assert stream.attributes == ()
    with pytest.raises(InputError, match="line 2: no letter or digit"):
        read_texts(path, strict=True).read_all()


@pytest.mark.parametrize("kind", WRITERS)
def test_texts_with_ids_and_attributes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"t.{kind}"
    rows: Rows = [
        {"price": 1.5, "sku": 7, "title": "1984", "brand": "x", "sold": True},
        {"price": 2.0, "sku": 8, "title": "300", "brand": "y", "sold": False},
        {"price": 3.0, "sku": 9, "title": "-", "brand": "z", "sold": False},
    ]
    WRITERS[kind](path, rows)
    if kind in ("csv", "tsv"):
        path.write_text(path.read_text().replace("True", "true").replace("False", "false"))
    stream = read_texts(path, text_column="title", id_column="sku")
    table = stream.read_all()
    assert table.schema == pa.schema(
        {
            "text": pa.string(),
            "id": pa.int64(),
            "price": pa.float64(),
            "brand": pa.string(),
            "sold": pa.bool_(),
        }
    )
    assert table.to_pylist() == [
        {"text": r["title"], "id": r["sku"], "price": r["price"], "brand": r["brand"], "sold": r["sold"]}
        for r in rows[:2]
    ]
    assert stream.has_ids
    assert stream.attributes == ("price", "brand", "sold")
    assert stream.skipped.to_dict() == {"no letter or digit": 1}
    plain = read_texts(path, text_column="title")
    assert plain.read_all().schema.names == ["text", "price", "sku", "brand", "sold"]
    assert not plain.has_ids
    with pytest.raises(InputError, match="has no column 'text'") as caught:
        read_texts(path)
    assert "--text-column" in caught.value.hint


def test_attributes_that_change_their_type(tmp_path: Path) -> None:
    rows = b"".join(b"some text\t%d\n" % i for i in range(400_000))
    path = put(tmp_path / "t.tsv", b"text\tprice\n" + rows + b"text\tcheap\n")
    with pytest.raises(InputError, match=r"t\.tsv cannot be parsed: .*column #1.*cheap"):
        read_texts(path).count()


def test_json_columns_that_come_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rbegir.tables.source.BLOCK_BYTES", 1000)
    lines = [b'{"text": "a", "price": %d, "note": null}' % i for i in range(100)]
    path = put(tmp_path / "t.jsonl", b"\n".join([*lines, b'{"text": "b", "price": "high", "note": "n"}']))
    stream = read_texts(path)
    assert stream.count() == 100
    assert stream.skipped.to_dict() == {"wrong type of value": 1}
    path = put(tmp_path / "u.jsonl", b"\n".join([*lines, b'{"text": "b", "colour": "red"}']))
    with pytest.raises(InputError, match="the column 'colour' first appears at line 101, too late") as caught:
        read_texts(path).count()
    assert "Parquet" in caught.value.hint
