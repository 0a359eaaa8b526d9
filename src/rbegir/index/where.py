"""The language of filters: text is parsed into a pyarrow expression and never evaluated as Python.

    filter   := all { "or" all }
    all      := one { "and" one }
    one      := "not" one | "(" filter ")" | test
    test     := column [ "not" ] "in" "(" value { "," value } ")"     a list: if one of its items is
              | column "is" [ "not" ] "null"
              | column [ "not" ] "like" 'pattern'               % any text, _ any character, \\_ this one
              | "contains" "(" column "," value ")"             a list this item, a text these words
              | column op value | value op column | column op column
              | column                                          a column of true and false
    op       := "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    value    := number | 'text' ('' is a quote in it) | true | false
    column   := a name, or any name in "double quotes"; `id` and `text` are columns too

    price < 10 and lang = 'en' and tag in ('a', 'b') and contains(text, 'red shoes') and not sold

Words are runs of letters, marks and digits. A text contains 'red shoes' if it has these two words side by
side, in upper or lower case. `like` compares the whole text, and case matters.

A test on a null is neither true nor false, as in SQL: the keyword passes neither the test nor its `not`.
Dates and times are compared with text in ISO form. Errors show the position in the text.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from rbegir.base.arguments import any_word_pattern, is_list, words_in, words_pattern
from rbegir.errors import FilterError

MAX_LENGTH = 1 << 20
MAX_DEPTH = 64
MAX_TESTS = 10_000
CHAIN = 8  # tests that stand side by side for Arrow
JOINED = 256  # words that are looked for together

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
_SLOW = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\b(?:contains|like|in)\b""", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD = re.compile(r"[^\W_]+")
_WORDS = {"and", "or", "not", "in", "is", "null", "true", "false"}
_COMPARE = {"=": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
_SAME = {"==": "=", "<>": "!="}
_TURN = str.maketrans("<>", "><")  # 3 < x is x > 3
_EXAMPLE = "write for example: price < 10 and lang = 'en' and tag in ('a', 'b') and not sold"


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


class Equality(NamedTuple):
    """A test of a column of whole numbers or of texts for one value."""

    expression: pc.Expression
    column: str
    value: pa.Scalar


class Parser:
    """Parses one filter over columns of these types; `parse` fills the attributes."""

    def __init__(self, text: str, types: Mapping[str, pa.DataType]) -> None:
        self._text = text
        self._types = types
        if len(text) > MAX_LENGTH:
            raise FilterError(f"where is {len(text)} characters long, at most {MAX_LENGTH} are read")
        if lone := _SURROGATE.search(text):
            raise FilterError(f"where holds a lone surrogate at character {lone.start() + 1}")
        self._tokens = self._tokenize()
        self._next = 0
        self._depth = 0
        self._tests = 0
        self.named: dict[str, None] = {}  # columns, in the order of the text
        # tests of lists, for which Arrow has no expression: name of the result → column, wanted items
        self.item_tests: dict[str, tuple[str, pa.Array]] = {}
        self.equality: Equality | None = None  # if the filter is nothing else
        self.slow_tests = 0  # of texts for words or a pattern, and of lists; a phrase counts once per word
        # tests for one word, by the id of their expression, which is kept so that no other gets its id
        self._word_tests: dict[int, tuple[pc.Expression, str, str]] = {}

    def parse(self) -> pc.Expression:
        if self._peek().kind == "end":
            self._fail("there is nothing in it", 0)
        found = self._any()
        if self._peek().kind != "end":
            self._fail(f"expected and, or, or the end, found {self._shown(self._peek())}", self._peek().at)
        if self.equality is not None and self.equality.expression is not found:
            self.equality = None  # it is only a part
        return found

    def _any(self) -> pc.Expression:
        return self._chain(self._all, "or", operator.or_)

    def _all(self) -> pc.Expression:
        return self._chain(self._one, "and", operator.and_)

    def _chain(self, part: Callable[[], Any], word: str, join: Callable[[Any, Any], Any]) -> pc.Expression:
        """Parts with a word between them, joined as a tree: Arrow's recursion over a long chain would crash.

        Arrow would flatten the tree into one chain again, but not across the double `not` between its levels.
        """
        parts = [part()]
        while self._accept("word", word):
            parts.append(part())
        if word == "or" and len(parts) > 1:
            parts = self._joined(parts)
        while len(parts) > CHAIN:
            chains = [functools.reduce(join, parts[at : at + CHAIN]) for at in range(0, len(parts), CHAIN)]
            parts = [~~chain for chain in chains]
        return functools.reduce(join, parts)

    def _joined(self, parts: list[pc.Expression]) -> list[pc.Expression]:
        """The alternatives of an `or`, with all tests of a column for single words as one: it reads a text
        once, whereas separate tests read it once for each word."""
        words: dict[str, list[str]] = {}
        others: list[pc.Expression] = []
        for part in parts:
            if id(part) in self._word_tests:
                _, column, word = self._word_tests[id(part)]
                words.setdefault(column, []).append(word)
            else:
                others.append(part)
        return others + [
            pc.match_substring_regex(pc.field(column), any_word_pattern(of_column[at : at + JOINED]))
            for column, of_column in words.items()
            for at in range(0, len(of_column), JOINED)
        ]

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
            hint = "list values: tag in ('a', 'b', …)"
            self._fail(f"it has more than {MAX_TESTS} tests", self._peek().at, hint)
        if self._named("contains", ("mark", "(")):
            return self._contains()
        left = self._operand()
        if isinstance(left, _Column):
            if self._accept("word", "is"):
                negated = self._accept("word", "not")
                self._expect("word", "null")
                return pc.field(left.name).is_valid() if negated else pc.field(left.name).is_null()
            if self._accept("word", "in"):
                return self._in(left)
            if self._named("like"):
                return self._like(left)
            if self._accept("word", "not"):
                if self._named("like"):
                    return ~self._like(left)
                self._expect("word", "in")
                return ~self._in(left)
        if self._peek().kind == "op":
            return self._compare(left, self._take(), self._operand())
        if isinstance(left, _Column) and pa.types.is_boolean(left.type):
            return pc.field(left.name)
        return self._fail(f"expected a comparison, found {self._shown(self._peek())}", self._peek().at)

    def _named(self, name: str, then: tuple[str, str] | None = None) -> bool:
        """Take this name, which is not a reserved word, if it is next and `then` follows it."""
        token = self._peek()
        if token.kind != "name" or self._text[token.at] == '"' or token.value.lower() != name:
            return False
        if then is not None and self._tokens[self._next + 1][:2] != then:
            return False
        self._take()
        return True

    def _contains(self) -> pc.Expression:
        self._expect("mark", "(")
        column = self._operand()
        if not isinstance(column, _Column):
            self._fail("the first argument of contains must be a column", column.at)
        self._expect("mark", ",")
        value = self._value()
        self._expect("mark", ")")
        if is_list(column.type):
            return self._any_in(column, [value])
        if _family(column.type) != "text" or not isinstance(value.value, str):
            self._fail(f"{column.name} is {column.type}, which cannot contain {value.value!r}", value.at)
        pattern = words_pattern(value.value)
        if pattern is None:
            self._fail("contains needs a word: letters or digits", value.at, hint="like finds any text")
        found = pc.match_substring_regex(pc.field(column.name), pattern)
        words = words_in(value.value)
        self.slow_tests += len(words)
        if len(words) == 1:
            self._word_tests[id(found)] = found, column.name, words[0]
        return found

    def _like(self, column: _Column) -> pc.Expression:
        value = self._value()
        if _family(column.type) != "text" or not isinstance(value.value, str):
            came = f"{column.type} and {value.value!r}"
            self._fail(f"like compares a column of texts with a pattern in quotes, got {came}", value.at)
        self.slow_tests += 1
        return pc.match_like(pc.field(column.name), value.value)

    def _in(self, column: _Column) -> pc.Expression:
        self._expect("mark", "(")
        values = [self._value()]
        while self._accept("mark", ","):
            values.append(self._value())
        self._expect("mark", ")")
        if is_list(column.type):
            return self._any_in(column, values)
        field, options = pc.field(column.name), self._options(column, values)
        if _family(column.type) == "number":
            field = field.cast(options.type)
        return pc.if_else(field.is_valid(), field.isin(options), pa.scalar(None, pa.bool_()))

    def _any_in(self, column: _Column, values: list[_Value]) -> pc.Expression:
        """Whether any item of a list is one of the values."""
        name = f"\0{len(self.item_tests)}"
        self.slow_tests += 1
        options = self._options(column._replace(type=column.type.value_type), values)
        self.item_tests[name] = column.name, options
        return pc.field(name)

    def _options(self, column: _Column, values: list[_Value]) -> pa.Array:
        """The values that a column can hold, in the type used for comparing."""
        scalars = [self._scalar(column, value) for value in values]
        # a number that the column cannot hold equals nothing
        known = [scalar.as_py() for scalar in scalars if isinstance(scalar, pa.Scalar)]
        if _family(column.type) != "number":
            return pa.array(known, column.type)
        if not pa.types.is_floating(column.type):
            return pa.array(known, _widest(column.type))
        known += [-value for value in known if not value]  # Arrow looks for 0.0 and -0.0 by their bits
        return pa.array(known, pa.float64())

    def _compare(self, left: _Column | _Value, op: _Token, right: _Column | _Value) -> pc.Expression:
        if isinstance(left, _Column) and isinstance(right, _Column):
            if _family(left.type) != _family(right.type) or is_list(left.type):
                self._fail(
                    f"{left.name} ({left.type}) and {right.name} ({right.type}) cannot be compared", op.at
                )
            one, other = pc.field(left.name), pc.field(right.name)
            if common := _common_type(left.type, right.type):
                one, other = one.cast(common), other.cast(common)
            return getattr(one, _COMPARE[op.value])(other)
        if isinstance(left, _Column) and isinstance(right, _Value):
            return self._against(left, op.value, right)
        if isinstance(left, _Value) and isinstance(right, _Column):
            return self._against(right, op.value.translate(_TURN), left)
        return self._fail("one side of a comparison must be a column", left.at)

    def _against(self, column: _Column, op: str, value: _Value) -> pc.Expression:
        """column op value, exactly: whole numbers are never rounded for a comparison with a fraction."""
        field = pc.field(column.name)
        scalar = self._scalar(column, value)
        if isinstance(scalar, pa.Scalar):
            found: pc.Expression = getattr(field, _COMPARE[op])(pc.scalar(scalar))
            if op == "=" and (pa.types.is_integer(scalar.type) or pa.types.is_string(scalar.type)):
                self.equality = Equality(found, column.name, scalar)
            return found
        below, above = scalar  # the neighbours of a number that the column cannot hold, None if out of range
        if op in ("=", "!="):
            return field == field if op == "!=" else field != field  # always or never, except for null
        if op in ("<", "<="):
            return field != field if below is None else field <= pc.scalar(below)
        return field != field if above is None else field >= pc.scalar(above)

    def _scalar(
        self, column: _Column, value: _Value
    ) -> pa.Scalar | tuple[pa.Scalar | None, pa.Scalar | None]:
        """A value converted for a comparison with the column; raise if they cannot be compared.

        A number that a column of whole numbers cannot hold gives the two nearest numbers that it can.
        """
        raw, family = value.value, _family(column.type)
        if family == "time" and isinstance(raw, str):
            zone = getattr(column.type, "tz", None)
            with suppress(pa.ArrowInvalid):
                return pa.scalar(raw).cast(column.type)
            with suppress(pa.ArrowInvalid):
                if zone:  # a time without an offset is one of the column's zone
                    return pc.assume_timezone(pa.scalar(raw).cast(pa.timestamp(column.type.unit)), zone)
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
        hint = _EXAMPLE
        if is_list(column.type):
            hint = f"write: contains({column.name}, {raw!r})"
        elif family == "text":
            hint = (
                f"write the value in single quotes: '{raw}'; to compare numbers, store them as numbers: "
                "in a CSV file, a value such as '1,299.00' or '-' makes its whole column text"
            )
        self._fail(
            f"{column.name} is {column.type}, which does not compare with {raw!r}", value.at, hint=hint
        )

    def _operand(self) -> _Column | _Value:
        token = self._peek()
        if token.kind == "name":
            self._take()
            if token.value not in self._types:
                hint = f"the columns are: {', '.join(map(_written, sorted(self._types))) or 'none'}"
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
            self._fail(f"expected {value!r}, found {self._shown(token)}", token.at)

    @staticmethod
    def _shown(token: _Token) -> str:
        return "the end" if token.kind == "end" else repr(token.value)

    def _fail(self, what: str, at: int, hint: str = _EXAMPLE) -> NoReturn:
        start = max(0, at - 30)
        around = self._text[start:at] + " ⟨here⟩ " + self._text[at : at + 30]
        raise FilterError(
            f"where cannot be understood at character {at + 1}: {what}: {around.strip()}", hint=hint
        )


def _written(name: str) -> str:
    """A column as a filter names it: in double quotes unless it is a plain word."""
    plain = name.isidentifier() and name.lower() not in _WORDS
    return name if plain else '"' + name.replace('"', '""') + '"'


def slow_tests_in(text: str, *, lists: bool) -> int:
    """About how many slow tests (`Parser.slow_tests`) a filter has, found without parsing it; with `lists`,
    each `in` may be one."""
    found = 0
    for token in _SLOW.findall(text):
        if token[0] == "'":
            found += max(0, len(_WORD.findall(token)) - 1)  # the first is counted with its test
        elif token[0] != '"':
            found += lists or token.lower() != "in"
    return found


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type in which to compare two columns, if the one that Arrow would choose does not hold both."""
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and one.tz and other.tz:
        return pa.timestamp(max(one.unit, other.unit, key=["s", "ms", "us", "ns"].index), "UTC")
    if pa.types.is_floating(one) != pa.types.is_floating(other):
        return pa.float64()
    return pa.decimal128(20) if one != other and pa.uint64() in (one, other) else None


def _widest(dtype: pa.DataType) -> pa.DataType:
    """The type in which whole numbers of a column are compared."""
    return pa.uint64() if dtype == pa.uint64() else pa.int64()


def _family(dtype: pa.DataType) -> str:
    """Types of one family can be compared with each other."""
    if pa.types.is_boolean(dtype):
        return "bool"
    if pa.types.is_string(dtype):
        return "text"
    if is_list(dtype):
        return "list"
    return "time" if pa.types.is_temporal(dtype) else "number"
