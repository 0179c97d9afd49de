"""Which type two expressions share, and how a value gets there without being asked.

    numbers      smallint < integer < bigint < decimal < real < double, as in PostgreSQL, but
                 an integer beside a real gives double
    times        date < timestamp < timestamptz
    a literal    without a type takes the type beside it; alone it is text

A decimal holds 38 digits. `numeric` without a precision is stored as text of any length; where
it is computed with it becomes decimal(38,18), and a value that does not fit there is an error,
never rounded.
"""

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression.literals import literal_as
from headwater.sql.expression.problem import Text, shown
from headwater.sql.expression.typed import NULL, Typed, made

INTEGERS = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)
FLOATS = (Kind.REAL, Kind.DOUBLE)
DECIMALS = (Kind.DECIMAL, Kind.NUMERIC)
NUMBERS = (*INTEGERS, *DECIMALS, *FLOATS)
TIMES = (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)

WORKING_NUMERIC = types.decimal(38, 18)
_DIGITS = {Kind.SMALLINT: 5, Kind.INTEGER: 10, Kind.BIGINT: 19}


def is_number(type_: DataType | None) -> bool:
    """Whether this is a number of any kind."""
    return type_ is not None and type_.kind in NUMBERS


def as_decimal_type(type_: DataType) -> DataType:
    """The decimal that holds every value of an exact number."""
    if type_.kind is Kind.DECIMAL:
        return type_
    if type_.kind is Kind.NUMERIC:
        return WORKING_NUMERIC
    return types.decimal(_DIGITS[type_.kind], 0)


def wider_decimal(left: DataType, right: DataType) -> DataType:
    """The decimal that holds both, as far as 38 digits go; the scale is never cut."""
    left, right = as_decimal_type(left), as_decimal_type(right)
    scale = max(left.scale or 0, right.scale or 0)
    whole = max(
        (left.precision or 0) - (left.scale or 0), (right.precision or 0) - (right.scale or 0)
    )
    return types.decimal(min(38, whole + scale), scale)


def common_type(left: DataType | None, right: DataType | None) -> DataType | None:
    """The type that both become, or None when there is none; None beside a type gives way."""
    if left is None or right is None or left == right:
        return left or right
    kinds = {left.kind, right.kind}
    if kinds <= set(NUMBERS):
        return _common_number(left, right)
    if kinds <= set(TIMES):
        return max(left, right, key=lambda each: TIMES.index(each.kind))
    if kinds == {Kind.LIST}:
        element = common_type(left.element, right.element)
        return types.list_of(element) if element else None
    return None


def _common_number(left: DataType, right: DataType) -> DataType:
    kinds = (left.kind, right.kind)
    if Kind.DOUBLE in kinds:
        return types.DOUBLE
    if Kind.REAL in kinds:
        return types.REAL if kinds == (Kind.REAL, Kind.REAL) else types.DOUBLE
    if any(kind in DECIMALS for kind in kinds):
        return wider_decimal(left, right)
    return max(left, right, key=lambda each: INTEGERS.index(each.kind))


def can_become(source: DataType | None, target: DataType) -> bool:
    """Whether PostgreSQL makes this cast by itself."""
    if source is None or source == target:
        return True
    if source.kind in NUMBERS and target.kind in NUMBERS:
        order = NUMBERS
        both_exact = source.kind in DECIMALS and target.kind in DECIMALS
        return both_exact or order.index(source.kind) <= order.index(target.kind)
    if source.kind in TIMES and target.kind in TIMES:
        return TIMES.index(source.kind) <= TIMES.index(target.kind)
    if source.kind is Kind.LIST and target.kind is Kind.LIST:
        return target.element is not None and can_become(source.element, target.element)
    return False


def become(value: Typed, target: DataType, text: Text, node: object = None) -> Typed:
    """The value in the target type, if PostgreSQL would do that by itself."""
    if value.type is None:
        if value.parameter is not None:
            text.parameters.setdefault(value.parameter, target)
        return (
            NULL.renamed(f"cast(NULL as {target.spark})", target)
            if value.is_null
            else (literal_as(value.literal or "", target, text, node))
        )
    if value.type == target:
        return value
    if not can_become(value.type, target):
        text.mistake(
            f"{shown(value.type)} cannot be used as {target.postgres}",
            node,
            hint="Write an explicit cast, value::type.",
        )
    return converted(value, target)


def converted(value: Typed, target: DataType) -> Typed:
    """A widening that loses nothing, or raises where a value does not fit."""
    assert value.type is not None
    if value.type == target:
        return value
    if value.type.kind is Kind.NUMERIC and target.kind is not Kind.NUMERIC:
        value = numeric_to_decimal(value)
        if target.kind is Kind.DECIMAL and target == value.type:
            return value
    if value.text.isdigit() and target.kind is Kind.BIGINT:
        return Typed(f"{value.text}L", target, nullable=False)
    if target.kind is Kind.NUMERIC:
        return made(f"cast({value.text} as string)", target, value, nullable=value.nullable)
    return made(f"cast({value.text} as {target.spark})", target, value, nullable=value.nullable)


def numeric_to_decimal(value: Typed) -> Typed:
    """A stored numeric as decimal(38,18); more digits than that are an error, not rounded."""
    fraction = f"regexp_extract({value.text}, '[.]([0-9]*?)0*$', 1)"
    check = (
        f"if(length({fraction}) > 18 or {value.text} in ('NaN', 'Infinity', '-Infinity'), "
        f"cast(raise_error(concat('numeric value out of range: ', {value.text})) "
        f"as decimal(38,18)), cast({value.text} as decimal(38,18)))"
    )
    return made(check, WORKING_NUMERIC, value, nullable=value.nullable)


def number(value: Typed, text: Text, node: object = None) -> Typed:
    """A number to compute with: stored numerics as decimals, literals parsed."""
    if value.type is None:
        return value
    if value.type.kind not in NUMBERS:
        text.mistake(f"{shown(value.type)} is not a number", node)
    return numeric_to_decimal(value) if value.type.kind is Kind.NUMERIC else value


def unify(values: list[Typed], text: Text, node: object, what: str) -> tuple[list[Typed], DataType]:
    """All values in their common type."""
    shared: DataType | None = None
    for value in values:
        joined = common_type(shared, value.type)
        if joined is None and (shared is not None and value.type is not None):
            text.mistake(
                f"{what} types {shown(shared)} and {shown(value.type)} cannot be matched",
                node,
                hint="Write an explicit cast, value::type.",
            )
        shared = joined
    target = shared or types.VARCHAR
    return [_unified(value, target, text, node) for value in values], target


def _unified(value: Typed, target: DataType, text: Text, node: object) -> Typed:
    if value.type is None:
        return become(value, target, text, node)
    return converted(value, target)
