"""Functions that give several rows: in Spark, arrays of structs with one field per column."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.algebra import Expression, Generate, Output
from headwater.sql.block import Block
from headwater.sql.expression import json_text as jt
from headwater.sql.expression.arrays import element_of
from headwater.sql.expression.call import Call
from headwater.sql.expression.coercion import INTEGERS, as_decimal_type, number, unify
from headwater.sql.expression.interval_text import parts_of
from headwater.sql.expression.text_functions import FUNCTIONS as TEXT_FUNCTIONS
from headwater.sql.expression.text_functions import all_matches, split_array
from headwater.sql.expression.translator import function_name
from headwater.sql.expression.typed import Typed, made
from headwater.sql.grouping import outside_subqueries

TEXT, JSON = types.VARCHAR, types.JSONB


@dataclass(frozen=True, slots=True)
class RowSet:
    """An array, what each of its elements `e` gives, and the names and types of that."""

    array: Typed
    values: tuple[str, ...]
    types: tuple[DataType, ...]
    names: tuple[str, ...] = ()


def _one(array: Typed, type_: DataType, name: str = "") -> RowSet:
    return RowSet(array, ("e",), (type_,), (name,) if name else ())


def _unnest(call: Call) -> RowSet:
    if not call.args:
        call.no_such()
    fields = tuple(element_of(arg, call.text, call.node) for arg in call.args)
    if len(call.args) == 1:
        return _one(call.args[0], fields[0])
    # The zipped fields are named by their places, or by the columns that they come from.
    zipped = ", ".join(f"transform({arg.text}, e -> e)" for arg in call.args)
    kind = types.list_of(DataType(Kind.STRUCT, fields=tuple(
        (str(i), each) for i, each in enumerate(fields))))  # fmt: skip
    array = made(f"arrays_zip({zipped})", kind, *call.args)
    return RowSet(array, tuple(f"e.`{i}`" for i in range(len(fields))), fields)


def _series(call: Call) -> RowSet:
    call.count(2, 3)
    kinds = [arg.type.kind for arg in call.args[:2] if arg.type is not None]
    if kinds and all(kind in INTEGERS for kind in kinds):
        (first, last), shared = unify(list(call.args[:2]), call.text, call.node, call.name)
        shared = types.INTEGER if shared.kind is Kind.SMALLINT else shared
        step = call.arg(2, shared).text if len(call.args) == 3 else "1"
        spark = shared.spark
        body = _sequence(*(f"cast({each} as {spark})" for each in (first.text, last.text, step)))
        return _one(made(body, types.list_of(shared), *call.args), shared)
    if kinds and all(kind in (*INTEGERS, Kind.DECIMAL, Kind.NUMERIC) for kind in kinds):
        return _decimal_series(call)
    return _times(call)


def _sequence(first: str, last: str, step: str) -> str:
    # Spark raises where PostgreSQL gives no rows: when the step leads away from the end.
    away = f"(({step} > 0 and {first} > {last}) or ({step} < 0 and {first} < {last}))"
    size = f"if({step} = 0, cast(raise_error('step size cannot equal zero') as int), {step})"
    return (
        f"if({first} is null or {last} is null or {away}, slice(sequence({first}, {first}), 1, 0),"
        f" sequence({first}, if({away}, {first}, {last}), if({away}, 0, {size})))"
    )


def _decimal_series(call: Call) -> RowSet:
    values = [number(arg, call.text, call.node) for arg in call.args]
    exact = [as_decimal_type(value.known) for value in values]
    scale = max(each.scale or 0 for each in exact)
    type_ = types.decimal(38, scale)
    first, last = (f"cast({value.text} as {type_.spark})" for value in values[:2])
    step = f"cast({values[2].text} as {type_.spark})" if len(values) == 3 else "cast(1 as int)"
    zero = "cast(raise_error('step size cannot equal zero') as bigint)"
    count = f"if({step} = 0, {zero}, cast(floor(({last} - {first}) / {step}) as bigint))"
    numbers = f"if({count} < 0 or {count} is null, slice(sequence(0L, 0L), 1, 0), "
    numbers += f"sequence(0L, greatest({count}, 0L)))"
    item = f"cast({first} + n * {step} as {type_.spark})"
    body = f"transform({numbers}, n -> {item})"
    return _one(made(body, types.list_of(type_), *values), type_)


def _times(call: Call) -> RowSet:
    if len(call.args) != 3:
        call.mistake("generate_series of times needs a step")
    kinds = [arg.type.kind for arg in call.args[:2] if arg.type is not None]
    shared = types.TIMESTAMP if Kind.TIMESTAMP in kinds else types.TIMESTAMPTZ
    first, last = (call.arg(place, shared) for place in (0, 1))
    step = call.arg(2, types.INTERVAL)
    parts = parts_of(step)
    if step.columns or parts.months != "(0L)":
        return _months(call, first, last, step, shared)
    size = f"({parts.days} * 86400000000L + {parts.micros})"
    start, end = (_micros(each) for each in (first, last))
    moment = "timestamp_micros({0})"
    if shared.kind is Kind.TIMESTAMP:
        moment = f"cast({moment} as timestamp_ntz)"
    body = f"transform({_sequence(start, end, size)}, n -> {moment.format('n')})"
    return _one(made(body, types.list_of(shared), first, last, step), shared)


def _micros(value: Typed) -> str:
    return f"unix_micros(cast({value.text} as timestamp))"


def _months(call: Call, first: Typed, last: Typed, step: Typed, shared: DataType) -> RowSet:
    """Steps with months: each is added to the one before, as PostgreSQL does."""
    if step.columns:
        call.refuse("the step of generate_series must be a constant here")
    parts = parts_of(step)
    span = f"make_interval(0, cast({parts.months} as int), 0, cast({parts.days} as int), 0, 0, "
    span += f"cast(cast({parts.micros} as decimal(18,6)) / 1000000 as decimal(18,6)))"
    size = f"(({parts.months} * 28L + {parts.days}) * 86400000000L + {parts.micros})"
    start, end = (_micros(each) for each in (first, last))
    count = f"least(greatest(({end} - {start}) div {size} + 1L, 0L), 1000000L)"
    grown = f"concat(a, array(element_at(a, -1) + {span}))"
    all_ = f"aggregate(sequence(0L, {count}), array({first.text}), (a, i) -> {grown})"
    inside = f"if({size} > 0L, e <= {last.text}, e >= {last.text})"
    body = f"if({first.text} is null or {last.text} is null, null, filter({all_}, e -> {inside}))"
    return _one(made(body, types.list_of(shared), first, last, step), shared)


def _json_elements(*, as_text: bool) -> Callable[[Call], RowSet]:
    def function(call: Call) -> RowSet:
        call.count(1)
        value = call.arg(0, JSON)
        error = "cast(raise_error('cannot extract elements from a value that is no array') as "
        parts = jt.elements(jt.part_of(value.text))
        wrong = f"{value.text} is not null and not startswith({value.text}, '[')"
        shown = jt.as_text("e") if as_text else jt.as_json("e")
        type_ = TEXT if as_text else JSON
        body = f"if({wrong}, {error}array<string>), {parts})"
        array = made(body, types.list_of(TEXT), value)
        return RowSet(array, (shown,), (type_,), ("value",))

    return function


def _json_fields(*, as_text: bool, keys: bool = False) -> Callable[[Call], RowSet]:
    def function(call: Call) -> RowSet:
        call.count(1)
        value = call.arg(0, JSON)
        wrong = f"{value.text} is not null and not startswith({value.text}, '{{')"
        kind = "array<struct<key:string,value:string>>"
        error = f"cast(raise_error('cannot deconstruct a value that is no object') as {kind})"
        entries = f"map_entries({jt.fields(jt.part_of(value.text))})"
        struct = DataType(Kind.STRUCT, fields=(("key", TEXT), ("value", TEXT)))
        array = made(f"if({wrong}, {error}, {entries})", types.list_of(struct), value)
        if keys:
            return RowSet(array, ("substring(e.key, 2)",), (TEXT,))
        shown = jt.as_text("e.value") if as_text else jt.as_json("e.value")
        type_ = TEXT if as_text else JSON
        return RowSet(array, ("substring(e.key, 2)", shown), (TEXT, type_), ("key", "value"))

    return function


def _subscripts(call: Call) -> RowSet:
    call.count(2)
    element_of(call.args[0], call.text, call.node)
    if call.args[1].text != "1":
        call.refuse("generate_subscripts is supported for the first dimension")
    size = f"size({call.args[0].text})"
    body = _sequence("1", f"coalesce({size}, 0)", "1")
    return _one(made(body, types.list_of(types.INTEGER), call.args[0]), types.INTEGER)


def _listed(make: Callable[[Call], Typed]) -> Callable[[Call], RowSet]:
    def function(call: Call) -> RowSet:
        array = make(call)
        assert array.type is not None
        return _one(array, array.type.element or TEXT)

    return function


SETS: dict[str, Callable[[Call], RowSet]] = {
    "unnest": _unnest,
    "generate_series": _series,
    "generate_subscripts": _subscripts,
    "jsonb_array_elements": _json_elements(as_text=False),
    "json_array_elements": _json_elements(as_text=False),
    "jsonb_array_elements_text": _json_elements(as_text=True),
    "json_array_elements_text": _json_elements(as_text=True),
    "jsonb_each": _json_fields(as_text=False),
    "jsonb_each_text": _json_fields(as_text=True),
    "jsonb_object_keys": _json_fields(as_text=False, keys=True),
    "regexp_split_to_table": _listed(split_array),
    "string_to_table": _listed(TEXT_FUNCTIONS["string_to_array"]),
    "regexp_matches": _listed(all_matches),
}


def row_set(block: Block, name: str, args: list[Any], node: Any) -> RowSet:
    """The rows of a call."""
    translate = block.translator()
    values = tuple(translate(each) for each in args)
    return SETS[name](Call(name, values, node, block.text))


def in_select_list(block: Block, nodes: list[Any]) -> None:
    """Calls in a select list: all go forward together, and the shorter ones give null at the end.

    Afterwards a column stands for each call.
    """
    calls = [each for node in nodes for each in outside_subqueries(node) if _is_set(each)]
    if not calls:
        return
    sets = []
    for call in calls:
        name = "unnest" if isinstance(call, exp.Unnest) else function_name(call)
        found = row_set(block, name, list(call.expressions), call)
        if len(found.types) != 1:
            block.text.refuse(f"{name} gives several columns: use it in FROM", call)
        sets.append(found)
    columns = [block.planning.column("set", each.types[0]) for each in sets]
    shown = [f"transform({each.array.text}, e -> struct({each.values[0]} as v))" for each in sets]
    if len(sets) == 1:
        fields = f"named_struct('{columns[0][0]}', z.v)"
        body = f"transform({shown[0]}, z -> {fields})"
    else:
        # The fields of arrays_zip are named by the places of its arguments.
        fields = ", ".join(f"'{name}', z.`{place}`.v" for place, (name, _) in enumerate(columns))
        zipped = ", ".join(f"coalesce({each}, array())" for each in shown)
        body = f"transform(arrays_zip({zipped}), z -> named_struct({fields}))"
    struct = DataType(Kind.STRUCT, fields=tuple((name, ref.known) for name, ref in columns))
    ordinal, _ = block.planning.column("ordinality", types.BIGINT, nullable=False)
    read = frozenset().union(*(each.array.columns for each in sets))
    block.plan = Generate(
        input=block.plan,
        expression=Expression(body, types.list_of(struct), read),
        generated=tuple(Output(name, ref.known) for name, ref in columns),
        ordinality=ordinal,
    )
    for call, (_, reference) in zip(calls, columns, strict=True):
        block.generated[id(call)] = reference


def _is_set(node: Any) -> bool:
    if isinstance(node, exp.Unnest):
        return True
    return isinstance(node, exp.Anonymous) and function_name(node) in SETS
