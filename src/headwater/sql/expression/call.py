"""A call of a function with its arguments translated, and tables of simple functions.

Most functions have the same meaning in Spark once their arguments have the right types: they are
lines in a table of (name, argument types, result type, Spark text). PostgreSQL picks among
functions of one name by the arguments' types; `pick` does the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from headwater.model.types import DataType, Kind
from headwater.sql.expression.coercion import (
    DECIMALS,
    INTEGERS,
    as_decimal_type,
    become,
    can_become,
    converted,
    numeric_to_decimal,
)
from headwater.sql.expression.problem import Text, shown
from headwater.sql.expression.typed import Typed, made


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name, its translated arguments, and where it stands."""

    name: str
    args: tuple[Typed, ...]
    node: Any
    text: Text
    names: tuple[str, ...] = ()
    """The names of arguments that were given by name, else empty."""

    def refuse(self, message: str, *, hint: str = "") -> NoReturn:
        """Say that something valid is not supported."""
        self.text.refuse(message, self.node, hint=hint)

    def mistake(self, message: str, *, hint: str = "", sqlstate: str = "42883") -> NoReturn:
        """Say that something is wrong."""
        self.text.mistake(message, self.node, hint=hint, sqlstate=sqlstate)

    def no_such(self) -> NoReturn:
        """Say that no function of this name takes these arguments."""
        given = ", ".join(shown(arg.type) for arg in self.args)
        self.mistake(
            f"function {self.name}({given}) does not exist or is not supported",
            hint="Check the argument types; you may need explicit casts.",
        )

    def arg(self, place: int, type_: DataType) -> Typed:
        """One argument in a type that PostgreSQL would give it."""
        return become(self.args[place], type_, self.text, self.node)

    def count(self, low: int, high: int | None = None) -> None:
        """Refuse a wrong number of arguments."""
        if not low <= len(self.args) <= (high if high is not None else low):
            self.no_such()


Function = Callable[[Call], Typed]

ANY_DECIMAL = "decimal"
ANY_LIST = "list"
Pattern = DataType | str


@dataclass(frozen=True, slots=True)
class Simple:
    """One line of a table: argument types, result, and the text with `{0}`, `{1}`, ..."""

    args: tuple[Pattern, ...]
    result: DataType | str
    template: str


def simple(args: Sequence[Pattern], result: DataType | str, template: str) -> Simple:
    """A line of a table; the result may be `same`: the type of the first argument."""
    return Simple(tuple(args), result, template)


def _fits(value: Typed, pattern: Pattern) -> int | None:
    if value.type is None:
        return 1 if isinstance(pattern, DataType) and pattern.kind is Kind.VARCHAR else 0
    if pattern == ANY_DECIMAL:
        if value.type.kind in DECIMALS:
            return 2
        return 0 if value.type.kind in INTEGERS else None
    if pattern == ANY_LIST:
        return 2 if value.type.kind is Kind.LIST else None
    assert isinstance(pattern, DataType)
    if value.type == pattern:
        return 3
    return 0 if can_become(value.type, pattern) else None


def pick(lines: Sequence[Simple]) -> Function:
    """A function that takes the best fitting line."""

    def function(call: Call) -> Typed:
        best: tuple[int, Simple] | None = None
        for line in lines:
            if len(line.args) != len(call.args):
                continue
            scores = [_fits(arg, want) for arg, want in zip(call.args, line.args, strict=True)]
            if None in scores:
                continue
            score = sum(each or 0 for each in scores)
            if best is None or score > best[0]:
                best = (score, line)
        if best is None:
            call.no_such()
        return _apply(call, best[1])

    return function


def _apply(call: Call, line: Simple) -> Typed:
    args = [_argument(call, place, want) for place, want in enumerate(line.args)]
    result = args[0].known if line.result == "same" else line.result
    assert isinstance(result, DataType)
    text = line.template.format(*(arg.text for arg in args))
    return made(text, result, *args)


def _argument(call: Call, place: int, want: Pattern) -> Typed:
    value = call.args[place]
    if want == ANY_DECIMAL:
        if value.type is None:
            call.no_such()
        if value.type.kind is Kind.NUMERIC:
            return numeric_to_decimal(value)
        return converted(value, as_decimal_type(value.type))
    if want == ANY_LIST:
        return value
    assert isinstance(want, DataType)
    return become(value, want, call.text, call.node)
