"""Random values as SQL literals: few distinct ones so that rows meet, and some extremes.

A table of forty rows only joins, groups and repeats when its values come from a small pool. The
extremes are those that break things: least and greatest numbers, NaN, both zeros, odd texts.

    family     types                            what is computed with it
    int        smallint, integer, bigint        after `% 1000`, so that nothing overflows by chance
    dec        numeric(p,s)                     rounded sums and products
    numeric    numeric                          as it is; 1.0 and 1.00 are one value
    float      double precision                 sums of tame ones only, which are exact in any order
    text       varchar                          anything
    bool, date, ts, tstz, time, uuid            anything that stays in the calendar
    ints, texts                                 arrays
    other      what else there is               it is only passed on
"""

from random import Random

from headwater.model.types import DataType, Kind

NULLS = 0.12
EXTREMES = 0.06

_FAMILIES = {
    Kind.SMALLINT: "int",
    Kind.INTEGER: "int",
    Kind.BIGINT: "int",
    Kind.DECIMAL: "dec",
    Kind.NUMERIC: "numeric",
    Kind.DOUBLE: "float",
    Kind.VARCHAR: "text",
    Kind.BOOLEAN: "bool",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "ts",
    Kind.TIMESTAMPTZ: "tstz",
    Kind.TIME: "time",
    Kind.INTERVAL: "interval",
    Kind.UUID: "uuid",
}
_BITS = {Kind.SMALLINT: 16, Kind.INTEGER: 32, Kind.BIGINT: 64}
_ODD_TEXTS = (
    "", " ", "null", "a'b", 'a"b', "a\\b", "a\tb", "a\nb", "%", "_", "a\u0308", "日本語", "🦉",
    "\U0010ffff", "\u2028", "A", "a ", "0", "x" * 300,
)  # fmt: skip
_TEXTS = ("a", "b", "c", "ab", "red", "green", "Blue")
_ODD_NUMERICS = ("0.000000000000000001", "-99999999999999999.5", "1.00", "1.0", "-0.0")


def family_of(type_: DataType) -> str:
    """The family of a type."""
    if type_.kind is Kind.LIST and type_.element is not None:
        inner = family_of(type_.element)
        return {"int": "ints", "text": "texts"}.get(inner, "other")
    return _FAMILIES.get(type_.kind, "other")


def literal(random: Random, type_: DataType, *, tame: bool = True, nulls: float = NULLS) -> str:
    """A value of a type, as SQL spells it; a double that is not tame may be any double."""
    if random.random() < nulls:
        return "NULL"
    extreme = random.random() < EXTREMES
    match type_.kind:
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            return _integer(random, type_, extreme)
        case Kind.DECIMAL:
            return _decimal(random, type_, extreme)
        case Kind.DOUBLE:
            return _double(random, extreme, tame)
        case Kind.LIST:
            assert type_.element is not None
            size = random.choice((0, 1, 2, 3))
            inner = [literal(random, type_.element) for _ in range(size)]
            return f"ARRAY[{', '.join(inner)}]::{type_.postgres}"
        case _:
            return _other(random, type_, extreme)


def quoted_text(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def _integer(random: Random, type_: DataType, extreme: bool) -> str:
    if extreme:
        top = 1 << (_BITS[type_.kind] - 1)
        return str(random.choice((top - 1, -top, 0, -1)))
    return str(random.choice((random.randrange(-3, 10), random.randrange(6))))


def _decimal(random: Random, type_: DataType, extreme: bool) -> str:
    scale = type_.scale or 0
    if extreme:
        top = 10 ** (type_.precision or 1) - 1
        return _scaled(random.choice((top, -top, 0)), scale)
    return _scaled(random.choice((0, 1, 50, 125, -75, random.randrange(-400, 400))), scale)


def _scaled(unscaled: int, scale: int) -> str:
    if not scale:
        return str(unscaled)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def _double(random: Random, extreme: bool, tame: bool) -> str:
    if extreme:
        odd = ["NaN", "Infinity", "-Infinity", "-0.0"]
        if not tame:
            odd += ["1.7976931348623157e308", "5e-324", "0.1", "-1e-300"]
        return f"'{random.choice(odd)}'::float8"
    # Two zeros that are one value; multiples of a quarter, whose sums are exact in any order.
    common = ("0.0", "-0.0", "NaN", str(random.randrange(-4, 5) / 4))
    return f"'{random.choice(common)}'::float8"


def _other(random: Random, type_: DataType, extreme: bool) -> str:
    day = f"2024-{random.choice((1, 2, 12)):02}-{random.choice((1, 2, 28)):02}"
    clock = f"{random.choice((0, 11, 23)):02}:{random.choice((0, 59)):02}:00"
    match type_.kind:
        case Kind.BOOLEAN:
            return random.choice(("true", "false"))
        case Kind.NUMERIC:
            plain = f"{random.randrange(-2, 3)}{random.choice(('', '.0', '.00', '.5', '.50'))}"
            return f"'{random.choice(_ODD_NUMERICS) if extreme else plain}'::numeric"
        case Kind.DATE:
            text = random.choice(("0001-01-01", "9999-12-31", "2024-02-29")) if extreme else day
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            odd = ("0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.5")
            text = random.choice(odd) if extreme else f"{day} {clock}"
            text += "+00" if type_.kind is Kind.TIMESTAMPTZ else ""
        case Kind.TIME:
            text = "23:59:59.999999" if extreme else clock
        case Kind.INTERVAL:
            text = "-1 year 2 mons 3 days 04:05:06.000007" if extreme else "2 days"
        case Kind.UUID:
            text = f"00000000-0000-0000-0000-{random.randrange(6):012}"
        case Kind.JSONB:
            text = random.choice(("{}", '{"a": [1, null]}', "[1, 2]", '"x"'))
        case Kind.BYTEA:
            text = random.choice(("\\x", "\\x00ff", "\\x61"))
        case _:
            return quoted_text(random.choice(_ODD_TEXTS if extreme else _TEXTS))
    return f"'{text}'::{type_.postgres}"
