"""Spark SQL expressions over an Arrow table, as far as both certainly mean the same.

    taken over                                    left to Spark
    columns of any type, passed on                everything that computes with floating point
    literals, CAST where no digit is lost         casts that round, parse text, or cut
    + - * of integers and decimals                decimals beyond 38 digits, and their quotients
    % and DIV of integers                         / of anything
    comparisons, AND, OR, NOT, IS NULL, IN        comparisons of different kinds of types
    CASE, COALESCE, NULLIF, BETWEEN, &            every other function

Promises
    Exact     A term that is taken over gives what Spark gives, type included.
    Careful   Where Spark would raise an error, so does the term (`pa.ArrowInvalid`, or
              `NotHere`): the caller then asks Spark, which words the error.
"""

import decimal
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from headwater.views.on_arrow.constants import CONSTANT, CONSTANTS

_MOST_DIGITS = 38
_TYPES = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMPNTZ: pa.timestamp("us"),
    exp.DType.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
}
_DIGITS = {pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
"""How Spark counts the digits of integers that meet decimals."""


class NotHere(Exception):
    """Something that only Spark can say exactly."""


@dataclass(frozen=True, slots=True)
class Term:
    """A value per row: its type, and how it comes from a table; constants are scalars."""

    type: pa.DataType
    of: Callable[[pa.Table], Any]
    constant: bool = False


def exact(type_: pa.DataType) -> bool:
    """Whether equality and order of a type are the same in Arrow and in Spark."""
    return bool(
        pa.types.is_boolean(type_)
        or type_ in _DIGITS
        or pa.types.is_decimal128(type_)
        or type_ in (pa.string(), pa.binary(), pa.date32())
        or pa.types.is_timestamp(type_)
    )


def term(node: exp.Expr, schema: pa.Schema) -> Term:
    """An expression as a term over tables of a schema; raises `NotHere`."""
    build = _BUILDERS.get(type(node))
    if build is None:
        raise NotHere(f"{type(node).__name__} is not known here")
    made = build(node, schema)
    if made.constant:
        value = made.of(pa.table({}))
        return Term(made.type, lambda _: value, constant=True)
    return made


def _of(terms: Sequence[Term], type_: pa.DataType, work: Callable[..., Any]) -> Term:
    return Term(
        type_,
        lambda table: work(*(each.of(table) for each in terms)),
        constant=all(each.constant for each in terms),
    )


# Leaves


def _column(node: exp.Column, schema: pa.Schema) -> Term:
    at = schema.get_field_index(node.name)
    if at < 0 or node.table:
        raise NotHere(f"column {node.name}")
    return Term(schema.field(at).type, lambda table: table.column(at))


def _constant(value: Any, type_: pa.DataType) -> Term:
    scalar = pa.scalar(value, type_)
    return Term(type_, lambda _: scalar, constant=True)


def _literal(node: exp.Literal, _: pa.Schema) -> Term:
    if node.is_string:
        return _constant(node.this, pa.string())
    if not node.this.isdigit():
        raise NotHere("a literal with a fraction")
    number = int(node.this)
    if number >= 1 << 63:
        raise NotHere("a large literal")
    return _constant(number, pa.int32() if number < 1 << 31 else pa.int64())


def _known(node: exp.Anonymous, _: pa.Schema) -> Term:
    value = CONSTANTS.get(node.expressions[0].this) if node.this == CONSTANT else None
    if value is None:
        raise NotHere(f"function {node.this}")
    return Term(value.type, lambda _: value, constant=True)


# Casts


def _cast(node: exp.Cast, schema: pa.Schema) -> Term:
    if node.args.get("format") or node.args.get("default") or node.args.get("action"):
        raise NotHere("a cast with a format")
    wanted = _type(node.to)
    if isinstance(node.this, exp.Null):
        return _constant(None, wanted)
    inner = term(node.this, schema)
    return _of([inner], wanted, _caster(inner, wanted))


def _type(node: exp.DataType) -> pa.DataType:
    if node.this is exp.DType.DECIMAL and len(node.expressions) == 2:
        precision, scale = (int(each.name) for each in node.expressions)
        return pa.decimal128(precision, scale)
    if node.expressions or node.this not in _TYPES:
        raise NotHere(f"type {node}")
    return _TYPES[node.this]


def _caster(inner: Term, wanted: pa.DataType) -> Callable[[Any], Any]:
    """What turns values of a term into another type without losing anything, or raises."""
    given = inner.type
    to_decimal = pa.types.is_decimal128(wanted)
    if given == wanted:
        return lambda values: values
    if given in _DIGITS and to_decimal and _DIGITS[given] + wanted.scale <= _MOST_DIGITS:
        middle = pa.decimal128(_MOST_DIGITS, wanted.scale)
        return lambda values: pc.cast(pc.cast(values, middle), wanted)
    if _checked(given, wanted):
        return lambda values: pc.cast(values, wanted)
    if given == pa.string() and inner.constant:
        return _parser(wanted)
    raise NotHere(f"cast of {given} to {wanted}")


def _checked(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's cast is Spark's, and fails where Spark's does."""
    if pa.types.is_decimal128(given):
        whole = given.scale == 0 and wanted in _DIGITS
        return whole or bool(pa.types.is_decimal128(wanted) and given.scale <= wanted.scale)
    days = given == pa.date32() and wanted == pa.timestamp("us")
    return days or (given in _DIGITS and wanted in _DIGITS)


def _parser(wanted: pa.DataType) -> Callable[[Any], Any]:
    """Plainly written constants: digits with a point, and dates."""

    def parse(text: pa.Scalar) -> pa.Scalar:
        words = text.as_py()
        plain = words.replace("-", "", 1).replace(".", "", 1)
        if pa.types.is_decimal128(wanted) and plain.isascii() and plain.isdigit():
            value = decimal.Decimal(words)
            if -value.as_tuple().exponent <= wanted.scale:  # type: ignore[operator]
                return pa.scalar(value, wanted)
        if wanted == pa.date32() and len(words) == 10 and words[:4].isdigit():
            return pc.cast(text, wanted)
        raise NotHere(f"cast of {words!r} to {wanted}")

    return parse


# Numbers


def _negated(node: exp.Neg, schema: pa.Schema) -> Term:
    inner = term(node.this, schema)
    if inner.type not in _DIGITS and not pa.types.is_decimal128(inner.type):
        raise NotHere(f"minus {inner.type}")
    return _of([inner], inner.type, pc.negate_checked)


def _arithmetic(node: exp.Binary, schema: pa.Schema) -> Term:
    left, right = term(node.left, schema), term(node.right, schema)
    work = {
        exp.Add: pc.add_checked, exp.Sub: pc.subtract_checked, exp.Mul: pc.multiply_checked
    }[type(node)]  # fmt: skip
    if left.type in _DIGITS and right.type in _DIGITS:
        type_ = max((left.type, right.type), key=lambda each: _DIGITS[each])
        parts = [_of([each], type_, _caster(each, type_)) for each in (left, right)]
        return _of(parts, type_, work)
    if pa.types.is_decimal128(left.type) and pa.types.is_decimal128(right.type):
        return _of([left, right], _decimal_type(node, left.type, right.type), work)
    raise NotHere(f"{left.type} with {right.type}")


def _divided(node: exp.Mod | exp.IntDiv, schema: pa.Schema) -> Term:
    """Towards zero, in Arrow as in Spark; a divisor of 0 is an error in both."""
    left, right = term(node.left, schema), term(node.right, schema)
    if left.type not in _DIGITS or right.type not in _DIGITS:
        raise NotHere(f"{left.type} divided by {right.type}")
    type_ = max((left.type, right.type), key=lambda each: _DIGITS[each])
    if isinstance(node, exp.IntDiv):
        type_ = pa.int64()
    parts = [_of([each], type_, _caster(each, type_)) for each in (left, right)]
    return _of(parts, type_, pc.divide_checked if isinstance(node, exp.IntDiv) else _remainder)


def _remainder(dividend: Any, divisor: Any) -> Any:
    return pc.subtract(dividend, pc.multiply(pc.divide_checked(dividend, divisor), divisor))


def _decimal_type(
    node: exp.Binary, left: pa.Decimal128Type, right: pa.Decimal128Type
) -> pa.DataType:
    if isinstance(node, exp.Mul):
        precision, scale = left.precision + right.precision + 1, left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        precision = whole + scale + 1
    if precision > _MOST_DIGITS:
        raise NotHere("a decimal of more than 38 digits")
    return pa.decimal128(precision, scale)


def _bits(node: exp.BitwiseAnd, schema: pa.Schema) -> Term:
    left, right = term(node.left, schema), term(node.right, schema)
    if left.type != right.type or left.type not in _DIGITS:
        raise NotHere(f"{left.type} & {right.type}")
    return _of([left, right], left.type, pc.bit_wise_and)


# Conditions

_COMPARISONS: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}


def comparable(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether values of two types are compared in Arrow as in Spark."""
    if left == right:
        return exact(left)
    if pa.types.is_decimal128(left) and pa.types.is_decimal128(right):
        scale = max(left.scale, right.scale)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        return bool(whole + scale <= _MOST_DIGITS)
    return left in _DIGITS and right in _DIGITS


def _compared(node: exp.Binary, schema: pa.Schema) -> Term:
    return _comparison(type(node), term(node.left, schema), term(node.right, schema))


def _comparison(kind: type[exp.Expr], left: Term, right: Term) -> Term:
    if not comparable(left.type, right.type):
        raise NotHere(f"{left.type} beside {right.type}")
    return _of([left, right], pa.bool_(), _COMPARISONS[kind])


def _same(node: exp.NullSafeEQ, schema: pa.Schema) -> Term:
    left, right = term(node.left, schema), term(node.right, schema)
    if not comparable(left.type, right.type):
        raise NotHere(f"{left.type} beside {right.type}")

    def work(a: Any, b: Any) -> Any:
        either = pc.or_(pc.is_null(a), pc.is_null(b))
        return pc.if_else(either, pc.and_(pc.is_null(a), pc.is_null(b)), pc.equal(a, b))

    return _of([left, right], pa.bool_(), work)


def _logic(node: exp.Binary, schema: pa.Schema) -> Term:
    work = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
    return _of([condition(node.left, schema), condition(node.right, schema)], pa.bool_(), work)


def condition(node: exp.Expr, schema: pa.Schema) -> Term:
    """A term that is true, false or null."""
    made = term(node, schema)
    if not pa.types.is_boolean(made.type):
        raise NotHere("a condition that is none")
    return made


def _negation(node: exp.Not, schema: pa.Schema) -> Term:
    return _of([condition(node.this, schema)], pa.bool_(), pc.invert)


def _is(node: exp.Is, schema: pa.Schema) -> Term:
    if not isinstance(node.expression, exp.Null):
        raise NotHere("IS")
    # A scalar's null is a scalar, too; NaN is a value.
    return _of([term(node.this, schema)], pa.bool_(), pc.is_null)


def _in(node: exp.In, schema: pa.Schema) -> Term:
    if not node.expressions or set(node.args) - {"this", "expressions"}:
        raise NotHere("IN over a query")
    value = term(node.this, schema)
    parts = [_comparison(exp.EQ, value, term(each, schema)) for each in node.expressions]
    return functools.reduce(lambda a, b: _of([a, b], pa.bool_(), pc.or_kleene), parts)


def _between(node: exp.Between, schema: pa.Schema) -> Term:
    if node.args.get("symmetric"):
        raise NotHere("BETWEEN SYMMETRIC")
    value = term(node.this, schema)
    low = _comparison(exp.GTE, value, term(node.args["low"], schema))
    high = _comparison(exp.LTE, value, term(node.args["high"], schema))
    return _of([low, high], pa.bool_(), pc.and_kleene)


# Choices


def _case(node: exp.Case, schema: pa.Schema) -> Term:
    if node.this is not None:
        raise NotHere("CASE of a value")
    conditions = [condition(each.this, schema) for each in node.args["ifs"]]
    values = [each.args["true"] for each in node.args["ifs"]]
    otherwise = node.args.get("default")
    terms = _alike(values if otherwise is None else [*values, otherwise], schema)
    type_ = terms[0].type

    def work(*found: Any) -> Any:
        chosen = found[len(conditions) :]
        last = chosen[-1] if otherwise is not None else pa.scalar(None, type_)
        for when, then in reversed(list(zip(found, chosen[: len(conditions)], strict=False))):
            last = pc.if_else(pc.fill_null(when, False), then, last)
        return last

    return _of([*conditions, *terms], type_, work)


def _coalesce(node: exp.Coalesce, schema: pa.Schema) -> Term:
    terms = _alike([node.this, *node.expressions], schema)
    return _of(terms, terms[0].type, pc.coalesce)


def _nullif(node: exp.Nullif, schema: pa.Schema) -> Term:
    value = term(node.this, schema)
    same = _comparison(exp.EQ, value, term(node.expression, schema))

    def work(found: Any, equal: Any) -> Any:
        return pc.if_else(pc.fill_null(equal, False), pa.scalar(None, value.type), found)

    return _of([value, same], value.type, work)


def _alike(nodes: Sequence[exp.Expr], schema: pa.Schema) -> list[Term]:
    """Values of one type: the same one, or the widest of integers, or a decimal that holds them."""
    terms = [term(node, schema) for node in nodes if not isinstance(node, exp.Null)]
    if len(terms) < len(nodes):
        raise NotHere("a null without a type")
    types = {each.type for each in terms}
    if len(types) == 1:
        return terms
    decimals = [type_ for type_ in types if pa.types.is_decimal128(type_)]
    whole = [_DIGITS[type_] for type_ in types if type_ in _DIGITS]
    if len(whole) + len(decimals) < len(types) or len(decimals) > 1:
        raise NotHere("values of different types")
    if decimals:
        wanted = decimals[0]
        if wanted.precision - wanted.scale < max(whole):
            raise NotHere("values of different types")
    else:
        wanted = max(types, key=lambda type_: _DIGITS[type_])
    return [_of([each], wanted, _caster(each, wanted)) for each in terms]


_BUILDERS: dict[type[exp.Expr], Callable[[Any, pa.Schema], Term]] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Anonymous: _known,
    exp.Boolean: lambda node, _: _constant(bool(node.this), pa.bool_()),
    exp.Paren: lambda node, schema: term(node.this, schema),
    exp.Cast: _cast,
    # Spark's CAST is read as this by sqlglot; texts with Spark's TRY_CAST are not read at all.
    exp.TryCast: _cast,
    exp.Neg: _negated,
    exp.Add: _arithmetic,
    exp.Sub: _arithmetic,
    exp.Mul: _arithmetic,
    exp.Mod: _divided,
    exp.IntDiv: _divided,
    exp.BitwiseAnd: _bits,
    exp.NullSafeEQ: _same,
    exp.And: _logic,
    exp.Or: _logic,
    exp.Not: _negation,
    exp.Is: _is,
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.Coalesce: _coalesce,
    exp.Nullif: _nullif,
    **dict.fromkeys(_COMPARISONS, _compared),
}
