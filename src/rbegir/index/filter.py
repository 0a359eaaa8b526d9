"""Filters: from a `where` to the keywords of a segment that pass it.

A filter is a pyarrow expression, given as such or as text in a small language that can do nothing dangerous:

    filter   := all { "or" all }
    all      := one { "and" one }
    one      := "not" one | "(" filter ")" | test
    test     := column [ "not" ] "in" "(" value { "," value } ")"
              | column "is" [ "not" ] "null"
              | column op value | value op column | column op column
              | column                                          a column of true and false
    op       := "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    value    := number | 'text' ('' is a quote in it) | true | false
    column   := a name, or any name in "double quotes"; `id` and `text` are columns too

    price < 10 and lang = 'en' and tag in ('a', 'b') and not sold

A test on a null is neither true nor false, as in SQL: the keyword passes neither the test nor its `not`.
Dates and times are compared with text in ISO form. Nothing is ever evaluated as Python. Errors show the
position in the text.

Arrow evaluates the expression over the mapped columns of a segment, block by block, and reads only the
columns that it names. The result is a mask, and the scan scores only what is in the mask, so the filtered
top k is the true top k of what passes, for any selectivity. Segments never change, so the masks of recent
textual filters are kept with each segment and a repeated filter costs nothing.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base import masks
from rbegir.errors import FilterError
from rbegir.index.segment import Segment

BLOCK_ROWS = 1 << 20  # rows evaluated at a time
KEPT = 16  # masks kept per segment
MAX_LENGTH = 1 << 20
MAX_DEPTH = 64
MAX_TESTS = 10_000
CHAIN = 8  # tests that stand side by side for Arrow

_TOKEN = re.compile(
    r"""(?P<space>\s+)
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<name>[^\W\d]\w*)
      | (?P<op><=|>=|<>|!=|==|=|<|>)
      | (?P<mark>[(),])""",
    re.VERBOSE,
)
_WORDS = {"and", "or", "not", "in", "is", "null", "true", "false"}
_COMPARE = {"=": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
_SAME = {"==": "=", "<>": "!="}
_TURN = str.maketrans("<>", "><")  # 3 < x is x > 3
_EXAMPLE = "write for example: price < 10 and lang = 'en' and tag in ('a', 'b') and not sold"


class Filter:
    """A `where` bound to the columns of an index."""

    def __init__(self, where: str | pc.Expression, types: Mapping[str, pa.DataType]) -> None:
        self._types = dict(types)
        if isinstance(where, str):
            self._key: str | None = where
            self._expression, self._columns = parse(where, types)
            self._evaluate(_nothing({name: types[name] for name in self._columns}))
        elif isinstance(where, pc.Expression):
            self._key = None
            self._expression = where
            self._columns = self._named_columns()
        else:
            raise FilterError(
                f"where must be a text or a pyarrow expression, got {type(where).__name__}",
                hint="write for example where=\"price < 10\" or where=pyarrow.compute.field('price') < 10",
            )

    def passing(self, segment: Segment) -> masks.Mask:
        """The positions of the segment for which the filter is true."""
        if self._key is not None and self._key in segment.filters:
            return segment.filters[self._key]
        here = {"id", *segment.types}
        columns = {name: segment.whole(name) if name in here else None for name in self._columns}
        flags = np.zeros(segment.count, np.bool_)
        for start in range(0, segment.count, BLOCK_ROWS):
            size = min(BLOCK_ROWS, segment.count - start)
            arrays = [
                pa.nulls(size, self._types[name]) if column is None else column.slice(start, size)
                for name, column in columns.items()
            ]
            # a table without columns has no rows, so add one that is never read
            table = pa.table([*arrays, pa.nulls(size)], names=[*columns, ""])
            flags[start : start + size] = self._evaluate(table)
        mask = masks.from_bools(flags)
        if self._key is not None:
            for old in list(segment.filters)[: 1 - KEPT]:
                segment.filters.pop(old, None)
            segment.filters[self._key] = masks.freeze(mask)
        return mask

    def _named_columns(self) -> list[str]:
        """The columns that an expression of pyarrow may need: Arrow does not list them, but it shows them.

        Raises FilterError if the expression fails even with all columns.
        """
        shown = str(self._expression)
        named = [name for name in self._types if name in shown]
        try:
            self._evaluate(_nothing({name: self._types[name] for name in named}))
        except FilterError:  # it is wrong, or shown with other names or not as a whole
            named = list(self._types)
            self._evaluate(_nothing(self._types))
        return named

    def _evaluate(self, table: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        from pyarrow import acero  # as slow to import as the rest of pyarrow, so only filters import it

        plan = acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
                acero.Declaration("project", acero.ProjectNodeOptions([self._expression], ["passes"])),
            ]
        )
        try:
            result = plan.to_table(use_threads=False).column("passes")
        except (pa.ArrowException, KeyError, TypeError) as error:
            raise FilterError(
                f"where cannot be evaluated: {str(error).splitlines()[0]}",
                hint=f"the columns are: {', '.join(f'{name} ({t})' for name, t in self._types.items())}",
            ) from error
        if not pa.types.is_boolean(result.type):
            raise FilterError(f"where must be true or false per keyword, but it gives {result.type}")
        flags = result.fill_null(False).combine_chunks()
        bits = np.frombuffer(flags.buffers()[1] or b"", np.uint8)
        return np.unpackbits(bits, count=flags.offset + len(flags), bitorder="little")[flags.offset :].view(
            np.bool_
        )


def _nothing(types: Mapping[str, pa.DataType]) -> pa.Table:
    names = [*types, ""]
    return pa.table([pa.nulls(0, t) for t in (*types.values(), pa.null())], names=names)


class _Token(NamedTuple):
    kind: str  # number, text, name, word, op, mark, end
    value: Any
    at: int


class _Column(NamedTuple):
    name: str
    type: pa.DataType
    at: int


class _Value(NamedTuple):
    value: bool | int | float | str
    at: int


def parse(text: str, types: Mapping[str, pa.DataType]) -> tuple[pc.Expression, list[str]]:
    """Parse a textual filter over columns of these types; returns it and the columns that it names."""
    parser = _Parser(text, types)
    return parser.parse(), list(parser.named)


def _joined(parts: list[pc.Expression], join: Callable[[Any, Any], Any]) -> pc.Expression:
    """The parts joined as a tree of short chains: Arrow's recursion over a long one ends the process.

    Arrow would make one chain of the tree again, but not across the double `not` between its levels.
    """
    while len(parts) > CHAIN:
        chains = [functools.reduce(join, parts[at : at + CHAIN]) for at in range(0, len(parts), CHAIN)]
        parts = [~~chain for chain in chains]
    return functools.reduce(join, parts)


class _Parser:
    def __init__(self, text: str, types: Mapping[str, pa.DataType]) -> None:
        self._text = text
        self._types = types
        if len(text) > MAX_LENGTH:
            raise FilterError(f"where is {len(text)} characters long, at most {MAX_LENGTH} are read")
        self._tokens = self._tokenize()
        self._next = 0
        self._depth = 0
        self._tests = 0
        self.named: dict[str, None] = {}  # the columns in the order of the text

    def parse(self) -> pc.Expression:
        if self._peek().kind == "end":
            self._fail("there is nothing in it", 0)
        found = self._any()
        if self._peek().kind != "end":
            self._fail(f"expected and, or, or the end, found {self._shown(self._peek())}", self._peek().at)
        return found

    def _any(self) -> pc.Expression:
        parts = [self._all()]
        while self._accept("word", "or"):
            parts.append(self._all())
        return _joined(parts, operator.or_)

    def _all(self) -> pc.Expression:
        parts = [self._one()]
        while self._accept("word", "and"):
            parts.append(self._one())
        return _joined(parts, operator.and_)

    def _one(self) -> pc.Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"it is nested more than {MAX_DEPTH} deep", self._peek().at)
        if self._accept("word", "not"):
            found = ~self._one()
        elif self._accept("mark", "("):
            found = self._any()
            self._expect("mark", ")")
        else:
            found = self._test()
        self._depth -= 1
        return found

    def _test(self) -> pc.Expression:
        self._tests += 1
        if self._tests > MAX_TESTS:
            self._fail(
                f"it has more than {MAX_TESTS} tests",
                self._peek().at,
                hint="list values: tag in ('a', 'b', …)",
            )
        left = self._operand()
        if isinstance(left, _Column):
            if self._accept("word", "is"):
                negated = self._accept("word", "not")
                self._expect("word", "null")
                return pc.field(left.name).is_valid() if negated else pc.field(left.name).is_null()
            if self._accept("word", "in"):
                return self._in(left)
            if self._peek()[:2] == ("word", "not"):
                self._take()
                self._expect("word", "in")
                return ~self._in(left)
        if self._peek().kind == "op":
            return self._compare(left, self._take(), self._operand())
        if isinstance(left, _Column) and pa.types.is_boolean(left.type):
            return pc.field(left.name)
        return self._fail(f"expected a comparison, found {self._shown(self._peek())}", self._peek().at)

    def _in(self, column: _Column) -> pc.Expression:
        self._expect("mark", "(")
        values = [self._value()]
        while self._accept("mark", ","):
            values.append(self._value())
        self._expect("mark", ")")
        scalars = [self._scalar(column, value) for value in values]
        known = [scalar for scalar in scalars if isinstance(scalar, pa.Scalar)]  # others equal nothing
        options = pa.array([scalar.as_py() for scalar in known], known[0].type if known else column.type)
        field = pc.field(column.name)
        if _family(column.type) == "number":
            wide = pa.float64() if pa.types.is_floating(column.type) else _widest(column.type)
            field, options = field.cast(wide), options.cast(wide)
        return pc.if_else(field.is_valid(), field.isin(options), pa.scalar(None, pa.bool_()))

    def _compare(self, left: _Column | _Value, op: _Token, right: _Column | _Value) -> pc.Expression:
        if isinstance(left, _Column) and isinstance(right, _Column):
            if _family(left.type) != _family(right.type):
                self._fail(
                    f"{left.name} ({left.type}) and {right.name} ({right.type}) cannot be compared", op.at
                )
            return getattr(pc.field(left.name), _COMPARE[op.value])(pc.field(right.name))
        if isinstance(left, _Column) and isinstance(right, _Value):
            return self._against(left, op.value, right)
        if isinstance(left, _Value) and isinstance(right, _Column):
            return self._against(right, op.value.translate(_TURN), left)
        return self._fail("one side of a comparison must be a column", left.at)

    def _against(self, column: _Column, op: str, value: _Value) -> pc.Expression:
        """column op value, exactly: whole numbers are never rounded to compare them with a fraction."""
        field = pc.field(column.name)
        scalar = self._scalar(column, value)
        if isinstance(scalar, pa.Scalar):
            return getattr(field, _COMPARE[op])(pc.scalar(scalar))
        below, above = scalar  # the neighbours of a number that the column cannot hold, None: there is none
        if op in ("=", "!="):
            return field == field if op == "!=" else field != field  # always or never, but for null
        if op in ("<", "<="):
            return field != field if below is None else field <= pc.scalar(below)
        return field != field if above is None else field >= pc.scalar(above)

    def _scalar(
        self, column: _Column, value: _Value
    ) -> pa.Scalar | tuple[pa.Scalar | None, pa.Scalar | None]:
        """A value as something that compares with the column, or an error that says why it does not.

        A number that a column of whole numbers cannot hold gives its neighbours that it can.
        """
        raw, family = value.value, _family(column.type)
        if family == "time" and isinstance(raw, str):
            try:
                return pa.scalar(raw).cast(column.type)
            except pa.ArrowInvalid:
                self._fail(f"{column.name} is {column.type}, which {raw!r} is not", value.at)
        if family == "text" and isinstance(raw, str):
            return pa.scalar(raw, pa.string())
        if family == "bool" and isinstance(raw, bool):
            return pa.scalar(raw, pa.bool_())
        if family == "number" and isinstance(raw, (int, float)) and not isinstance(raw, bool):
            if pa.types.is_floating(column.type):
                return pa.scalar(float(raw), pa.float64())
            wide = _widest(column.type)
            low, high = (0, 2**64 - 1) if wide == pa.uint64() else (-(2**63), 2**63 - 1)
            below, above = math.floor(raw), math.ceil(raw)
            if below == above and low <= below <= high:
                return pa.scalar(below, wide)
            return (
                None if below < low else pa.scalar(min(below, high), wide),
                None if above > high else pa.scalar(max(above, low), wide),
            )
        return self._fail(f"{column.name} is {column.type}, which does not compare with {raw!r}", value.at)

    def _operand(self) -> _Column | _Value:
        token = self._peek()
        if token.kind == "name":
            self._take()
            if token.value not in self._types:
                hint = f"the columns are: {', '.join(sorted(self._types)) or 'none'}"
                if self._text[token.at] == '"':
                    hint = f"a text stands in single quotes, a column in double ones; {hint}"
                self._fail(f"there is no column {token.value!r}", token.at, hint=hint)
            self.named[token.value] = None
            return _Column(token.value, self._types[token.value], token.at)
        return self._value()

    def _value(self) -> _Value:
        token = self._take()
        if token.kind in ("number", "text"):
            return _Value(token.value, token.at)
        if token[:2] in (("word", "true"), ("word", "false")):
            return _Value(token.value == "true", token.at)
        if token[:2] == ("word", "null"):
            self._fail("nothing equals null", token.at, hint="write: column is null")
        return self._fail(f"expected a column or a value, found {self._shown(token)}", token.at)

    def _tokenize(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                odd = self._text[at]
                self._fail(
                    "a text without its closing quote" if odd in "'\"" else f"{odd!r} is not understood", at
                )
            kind, raw = str(match.lastgroup), match.group()
            if kind == "number":
                tokens.append(_Token(kind, self._number(raw, at), at))
            elif kind in ("text", "quoted"):
                value = raw[1:-1].replace(raw[0] * 2, raw[0])
                tokens.append(_Token("text" if kind == "text" else "name", value, at))
            elif kind == "name" and raw.lower() in _WORDS:
                tokens.append(_Token("word", raw.lower(), at))
            elif kind != "space":
                tokens.append(_Token(kind, _SAME.get(raw, raw), at))
            at = match.end()
        return [*tokens, _Token("end", "", len(self._text))]

    def _number(self, raw: str, at: int) -> int | float:
        whole = raw.lstrip("+-").isdecimal()
        value = (int(raw) if len(raw) <= 20 else 2**64) if whole else float(raw)
        if abs(value) >= 2**64 and (whole or math.isinf(value)):
            self._fail(f"{raw[:40]} is too large a number", at)
        return value

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _accept(self, kind: str, value: str) -> bool:
        if self._peek()[:2] == (kind, value):
            self._take()
            return True
        return False

    def _expect(self, kind: str, value: str) -> None:
        token = self._take()
        if token[:2] != (kind, value):
            self._fail(f"expected {value}, found {self._shown(token)}", token.at)

    @staticmethod
    def _shown(token: _Token) -> str:
        return "the end" if token.kind == "end" else repr(token.value)

    def _fail(self, what: str, at: int, hint: str = _EXAMPLE) -> NoReturn:
        start = max(0, at - 30)
        around = self._text[start:at] + " ⟨here⟩ " + self._text[at : at + 30]
        raise FilterError(
            f"where cannot be understood at character {at + 1}: {what}: {around.strip()}", hint=hint
        )


def _widest(dtype: pa.DataType) -> pa.DataType:
    """The type in which whole numbers of a column are compared."""
    return pa.uint64() if dtype == pa.uint64() else pa.int64()


def _family(dtype: pa.DataType) -> str:
    """Types of one family can be compared with each other."""
    if pa.types.is_boolean(dtype):
        return "bool"
    if pa.types.is_string(dtype):
        return "text"
    return "time" if pa.types.is_temporal(dtype) else "number"
