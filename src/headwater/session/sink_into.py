"""CREATE SINK ... INTO a table of this workspace: which columns, which key, and no circles.

    CREATE SINK s INTO t (a, b) FROM v;
    CREATE SINK s INTO t AS SELECT ...;

Columns go by place, as in INSERT, and are cast as INSERT casts. Where they are not already those
of the table, the sink keeps a materialized view that has them so: with casts, with defaults for
what is not named, and with generated columns. A row is upserted by the table's key; a table
without one is appended to.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headwater.catalog.relation import ObjectDef, ObjectKind, TableDef
from headwater.catalog.snapshot import CatalogSnapshot, relation_error
from headwater.errors import BindError, NotSupported
from headwater.model.ids import TableId
from headwater.model.schema import Column
from headwater.model.spelling import sql_quoted
from headwater.runtime.names import CatalogRelations
from headwater.runtime.row_ids import has_row_ids
from headwater.runtime.sinks.definition import EVOLVES
from headwater.session import definitions
from headwater.session.context import Context
from headwater.session.sink_wishes import OWN, Wishes, wrong
from headwater.session.writes.assigning import assigned_query
from headwater.session.writes.target import Target, find_target
from headwater.sinks.sink import SinkKind
from headwater.sql import statement as st
from headwater.sql.algebra import Query, tables_of
from headwater.sql.expression.problem import Text
from headwater.sql.parse import parse_one
from headwater.sql.plan import plan_query

_ROWS = "_hw_rows"
_NOT_FOR_TABLES = ("connector", "primary_key", EVOLVES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Into:
    """A sink into a table, as one that delivers a relation with the columns of that table."""

    table: TableId
    columns: tuple[str, ...]
    """Those that were named."""
    query: str
    """What it delivers, as the user would write it; empty where it is a relation as it is."""
    statement: st.CreateSink
    wishes: Wishes


def plan_into(
    context: Context, snapshot: CatalogSnapshot, statement: st.CreateSink, wishes: Wishes
) -> Into:
    """Check a sink into a table, and say what it delivers."""
    assert statement.into is not None
    target = find_target(snapshot, statement.into, context.path)
    _check_options(statement)
    text, query, relation = _source(context, snapshot, statement)
    given = _given(target, statement.into_columns, len(query.visible))
    assigned_query(query, given, Text(text))
    _refuse_circle(snapshot, target.table, _read_by(query, relation))
    wanted = _wanted(target.table, wishes)
    delivers = statement
    if relation is None or not _same(relation, target, given):
        made = _assigned_text(target, given, query, text)
        delivers = replace(statement, from_relation=None, query_text=made)
    rewritten = delivers is not statement
    return Into(
        table=target.table.id,
        columns=statement.into_columns,
        query=text if rewritten else "",
        statement=delivers,
        wishes=wanted,
    )


def _check_options(statement: st.CreateSink) -> None:
    for name, _ in statement.options:
        if name not in OWN or name in _NOT_FOR_TABLES:
            raise wrong(
                f'a sink into a table does not take option "{name}"',
                hint="The table itself is the target, and rows are named by its key.",
            )
    if statement.format.format:
        raise wrong("a sink into a table takes no FORMAT", hint="Rows go into it as they are.")


def _source(
    context: Context, snapshot: CatalogSnapshot, statement: st.CreateSink
) -> tuple[str, Query, TableDef | None]:
    """The text of what is delivered, its plan, and the relation where it is one as it stands."""
    relation = None
    text = statement.query_text
    if statement.from_relation is not None:
        found = definitions.find(snapshot, statement.from_relation, context.path)
        relation = found if isinstance(found, TableDef) else None
        text = f"SELECT * FROM {sql_quoted(found.namespace)}.{sql_quoted(found.name)}"
    parsed = parse_one(text)
    assert isinstance(parsed, st.Select)
    query = plan_query(parsed.query, text, CatalogRelations(snapshot, context.path), for_view=True)
    return text, query, relation


def _given(target: Target, named: Sequence[str], width: int) -> tuple[Column, ...]:
    """The columns of the table that the rows go to, by place."""
    given = target.named(named)
    if not named:
        given = tuple(column for column in given if column not in target.generated)
    if width > len(given):
        raise BindError("the sink has more expressions than target columns", sqlstate="42601")
    if named and width < len(given):
        raise BindError("the sink has more target columns than expressions", sqlstate="42601")
    given = given[:width]
    for column in given:
        target.writable_column(column.name, "insert")
    there = {column.name for column in given}
    for name in () if has_row_ids(target.table) else target.table.schema.key:
        if name not in there and target.detail(name).default is None:
            raise wrong(
                f'the sink gives no value for column "{name}"',
                hint=f'It is part of the key of "{target.table.name}": rows need one.',
            )
    return given


def _wanted(table: TableDef, wishes: Wishes) -> Wishes:
    """The kind and the key that the table asks for."""
    kind = SinkKind.APPEND_ONLY if has_row_ids(table) else SinkKind.UPSERT
    if wishes.type and wishes.type != kind.value:
        raise wrong(
            f'a sink into "{table.name}" is {kind.value}',
            hint="It has no key: rows are appended. Use type = 'append-only'."
            if has_row_ids(table)
            else "It has a key, by which rows are upserted. Leave type out.",
        )
    if kind is SinkKind.UPSERT and st.Conflict(table.detail.conflict) is not st.Conflict.UPDATE:
        raise NotSupported(
            f'table "{table.name}" has a rule for conflicts that a sink cannot follow',
            detail="A sink says what the row of a key is now.",
            hint="Create the table with ON CONFLICT DO UPDATE FULL, which is the default.",
        )
    if kind is SinkKind.UPSERT and table.append_only and not wishes.ignore_delete:
        raise wrong(f'table "{table.name}" is append-only', hint="Set force_append_only = 'true'.")
    key = table.schema.key if kind is SinkKind.UPSERT else ()
    return replace(wishes, connector="table", type=kind.value, key=key)


def _same(relation: TableDef, target: Target, given: Sequence[Column]) -> bool:
    """Whether rows of a relation are rows of the table as they are."""
    mine = [(column.name, column.type) for column in relation.columns]
    theirs = [(column.name, column.type) for column in given]
    return mine == theirs and len(given) == len(target.columns)


def _assigned_text(target: Target, given: Sequence[Column], query: Query, text: str) -> str:
    """The query with the columns of the table: cast, with defaults, with generated ones."""
    types = {output.name: output.type for output in query.plan.outputs}
    items: dict[str, str] = {}
    for place, (column, (_, name)) in enumerate(zip(given, query.visible, strict=True)):
        value = f"{_ROWS}.c{place}"
        items[column.name] = (
            value if types[name] == column.type else f"{value}::{column.type.postgres}"
        )
    for column in target.columns:
        if column.name not in items and column not in target.generated:
            default = target.detail(column.name).default
            items[column.name] = f"({default or 'null'})::{column.type.postgres}"
    names = ", ".join(f"c{place}" for place in range(len(given)))
    listed = ", ".join(f"{value} AS {sql_quoted(name)}" for name, value in items.items())
    plain = f"SELECT {listed} FROM ({text}) AS {_ROWS}({names})"
    if not target.generated:
        return plain
    shown = []
    for column in target.columns:
        name = sql_quoted(column.name)
        computed = target.detail(column.name).generated
        shown.append(name if computed is None else f"({computed}) AS {name}")
    return f"SELECT {', '.join(shown)} FROM ({plain}) AS {sql_quoted(target.table.name)}"


def _read_by(query: Query, relation: TableDef | None) -> frozenset[int]:
    found = frozenset(int(id_) for id_ in tables_of(query.plan))
    return found if relation is None else found | {relation.id}


def _refuse_circle(snapshot: CatalogSnapshot, table: TableDef, reads: frozenset[int]) -> None:
    """Refuse a sink whose rows would come back to it."""
    reached: set[int] = set()
    left = [int(table.id)]
    while left:
        id_ = left.pop()
        if id_ in reached:
            continue
        reached.add(id_)
        for each in snapshot.readers(id_):
            if isinstance(each, ObjectDef) and each.kind is ObjectKind.SINK:
                # It needs the table that it writes as well; rows go the other way.
                if each.into is not None and each.table == id_:
                    left.append(int(each.into))
            else:
                left.append(int(each.id))
    if reached & reads:
        raise relation_error(
            f'a sink into "{table.name}" would feed itself',
            "42P17",
            detail="What it delivers is computed from that table.",
            hint="Write into a table that nothing of this depends on.",
        )
