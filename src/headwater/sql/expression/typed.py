"""A translated expression: Spark SQL, its PostgreSQL type, and what it reads.

A literal such as `'2020-01-01'` has no type of its own until something beside it has one; it is
carried as it was written, with `type` None. NULL is the same with no text.

An interval is three numbers (months, days, microseconds), each a Spark text of its own: a month
has no fixed length, so no single number is exact. Its `text` is PostgreSQL's spelling.
"""

from dataclasses import dataclass, replace
from typing import Any

from headwater.model import types
from headwater.model.spelling import quoted
from headwater.model.types import DataType
from headwater.sql.algebra import Expression


@dataclass(frozen=True, slots=True)
class IntervalParts:
    """Months, days and microseconds, each as a Spark text of type bigint."""

    months: str
    days: str
    micros: str


@dataclass(frozen=True, slots=True)
class Typed:
    """What an expression became; `text` can stand as an operand anywhere."""

    text: str
    type: DataType | None
    columns: frozenset[str] = frozenset()
    literal: str | None = None
    interval: IntervalParts | None = None
    nullable: bool = True
    constant: str | None = None
    """The value of a text or jsonb that is known when the query is planned."""
    parameter: int | None = None
    """The n of `$n`, while nothing beside it gives it a type."""
    equal: "tuple[Typed, Typed] | None" = None
    """The two sides, of one type, when this is a plain equality."""
    same: "tuple[Typed, Typed] | None" = None
    """The two sides, when this is an equality that two nulls satisfy."""
    items: "tuple[Typed, ...] | None" = None
    """The elements of an array that the query writes out."""

    @property
    def known(self) -> DataType:
        """The type, taking text for a literal that nothing gave a type."""
        return self.type if self.type is not None else types.VARCHAR

    @property
    def is_null(self) -> bool:
        """Whether this is the literal NULL."""
        return self.type is None and self.literal is None

    def expression(self) -> Expression:
        """As a part of a plan."""
        return Expression(self.text, self.known, self.columns)

    def renamed(self, text: str, type_: DataType | None = None, **changes: object) -> "Typed":
        """The same columns under another text and type."""
        fields: dict[str, Any] = {"equal": None, "same": None, **changes}
        return replace(self, text=text, type=type_ or self.type, **fields)


def reading(*parts: Typed) -> frozenset[str]:
    """The columns that these read together."""
    return frozenset().union(*(part.columns for part in parts))


def made(text: str, type_: DataType, *parts: Typed, nullable: bool = True) -> Typed:
    """A new expression made from parts."""
    return Typed(text, type_, reading(*parts), nullable=nullable)


def equality_of(left: Typed, right: Typed, *, nullable: bool = True) -> Typed:
    """That two values of one type are equal; who joins by it finds the sides again."""
    return Typed(
        f"({left.text} = {right.text})",
        types.BOOLEAN,
        reading(left, right),
        nullable=nullable,
        equal=(left, right),
    )


def sameness_of(left: Typed, right: Typed) -> Typed:
    """That two values of one type are equal or both null."""
    text = f"({left.text} <=> {right.text})"
    columns = reading(left, right)
    return Typed(text, types.BOOLEAN, columns, nullable=False, same=(left, right))


def string_literal(value: str) -> str:
    """A Spark string literal; no backtick is left in it, so that column names can be found."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("`", "\\u0060")
    return f"'{escaped}'"


def column(name: str, type_: DataType, *, nullable: bool = True) -> Typed:
    """A reference to a column of the plan."""
    interval = stored_interval(quoted(name)) if type_.kind is types.Kind.INTERVAL else None
    return Typed(quoted(name), type_, frozenset({name}), interval=interval, nullable=nullable)


def stored_interval(text: str) -> IntervalParts:
    """The parts of an interval that is stored in PostgreSQL's spelling."""

    def part(pattern: str) -> str:
        return (
            f"coalesce(cast(nullif(regexp_extract({text}, '{pattern}', 1), '') as bigint), "
            f"if({text} is null, null, 0L))"
        )

    years, months = part(r"(-?\\d+) year"), part(r"(-?\\d+) mon")
    clock = r"(-?)(\\d+):(\\d+):(\\d+)(?:[.](\\d+))?$"

    def place(number: int) -> str:
        found = f"nullif(regexp_extract({text}, '{clock}', {number}), '')"
        return f"coalesce(cast({found} as bigint), 0L)"

    fraction = f"rpad(regexp_extract({text}, '{clock}', 5), 6, '0')"
    seconds = (
        f"(({place(2)} * 3600L + {place(3)} * 60L + {place(4)}) * 1000000L + "
        f"cast({fraction} as bigint))"
    )
    sign = f"if(regexp_extract({text}, '{clock}', 1) = '-', -1L, 1L)"
    return IntervalParts(
        f"({years} * 12L + {months})",
        part(r"(-?\\d+) day"),
        f"({sign} * {seconds})",
    )


NULL = Typed("NULL", None)
TRUE = Typed("true", types.BOOLEAN, nullable=False)
FALSE = Typed("false", types.BOOLEAN, nullable=False)


def integer(value: int) -> Typed:
    """A whole number, as wide as PostgreSQL makes it."""
    if -(2**31) <= value < 2**31:
        return Typed(f"({value})" if value < 0 else str(value), types.INTEGER, nullable=False)
    if -(2**63) <= value < 2**63:
        text = f"({value}L)" if value < 0 else f"{value}L"
        return Typed(text, types.BIGINT, nullable=False)
    digits = len(str(abs(value)))
    return Typed(f"cast('{value}' as decimal({digits},0))", types.decimal(min(digits, 38), 0))
