"""The same good rows whatever the format: pairs, labels and texts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rbegir.errors import InputError
from rbegir.read.pairs import read_labels, read_pairs, read_texts
from tests.read.files import WRITERS, Rows, blocks_of, pairs_of, put

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
    assert read_pairs(path).read_all().num_rows == 3


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
    WRITERS["tsv"](tmp_path / "p.tsv", GOOD)
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
@blocks_of(1000)
def test_files_of_many_blocks(tmp_path: Path, kind: str) -> None:
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


@blocks_of(200)
def test_head_reads_no_further(tmp_path: Path) -> None:
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


def test_texts_by_line(tmp_path: Path) -> None:
    path = put(tmp_path / "t.txt.gz", 'a\r\n\n"b\tc\n \n\xff\nlast'.encode("latin-1"))
    stream = read_texts(path)
    assert [t for b in stream for t in b["text"].to_pylist()] == ["a", '"b\tc', "last"]
    assert stream.skipped.to_dict() == {"no letter or digit": 2, "invalid UTF-8": 1}
    assert "iconv" in stream.skipped.hint
    assert "--strict" in stream.skipped.hint
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


@pytest.mark.parametrize(
    ("first", "last", "kind"),
    [("%d", "cheap", "whole numbers"), ("%d", "1.5", "whole numbers"), ("%d.5", "x", "numbers")],
)
def test_attributes_that_change_their_type(tmp_path: Path, first: str, last: str, kind: str) -> None:
    rows = "".join(f"some text\t1\t{first % i}\n" for i in range(400_000)).encode()
    path = put(tmp_path / "t.tsv", b"text\tsize\tprice\n" + rows + f"text\t1\t{last}\n".encode())
    with pytest.raises(
        InputError, match=rf"the column 'price' of .*t\.tsv holds {kind} .* but '{last}' later"
    ) as caught:
        read_texts(path).read_all()
    assert "--columns" in caught.value.hint
    assert read_texts(path, columns=["size"]).read_all().column_names == ["text", "size"]
    assert read_texts(path, columns=[]).read_all().num_rows == 400_001


@blocks_of(1000)
def test_json_ids_of_two_types(tmp_path: Path) -> None:
    path = put(tmp_path / "t.jsonl", b'{"text": "a", "id": 1}\n{"text": "b", "id": "b"}\n')
    assert read_texts(path).read_all()["id"].to_pylist() == ["1", "b"]
    late = put(tmp_path / "u.jsonl", b'{"text": "a", "id": 1}\n' * 100 + b'{"text": "b", "id": "b"}\n')
    assert read_texts(late, id_type="string").read_all()["id"].to_pylist() == ["1"] * 100 + ["b"]
    with pytest.raises(InputError, match="an id that is not a whole number: 'b'") as caught:
        read_texts(late).read_all()
    assert "--id-type string" in caught.value.hint
    texts = put(tmp_path / "v.jsonl", b'{"text": "a", "id": "1"}\n{"text": "b", "id": "2"}\n')
    assert read_texts(texts).read_all()["id"].to_pylist() == ["1", "2"]


@blocks_of(1000)
def test_json_columns_that_are_not_asked_for_may_come_late(tmp_path: Path) -> None:
    lines = [b'{"text": "a", "price": %d}' % i for i in range(100)]
    path = put(tmp_path / "t.jsonl", b"\n".join([*lines, b'{"text": "b", "price": 1, "colour": "red"}']))
    assert read_texts(path, columns=["price"]).read_all().num_rows == 101


@blocks_of(1000)
def test_json_columns_that_come_late(tmp_path: Path) -> None:
    lines = [b'{"text": "a", "price": %d, "note": null}' % i for i in range(100)]
    path = put(tmp_path / "t.jsonl", b"\n".join([*lines, b'{"text": "b", "price": "high", "note": "n"}']))
    stream = read_texts(path)
    assert stream.read_all().num_rows == 100
    assert stream.skipped.to_dict() == {"wrong type of value": 1}
    path = put(tmp_path / "u.jsonl", b"\n".join([*lines, b'{"text": "b", "colour": "red"}']))
    with pytest.raises(InputError, match="the column 'colour' first appears at line 101, too late") as caught:
        read_texts(path).read_all()
    assert "Parquet" in caught.value.hint
