"""Casts that the user writes, by PostgreSQL's rules.

numeric to integer      rounds half away from zero
float to integer        rounds half to even
float to numeric        keeps 15 digits (6 of a real)
text to anything        PostgreSQL's spellings only; what Spark would take beyond them raises
anything to text        PostgreSQL's spelling, also of floating point numbers
"""

from collections.abc import Callable

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression.coercion import (
    DECIMALS,
    FLOATS,
    INTEGERS,
    TIMES,
    become,
    converted,
    numeric_to_decimal,
)
from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, made

_INTEGER_TEXT = r"^\\s*[+-]?[0-9]+\\s*$"
_FLOAT_TEXT = (
    r"^(?i)\\s*([+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?|[+-]?inf(inity)?|nan)\\s*$"
)
_DECIMAL_TEXT = r"^(?i)\\s*[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)(e[+-]?[0-9]+)?\\s*$"
_DATE_TEXT = r"^\\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\\s*$"
_TIMESTAMP_TEXT = (
    r"^\\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T][0-9]{1,2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6})?)?"
    r"(Z|[+-][0-9]{2}(:[0-9]{2})?)?)?\\s*$"
)
_ODD_ITEM = r'^$|[{}",\\\\\\s]'
_UUID_TEXT = r"^(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


def cast(
    value: Typed, target: DataType, text: Text, node: object = None, *, length: int | None = None
) -> Typed:
    """The value in the target type; `length` is the n of varchar(n)."""
    if value.type is None:
        result = become(value, target, text, node)
    elif value.type == target:
        result = value
    else:
        result = _cast(value, target, text, node)
    if length is not None and target.kind is Kind.VARCHAR:
        return made(f"left({result.text}, {length})", target, result, nullable=result.nullable)
    return result


def _cast(value: Typed, target: DataType, text: Text, node: object) -> Typed:
    assert value.type is not None
    source = value.type.kind
    if target.kind is Kind.VARCHAR:
        return to_text(value, text, node)
    if source is Kind.VARCHAR:
        return _from_text(value, target, text, node)
    if source is Kind.JSONB:
        return _from_json(value, target, text, node)
    if source is Kind.NUMERIC:
        return cast(numeric_to_decimal(value), target, text, node)
    if source is Kind.LIST and target.kind is Kind.LIST:
        assert value.type.element is not None
        assert target.element is not None
        inner = cast(Typed("e", value.type.element), target.element, text, node)
        return made(f"transform({value.text}, e -> {inner.text})", target, value)
    rule = _rule(source, target.kind)
    if rule is None:
        text.mistake(
            f"cannot cast type {value.type.postgres} to {target.postgres}", node, sqlstate="42846"
        )
    return made(rule(value.text, target), target, value, nullable=value.nullable)


def _from_json(value: Typed, target: DataType, text: Text, node: object) -> Typed:
    """A number or a boolean out of jsonb; JSON's null becomes null."""
    from headwater.sql.expression.json_values import scalar_of  # noqa: PLC0415

    numbers = (*INTEGERS, *DECIMALS, *FLOATS)
    if target.kind not in (Kind.BOOLEAN, *numbers):
        text.mistake(f"cannot cast type jsonb to {target.postgres}", node, sqlstate="42846")
    plain = made(scalar_of(value, target, text, node), types.VARCHAR, value)
    if target.kind in INTEGERS:
        exact = made(f"cast({plain.text} as decimal(38,18))", types.decimal(38, 18), plain)
        return _cast(exact, target, text, node)
    return _from_text(plain, target, text, node)


def _plain(value: str, target: DataType) -> str:
    return f"cast({value} as {target.spark})"


def _rounded(value: str, target: DataType) -> str:
    return f"cast(round({value}, 0) as {target.spark})"


def _rinted(value: str, target: DataType) -> str:
    return f"cast(rint({value}) as {target.spark})"


def _real(value: str, target: DataType) -> str:
    narrow = f"cast({value} as float)"
    lost = f"(abs({narrow}) = cast('Infinity' as float) or ({narrow} = 0 and {value} <> 0))"
    fits = f"({lost} and abs({value}) <> cast('Infinity' as double))"
    return f"if({fits}, cast(raise_error('value out of range: overflow') as float), {narrow})"


def _decimal_of(digits: int) -> Callable[[str, DataType], str]:
    def rule(value: str, target: DataType) -> str:
        type_ = target if target.kind is Kind.DECIMAL else types.decimal(38, 18)
        number = f"cast(format_string('%.{digits - 1}e', {value}) as {type_.spark})"
        number = f"if({value} is null, null, {number})"
        return number if target.kind is Kind.DECIMAL else f"cast({number} as string)"

    return rule


def _numeric(value: str, _: DataType) -> str:
    return f"cast({value} as string)"


def _rule(source: Kind, target: Kind) -> Callable[[str, DataType], str] | None:  # noqa: PLR0911
    if target is Kind.NUMERIC and source in (*INTEGERS, *DECIMALS):
        return _numeric
    if target in DECIMALS and source in FLOATS:
        return _decimal_of(6 if source is Kind.REAL else 15)
    if source in DECIMALS and target in INTEGERS:
        return _rounded
    if source in FLOATS and target in INTEGERS:
        return _rinted
    if source is Kind.DOUBLE and target is Kind.REAL:
        return _real
    numbers = (*INTEGERS, *DECIMALS, *FLOATS)
    if source in numbers and target in numbers:
        return _plain
    if source in TIMES and target in TIMES:
        return _plain
    if source in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ) and target is Kind.TIME:
        return lambda value, _: f"substring(cast({value} as string), 12)"
    if (source, target) == (Kind.INTEGER, Kind.BOOLEAN):
        return lambda value, _: f"({value} <> 0)"
    if (source, target) == (Kind.BOOLEAN, Kind.INTEGER):
        return _plain
    return None


def to_text(value: Typed, text: Text, node: object = None) -> Typed:
    """The value as PostgreSQL spells it."""
    if value.type is None:
        return become(value, types.VARCHAR, text, node)
    match value.type.kind:
        case Kind.STRUCT:
            text.refuse(f"{value.type.postgres} cannot be spelled as text", node)
        case Kind.LIST:
            spelled = _array_text(value.text, value.type, text, node)
        case Kind.REAL | Kind.DOUBLE:
            spelled = float_text(value.text, 6 if value.type.kind is Kind.REAL else 15)
        case Kind.TIMESTAMPTZ:
            spelled = f"concat(cast({value.text} as string), '+00')"
        case Kind.BYTEA:
            spelled = f"concat('\\\\x', lower(hex({value.text})))"
        case Kind.VARCHAR:
            return value
        case _:
            spelled = f"cast({value.text} as string)"
    return made(spelled, types.VARCHAR, value, nullable=value.nullable)


def _array_text(value: str, type_: DataType, text: Text, node: object) -> str:
    """`{1,NULL,"a b"}`: elements in quotes where they would be misread otherwise."""
    element = type_.element
    assert element is not None
    if element.kind is Kind.LIST:
        item = _array_text("e", element, text, node)
    elif element.kind is Kind.BOOLEAN:
        item = "if(e, 't', 'f')"
    else:
        item = to_text(Typed("e", element), text, node).text
    if element.kind not in (*INTEGERS, *DECIMALS, *FLOATS, Kind.BOOLEAN, Kind.LIST, Kind.DATE):
        odd = f"rlike(q, '{_ODD_ITEM}') or upper(q) = 'NULL'"
        escaped = "replace(replace(q, '\\\\', '\\\\\\\\'), '\"', '\\\\\"')"
        quote = f"if({odd}, concat('\"', {escaped}, '\"'), q)"
        item = f"get(transform(array({item}), q -> {quote}), 0)"
    items = f"transform({value}, e -> if(e is null, 'NULL', {item}))"
    return f"concat('{{', array_join({items}, ','), '}}')"


def float_text(value: str, digits: int) -> str:
    """A floating point number as PostgreSQL spells it: shortest, exponent from 1e+15 on."""
    mantissa = "regexp_replace(regexp_extract(s, '^([0-9.]+)', 1), '[.]0$', '')"
    exponent = "cast(nullif(regexp_extract(s, 'E(-?[0-9]+)$', 1), '') as int)"
    bare = f"replace({mantissa}, '.', '')"
    scientific = (
        f"concat({mantissa}, 'e', if({exponent} < 0, '-', '+'), "
        f"lpad(cast(abs({exponent}) as string), "
        f"greatest(2, length(cast(abs({exponent}) as string))), '0'))"
    )
    whole = (
        f"concat(rpad(left({bare}, {exponent} + 1), {exponent} + 1, '0'), "
        f"if(length({bare}) > {exponent} + 1, "
        f"concat('.', substring({bare}, {exponent} + 2)), ''))"
    )
    small = f"concat('0.', repeat('0', -{exponent} - 1), {bare})"
    body = (
        f"case when s in ('NaN', 'Infinity') then s when {exponent} is null then "
        # A plain number may still be too long for a real: it has an exponent from 1e+06 on.
        + (
            "if(length(regexp_extract(s, '^([0-9]+)', 1)) > 6, "
            "concat(regexp_replace(concat(left(s, 1), '.', "
            "rtrim('0', replace(substring(s, 2), '.', ''))), '[.]$', ''), 'e+06'), "
            "regexp_replace(s, '[.]0$', '')) "
            if digits == 6
            else "regexp_replace(s, '[.]0$', '') "
        )
        + f"when {exponent} >= {digits} or {exponent} < -4 then {scientific} "
        f"when {exponent} >= 0 then {whole} else {small} end"
    )
    sign = f"if(startswith(cast({value} as string), '-'), '-', '')"
    return f"concat({sign}, transform(array(ltrim('-', cast({value} as string))), s -> {body})[0])"


def _checked(value: str, pattern: str, target: DataType, body: str) -> str:
    message = f"invalid input syntax for type {target.postgres}: "
    return (
        f"if({value} is null or rlike({value}, '{pattern}'), {body}, "
        f"cast(raise_error(concat('{message}\"', {value}, '\"')) as {target.spark}))"
    )


def _from_text(value: Typed, target: DataType, text: Text, node: object) -> Typed:
    source = value.text
    trimmed = f"trim({source})"
    plain = f"cast({trimmed} as {target.spark})"
    match target.kind:
        case Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT:
            body = _checked(source, _INTEGER_TEXT, target, plain)
        case Kind.DECIMAL:
            body = _checked(source, _DECIMAL_TEXT, target, plain)
        case Kind.REAL | Kind.DOUBLE:
            body = _checked(source, _FLOAT_TEXT, target, plain)
        case Kind.DATE:
            body = _checked(source, _DATE_TEXT, target, plain)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            body = _checked(source, _TIMESTAMP_TEXT, target, plain)
        case Kind.UUID:
            body = _checked(source, _UUID_TEXT, target, f"lower({source})")
        case Kind.BOOLEAN:
            word = f"lower({trimmed})"
            body = (
                f"case when {word} in ('t','tr','tru','true','y','ye','yes','on','1') then true "
                f"when {word} in ('f','fa','fal','fals','false','n','no','of','off','0') "
                f"then false when {source} is null then null else cast(raise_error(concat("
                f"'invalid input syntax for type boolean: \"', {source}, '\"')) as boolean) end"
            )
        case _:
            text.refuse(f"a cast from text to {target.postgres} is not supported", node)
    return made(f"({body})" if body.startswith("case") else body, target, value)


def assigned(value: Typed, target: DataType, text: Text, node: object = None) -> Typed:
    """A value stored into a column: PostgreSQL's assignment casts, which also narrow numbers."""
    if value.type is None or value.type == target:
        return become(value, target, text, node)
    numbers = (*INTEGERS, *DECIMALS, *FLOATS)
    if value.type.kind in numbers and target.kind in numbers:
        return cast(value, target, text, node)
    if value.type.kind in TIMES and target.kind in TIMES:
        return cast(value, target, text, node)
    if target.kind is Kind.VARCHAR:
        return to_text(value, text, node)
    if value.type.kind is Kind.LIST and target.kind is Kind.LIST:
        return cast(value, target, text, node)
    return become(value, target, text, node)


__all__ = ["assigned", "cast", "converted", "float_text", "to_text"]
