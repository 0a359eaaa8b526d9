"""Files that cannot be read at all: each says what is wrong with it and what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.errors import CorruptError, FileError, InputError
from rbegir.read import source as source_module
from rbegir.read.pairs import read_labels, read_pairs, read_texts
from tests.read.files import WRITERS, put


def test_unknown_suffix(tmp_path: Path) -> None:
    for name in ("pairs", "pairs.gz", "pairs.xlsx", "pairs.parquet.gz"):
        with pytest.raises(InputError, match="is not that of a known format") as caught:
            read_pairs(put(tmp_path / name, b"x"))
        assert ".parquet" in caught.value.hint
        assert "DataFrame" in caught.value.hint


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
    with pytest.raises(InputError, match="is empty") as caught:
        read(put(tmp_path / name, b""))
    assert caught.value.hint == "name a file that holds rows"


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


@pytest.mark.parametrize(("name", "mark"), [("p.csv", ";"), ("p.csv", "\t"), ("p.tsv", ",")])
def test_columns_that_stand_between_other_marks(tmp_path: Path, name: str, mark: str) -> None:
    with pytest.raises(InputError, match="has no column 'query'") as caught:
        read_pairs(put(tmp_path / name, f"query{mark}keyword\na{mark}b\n".encode()))
    assert caught.value.hint.startswith("that looks like several")
    assert ("sep=';'" in caught.value.hint) == (mark == ";")


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_utf_16(tmp_path: Path, order: str) -> None:
    with pytest.raises(InputError, match="is UTF-16, expected UTF-8") as caught:
        read_pairs(put(tmp_path / "p.csv", "\ufeffquery,keyword\na,b\n".encode(order)))
    assert "iconv" in caught.value.hint


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
        read_pairs(path).read_all()


def test_damaged_and_false_gzip(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl.gz"
    data = bytearray(gzip.compress(b'{"query": "a", "keyword": "b"}\n', mtime=0))
    data[-6] ^= 1  # the checksum
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="damaged"):
        read_pairs(path).read_all()
    path.write_bytes(b'{"query": "a", "keyword": "b"}\n')
    with pytest.raises(CorruptError, match="damaged"):
        read_pairs(path)


def test_damaged_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    WRITERS["parquet"](path, [{"query": f"q{i}", "keyword": "k"} for i in range(5000)])
    whole = path.read_bytes()
    for part in (whole[:-1], whole[: len(whole) // 2], b"PAR1", b"query,keyword\n"):
        path.write_bytes(part)
        with pytest.raises(CorruptError, match="is not a whole Parquet file"):
            read_pairs(path)
    path.write_bytes(whole[:4] + bytes(len(whole) // 2) + whole[4 + len(whole) // 2 :])
    with pytest.raises(FileError, match=r"p\.parquet is damaged or cut short"):
        read_pairs(path).read_all()


def test_a_quote_that_is_not_closed(tmp_path: Path) -> None:
    for rows in (0, 1, 2_000_000):
        path = put(tmp_path / "p.csv", b'query,keyword\nq,k\nq,"k\n' + b"a,b\n" * rows)
        with pytest.raises(InputError, match=r"p\.csv opens a quote that is never closed") as caught:
            read_pairs(path).read_all()
        assert '""' in caught.value.hint


def test_rows_that_never_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "p.tsv", b"query\tkeyword\nq\tk\nq\t" + b"k" * (9 << 20) + b"\nq\tk\n")
    with pytest.raises(InputError, match=r"p\.tsv has a row longer than 4 MB"):
        read_pairs(path).read_all()
    monkeypatch.setattr(source_module, "MAX_ROW_BYTES", 1 << 20)
    with pytest.raises(InputError, match="has a line longer than 1 MB"):
        read_texts(put(tmp_path / "p.txt", b"x" * (5 << 20))).read_all()


def test_header_that_is_not_utf8(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no column 'query'"):
        read_pairs(put(tmp_path / "p.tsv", b"\xff\tkeyword\na\tb\n"))


def test_no_json_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no JSON object in its first lines"):
        read_pairs(put(tmp_path / "p.jsonl", b"query\tkeyword\na\tb\n"))


@pytest.mark.parametrize("rows", [[], [1], [("a",)], [("a", "b", 1, 2)], [("a", "b"), ("c", "d", 1)]])
def test_lists_of_wrong_rows(rows: list[object]) -> None:
    with pytest.raises(InputError, match="expected a path, a DataFrame, an Arrow table or a list of rows"):
        read_pairs(rows)


def test_rows_of_a_wrong_type_are_named() -> None:
    with pytest.raises(InputError, match="got list of int and tuple"):
        read_pairs([("a", "b"), 1])
    with pytest.raises(InputError, match=r"but texts\[1\] is of type int"):
        read_texts(["red shoes", 1])


def test_a_table_in_memory_is_not_called_by_its_temporary_path() -> None:
    with pytest.raises(InputError, match=r"^the table has no column 'text'; its columns are 'company'"):
        read_texts(pa.table({"company": ["a"]}))
    with pytest.raises(InputError, match=r"^the table, row 2: missing field or null"):
        read_texts(["a", None], strict=True).read_all()
