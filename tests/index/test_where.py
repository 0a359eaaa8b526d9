"""The textual filter against an interpreter of its own, and the places its errors point at."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import operator
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rbegir.errors import FilterError
from rbegir.index.filter import Filter
from rbegir.index.store import Index
from rbegir.index.where import MAX_LENGTH
from tests.index.fakes import HashEncoder

DAY = datetime.date(2024, 5, 17)
PHRASES = [
    "Red shoes", "red  shoes, cheap", "SHOES red", "redshoes", "red_shoes!", "", "…", "a_b%c\\d",
    "100 % wool", "ÜBER-größe", "über größe", "cafe\u0301 rouge", "cafe rouge", "東京 tower", "東京",
    "red\nshoes",
]  # fmt: skip
ASKED = ["red shoes", "RED", "größe", "shoes-red", "cafe", "café", "cafe\u0301", "東京", "c d", "100"]
PATTERNS = ["%red%", "red%", "%shoes", "_ed %", "%", "", "Red shoes", "%\\%%", "a\\_b%", "___"]
ROWS: list[dict[str, Any]] = [
    {
        "small": None if i % 5 == 0 else i % 7 - 3,
        "big": None if i % 11 == 0 else 2**64 - 1 - i,
        "real": None if i % 4 == 0 else (i % 9 - 4) / 2,
        "word": None if i % 6 == 0 else ["a", "b", "it's", "Ü"][i % 4],
        "flag": None if i % 3 == 0 else i % 2 == 0,
        "phrase": None if i % 7 == 0 else PHRASES[i % len(PHRASES)],
        "tags": None if i % 9 == 0 else [["a", "b", "it's", "Ü"][j % 4] for j in range(i % 4)],
        "nums": None if i % 10 == 0 else [j * i % 7 - 3 for j in range(i % 3)],
        "day": None if i % 8 == 0 else DAY + datetime.timedelta(days=i % 5),
        'odd "name"': i,
    }
    for i in range(97)
]
SCHEMA = pa.schema(
    [
        ("small", pa.int8()),
        ("big", pa.uint64()),
        ("real", pa.float32()),
        ("word", pa.string()),
        ("phrase", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("nums", pa.list_(pa.int16())),
        ("flag", pa.bool_()),
        ("day", pa.date32()),
        ('odd "name"', pa.int64()),
    ]
)
TYPES = {"id": pa.int64(), "text": pa.string(), **dict(zip(SCHEMA.names, SCHEMA.types, strict=True))}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """The rows above in several segments, the first of which lacks some of the columns."""
    made = Index.create(tmp_path_factory.mktemp("where") / "x.rbe", HashEncoder())
    table = pa.Table.from_pylist(ROWS, SCHEMA)
    made.add([f"t{i}" for i in range(len(ROWS))], attributes=table)
    return made


def _passing(index: Index, where: Any) -> list[int]:
    return sorted(index.search("anything", k=1000, where=where).ids[0].tolist())


Truth = bool | None
Expression = tuple[str, Callable[[dict[str, Any]], Truth]]  # text, and what it means for a row
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
LITERALS: dict[str, list[tuple[str, Any]]] = {
    "small": [("0", 0), ("-2", -2), ("+3", 3), ("1.5", 1.5), ("1e3", 1000.0), ("999", 999), ("1e30", 1e30)],
    "big": [("18446744073709551610", 2**64 - 6), ("0", 0), ("-1", -1), ("-0.5", -0.5), ("1e30", 1e30)],
    "real": [("0", 0), (".5", 0.5), ("-1.5e0", -1.5), ("2.", 2.0)],
    "word": [("'a'", "a"), ("'it''s'", "it's"), ("''", ""), ("'Ü'", "Ü")],
    "flag": [("true", True), ("FALSE", False)],
    "day": [
        ("'2024-05-18'", DAY + datetime.timedelta(days=1)),
        ("'1999-12-31'", datetime.date(1999, 12, 31)),
    ],
}


ITEMS: dict[str, list[tuple[str, Any]]] = {
    "tags": [("'a'", "a"), ("'Ü'", "Ü"), ("'it''s'", "it's"), ("'none'", "none")],
    "nums": [("-3", -3), ("2", 2), ("1.5", 1.5), ("99999999", 99999999), ("1e30", 1e30)],
}


@st.composite
def item_tests(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(sorted(ITEMS)))
    options = draw(st.lists(st.sampled_from(ITEMS[name]), min_size=1, max_size=3))
    values = [value for _, value in options]
    shape = draw(st.sampled_from(["in", "not in", "contains"]))
    if shape == "contains":
        literal, value = options[0]
        return f"contains({name}, {literal})", lambda row: None if row[name] is None else value in row[name]
    text = f"{name} {shape} ({', '.join(literal for literal, _ in options)})"
    return (
        text,
        lambda row: (
            None if row[name] is None else any(item in values for item in row[name]) == (shape == "in")
        ),
    )


def words(text: str) -> list[str]:
    """Runs of letters, marks and digits, in lower case."""
    runs = itertools.groupby(text.lower(), lambda one: unicodedata.category(one)[0] in "LMN")
    return ["".join(run) for inside, run in runs if inside]


def like(text: str, pattern: str) -> bool:
    """SQL's LIKE, character by character."""
    if not pattern:
        return not text
    head, rest = pattern[0], pattern[1:]
    if head == "%":
        return any(like(text[start:], rest) for start in range(len(text) + 1))
    if head == "\\" and rest:
        return text[:1] == rest[0] and like(text[1:], rest[1:])
    return bool(text) and (head == "_" or head == text[0]) and like(text[1:], rest)


@st.composite
def text_tests(draw: st.DrawFn) -> Expression:
    shape = draw(st.sampled_from(["like", "not like", "contains"]))
    if shape == "contains":
        asked = draw(st.sampled_from(ASKED))
        wanted = words(asked)

        def meaning(row: dict[str, Any]) -> Truth:
            if row["phrase"] is None:
                return None
            found = words(row["phrase"])
            return any(found[at : at + len(wanted)] == wanted for at in range(len(found)))

        return f"CONTAINS(phrase, '{asked}')", meaning
    pattern = draw(st.sampled_from(PATTERNS))
    return (
        f"phrase {shape} '{pattern}'",
        lambda row: None if row["phrase"] is None else like(row["phrase"], pattern) == (shape == "like"),
    )


@st.composite
def comparisons(draw: st.DrawFn) -> Expression:
    name = draw(st.sampled_from(sorted(LITERALS)))
    shape = draw(st.sampled_from(["op", "turned", "in", "not in", "null", "not null", "bare"]))
    if shape == "bare":
        return "flag", lambda row: row["flag"]
    if shape in ("null", "not null"):
        wanted = shape == "null"
        return f"{name} is {shape}", lambda row: (row[name] is None) == wanted
    if shape in ("in", "not in"):
        options = draw(st.lists(st.sampled_from(LITERALS[name]), min_size=1, max_size=4))
        values = [value for _, value in options]
        text = f"{name} {shape} ({', '.join(literal for literal, _ in options)})"
        return text, lambda row: None if row[name] is None else (row[name] in values) == (shape == "in")
    sign = draw(st.sampled_from(sorted(OPERATORS)))
    literal, value = draw(st.sampled_from(LITERALS[name]))
    compare = OPERATORS[sign]
    if shape == "turned":
        return (
            f"{literal} {sign} {name}",
            lambda row: None if row[name] is None else compare(value, row[name]),
        )
    return f"{name}{sign}{literal}", lambda row: None if row[name] is None else compare(row[name], value)


def _both(kind: str, left: Expression, right: Expression) -> Expression:
    decisive = kind == "or"

    def meaning(row: dict[str, Any]) -> Truth:
        truths = (left[1](row), right[1](row))
        if decisive in truths:
            return decisive
        return None if None in truths else not decisive

    return f"({left[0]}) {kind} ({right[0]})", meaning


def _negated(inner: Expression) -> Expression:
    def meaning(row: dict[str, Any]) -> Truth:
        truth = inner[1](row)
        return None if truth is None else not truth

    return f"NOT ({inner[0]})", meaning


filters = st.recursive(
    st.one_of(comparisons(), item_tests(), text_tests()),
    lambda inner: st.one_of(
        st.builds(_both, st.sampled_from(["and", "or"]), inner, inner), st.builds(_negated, inner)
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(expression=filters)
def test_it_means_what_it_says(index: Index, expression: Expression) -> None:
    text, meaning = expression
    assert _passing(index, text) == [i for i, row in enumerate(ROWS) if meaning(row) is True]


def test_and_binds_tighter_than_or(index: Index) -> None:
    wanted = [
        i for i, row in enumerate(ROWS) if row["flag"] is True or (row["word"] == "a" and row["small"] == 1)
    ]
    assert _passing(index, "flag or word = 'a' and small = 1") == wanted


def test_columns_may_be_called_like_a_test() -> None:
    types = {"like": pa.string(), "contains": pa.string(), "In": pa.int8()}
    for text in ("like like 'a%'", "contains = 'a' and contains(contains, 'a')", "\"contains\" not like 'a'"):
        Filter(text, types)


def test_columns_of_every_segment(index: Index) -> None:
    assert _passing(index, "id in (3, 5) or text = 't7'") == [3, 5, 7]
    assert _passing(index, '"odd ""name""" < 3') == [0, 1, 2]
    assert _passing(index, 'small = "odd ""name"""') == [i for i, r in enumerate(ROWS) if r["small"] == i]


def test_both_zeros_of_floats_are_zero(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add(["a", "b", "c"], attributes={"x": [0.0, -0.0, 1.0]})
        for zero in ("0", "-0.0"):
            assert _passing(index, f"x = {zero}") == _passing(index, f"x in ({zero}, 7)") == [0, 1]
            assert _passing(index, f"x not in ({zero})") == [2]


def test_columns_of_different_numbers(tmp_path: Path) -> None:
    columns = {
        "whole": pa.array([2**24 + 1, -1, 5, 2**40], pa.int64()),
        "single": pa.array([2**24, -1, 5, None], pa.float32()),
        "double": pa.array([2.0**24, -1.5, 5, 2.0**40]),
        "unsigned": pa.array([2**64 - 1, 2**64 - 1, 5, 2**40], pa.uint64()),
    }
    rows = pa.table(columns).to_pylist()
    meanings = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, ">=": operator.ge}
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add(["a", "b", "c", "d"], attributes=columns)
        pairs = [pair for pair in itertools.permutations(columns, 2) if set(pair) != {"unsigned", "double"}]
        for (one, other), (op, meaning) in itertools.product(pairs, meanings.items()):
            if {one, other} == {"unsigned", "single"}:
                continue  # 2⁶⁴ − 1 is no float
            values = [(row[one], row[other]) for row in rows]
            wanted = [i for i, both in enumerate(values) if None not in both and meaning(*both)]
            assert _passing(index, f"{one} {op} {other}") == wanted


def test_times_of_different_zones(tmp_path: Path) -> None:
    days = [datetime.datetime(2024, 5, day, 12) for day in (1, 2, 3)]
    columns = {
        "ours": pc.assume_timezone(pa.array(days, pa.timestamp("us")), "UTC"),
        "theirs": pc.assume_timezone(pa.array([days[0], days[0], days[2]], pa.timestamp("ms")), "Asia/Tokyo"),
    }
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add(["a", "b", "c"], attributes=columns)
        assert _passing(index, "ours < theirs") == []  # noon in Tokyo is before noon in Greenwich
        assert _passing(index, "theirs < ours") == [0, 1, 2]
        assert _passing(index, "theirs >= ours or ours != theirs") == [0, 1, 2]


def test_arrow_expressions(index: Index) -> None:
    wanted = [i for i, row in enumerate(ROWS) if row["small"] is not None and row["small"] > 1]
    assert _passing(index, pc.field("small") > 1) == wanted
    assert _passing(index, pc.scalar(True)) == list(range(len(ROWS)))
    with pytest.raises(FilterError, match=r"where cannot be evaluated: No match for FieldRef.Name\(nope\)"):
        _passing(index, pc.field("nope") > 1)
    with pytest.raises(FilterError, match="where must be true or false per keyword, but it gives int8"):
        _passing(index, pc.field("small"))
    with pytest.raises(FilterError, match="where must be a text or a pyarrow expression, got int"):
        _passing(index, 5)


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("", "there is nothing in it", 1),
        ("   ", "there is nothing in it", 1),
        ("small <", "expected a column or a value, found the end", 8),
        ("small < 3 4", "expected and, or, or the end, found 4", 11),
        ("(small < 3", "expected ')', found the end", 11),
        ("nope = 3", "there is no column 'nope'", 1),
        ("small", "expected a comparison, found the end", 6),
        ("3 < 4", "one side of a comparison must be a column", 1),
        ("word = 'open", "a text without its closing quote", 8),
        ("small < 3; drop", "';' is not understood", 10),
        ("small = null", "nothing equals null", 9),
        ("small is 3", "expected 'null', found 3", 10),
        ("small in 3", "expected '(', found 3", 10),
        ("small in ()", "expected a column or a value, found ')'", 11),
        ("small not 3", "expected 'in', found 3", 11),
        ("small = 'a'", "small is int8, which does not compare with 'a'", 9),
        ("word = 3", "word is string, which does not compare with 3", 8),
        ("flag = 1", "flag is bool, which does not compare with 1", 8),
        ("day < 'tomorrow'", "day is date32[day], which 'tomorrow' is not", 7),
        ("small < 18446744073709551616", "18446744073709551616 is too large a number", 9),
        ("small < 1e999", "1e999 is too large a number", 9),
        ("small = word", "small (int8) and word (string) cannot be compared", 7),
        ("not " * 65 + "flag", "it is nested more than 64 deep", 257),
        ("tags = 'a'", "tags is list<item: string>, which does not compare with 'a'", 8),
        ("tags = tags", "tags (list<item: string>) and tags (list<item: string>) cannot be compared", 6),
        ("contains(nums, 'a')", "nums is int16, which does not compare with 'a'", 16),
        ("contains('a', 'a')", "the first argument of contains must be a column", 10),
        ("contains(small, 3)", "small is int8, which cannot contain 3", 17),
        ("contains(word, '—')", "contains needs a word: letters or digits", 16),
        ("contains(word 'a')", "expected ',', found 'a'", 15),
        ("small like 'a'", "like compares a column of texts with a pattern in quotes, got int8 and 'a'", 12),
        ("word like 3", "like compares a column of texts with a pattern in quotes, got string and 3", 11),
        ("__import__('os')", "there is no column '__import__'", 1),
    ],
)
def test_errors_point_at_the_place(text: str, message: str, place: int) -> None:
    with pytest.raises(FilterError) as caught:
        Filter(text, TYPES)
    assert caught.value.message.startswith(f"where cannot be understood at character {place}: {message}: ")
    assert "⟨here⟩" in caught.value.message
    assert caught.value.hint


def test_texts_in_double_quotes_are_explained() -> None:
    with pytest.raises(FilterError, match="there is no column 'en'") as caught:
        Filter('word == "en"', TYPES)
    assert caught.value.hint.startswith(
        "a text stands in single quotes, a column in double ones; the columns"
    )


def test_names_are_listed_as_a_filter_writes_them() -> None:
    odd = {"Price (EUR)": pa.float64(), "in": pa.string(), '5"': pa.string()}
    with pytest.raises(FilterError, match="there is no column 'Price'") as caught:
        Filter("Price (EUR) < 100", odd)
    assert caught.value.hint == 'the columns are: "5""", "Price (EUR)", "in"'
    Filter('"Price (EUR)" < 100 and "in" = \'a\' and "5""" = \'b\'', odd)


def test_a_number_for_a_column_of_texts_is_explained() -> None:
    with pytest.raises(FilterError, match="word is string, which does not compare with 3") as caught:
        Filter("word < 3", TYPES)
    assert caught.value.hint.startswith("write the value in single quotes: '3'; to compare numbers, ")


@pytest.mark.parametrize(
    ("text", "place"), [("'\ud800' = word", 2), ("word like 'a\udfff'", 13), ('"\ud800" = 1', 2)]
)
def test_half_a_character_is_refused(text: str, place: int) -> None:
    with pytest.raises(FilterError, match=f"^where holds a lone surrogate at character {place}$"):
        Filter(text, TYPES)


def test_too_long_a_filter() -> None:
    with pytest.raises(FilterError, match=f"at most {MAX_LENGTH} are read"):
        Filter("flag and " * (MAX_LENGTH // 9 + 1) + "flag", TYPES)


@settings(max_examples=300)
@given(text=st.text(alphabet="ab'\"()<>=!,. 019-+eflaginotru sml\n\t\0é", max_size=40))
def test_any_text_is_a_filter_or_an_error(text: str) -> None:
    with contextlib.suppress(FilterError):
        Filter(text, TYPES)


def test_masks_are_kept_and_not_mixed_up(tmp_path: Path) -> None:
    with Index.create(tmp_path / "x.rbe", HashEncoder()) as index:
        index.add([f"t{i}" for i in range(50)], attributes={"price": list(range(50))})
        for _ in range(2):
            for limit in range(40):
                assert _passing(index, f"price < {limit}") == list(range(limit))


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Paris"])
def test_a_time_without_an_offset_is_one_of_the_columns_zone(tmp_path: Path, zone: str | None) -> None:
    days = [datetime.datetime(2022, 12, 31, 23, 59, 59), datetime.datetime(2023, 1, 1)]
    when = pc.assume_timezone(pa.array(days, pa.timestamp("us")), zone) if zone else pa.array(days)
    with Index.create(tmp_path / "t.rbe", HashEncoder()) as index:
        index.add(["before", "after"], attributes={"at": when})
        for asked in ("2023-01-01", "2023-01-01 00:00:00"):
            assert index.count(where=f"at >= '{asked}'") == 1
        with pytest.raises(FilterError, match="which 'soon' is not"):
            index.count(where="at < 'soon'")
