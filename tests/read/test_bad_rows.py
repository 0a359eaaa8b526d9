"""Every bad row is counted, or with `strict` named by its line."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.errors import InputError
from rbegir.read import delimited
from rbegir.read.pairs import read_pairs
from rbegir.read.source import FileRequest
from tests.read.files import blocks_of, pairs_of, put

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


def test_strict_counts_lines_through_quoted_newlines(tmp_path: Path) -> None:
    path = put(tmp_path / "p.csv", b'query,keyword\n"two\nlines",k\n\nq,"..\n"\nq,k\n')
    with pytest.raises(InputError, match="line 5: no letter or digit"):
        read_pairs(path, strict=True).read_all()


def test_strict_counts_lines_of_unicode_spaces(tmp_path: Path) -> None:
    path = put(tmp_path / "p.jsonl", '{"query": "q", "keyword": "k"}\n\u2003\nlone\n'.encode())
    with pytest.raises(InputError, match="line 3: not a JSON object"):
        read_pairs(path, strict=True).read_all()


def test_strict_names_the_line_of_a_very_long_field(tmp_path: Path) -> None:
    path = put(tmp_path / "p.csv", b'query,keyword\nq,k\n"' + b"long " * 40_000 + b'",\nq,k\n')
    with pytest.raises(InputError, match="line 3: no letter or digit"):
        read_pairs(path, strict=True).read_all()


def test_a_reader_that_is_left_early_reads_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of Arrow that still read when Python ends would abort the process."""
    path = put(tmp_path / "pairs.csv", b"query,keyword\n" + b"new york,giants\n" * 400_000)  # 98 blocks
    read: list[int] = []
    whole = delimited._Utf8.read

    def noted(text: delimited._Utf8, size: int) -> bytes:
        part = whole(text, size)
        read.append(len(part))
        return part

    monkeypatch.setattr(delimited._Utf8, "read", noted)
    with blocks_of(1 << 16):
        source = delimited.DelimitedSource(path, quoted=True)
        assert source.columns == ["query", "keyword"]
        assert len(read) == 1  # the header takes one block, and nothing is read ahead
        blocks = source.blocks(FileRequest(["query", "keyword"], lambda number, reason: None))
        next(blocks)
        blocks.close()
    assert read[-1] == 0  # the end
    assert len(read) < 60
