"""CREATE, ALTER, DROP and COMMENT: from statements to definitions of the catalog.

Names are checked against the catalog as it is now; the catalog checks again in the transaction
that makes the change. IF [NOT] EXISTS turns a clash into a notice.
"""

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from headwater.catalog.change import DUPLICATE_TABLE
from headwater.catalog.relation import (
    PUBLIC,
    SINK_VIEW,
    ColumnDetail,
    Detail,
    ObjectDef,
    ObjectKind,
    Query,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import (
    UNDEFINED_OBJECT,
    UNDEFINED_TABLE,
    CatalogSnapshot,
    missing,
    relation_error,
)
from headwater.errors import NotSupported, SchemaError, UserError
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT
from headwater.runtime.names import CatalogRelations
from headwater.runtime.row_ids import ROW_ID
from headwater.runtime.view_plan import PlannedView, plan_view
from headwater.sql import statement as st
from headwater.sql.data_statements import identifier
from headwater.sql.dialect import Grammar
from headwater.sql.plan import plan_query
from headwater.views.layout import RefreshPolicy

_VIEW_OPTIONS = ("refresh_policy", "backfill_rate_limit", "backfill_order", "source_rate_limit")

_EXISTS = frozenset({"42P07", "42710", "42P06"})

KINDS: dict[st.ObjectKind, tuple[TableKind | ObjectKind, ...]] = {
    st.ObjectKind.TABLE: (TableKind.TABLE,),
    st.ObjectKind.MATERIALIZED_VIEW: (TableKind.MATERIALIZED_VIEW, ObjectKind.CREATING),
    st.ObjectKind.VIEW: (ObjectKind.VIEW,),
    st.ObjectKind.INDEX: (ObjectKind.INDEX,),
    st.ObjectKind.SINK: (ObjectKind.SINK,),
}


def place_of(name: st.ObjectName, path: Sequence[str], snapshot: CatalogSnapshot) -> str:
    """The schema in which a new relation is made."""
    if name.schema is not None:
        if name.schema not in snapshot.schemas:
            raise missing("schema", name.schema, snapshot.schemas, "3F000")
        return name.schema
    return next((each for each in path if each in snapshot.schemas), PUBLIC)


def refuse_taken(snapshot: CatalogSnapshot, name: str, namespace: str) -> None:
    """Raise when a relation of that name is there already."""
    found = snapshot.relation(name, namespace)
    if found is not None:
        raise relation_error(f'{found.kind.value} "{name}" already exists', DUPLICATE_TABLE)
    if namespace == PUBLIC and any(source.name == name for source in snapshot.sources):
        raise relation_error(f'source "{name}" already exists', DUPLICATE_TABLE)


def exists_already(snapshot: CatalogSnapshot, name: str, namespace: str, *, skip: bool) -> str:
    """A notice when a relation is there and that is fine; raises when it is not."""
    try:
        refuse_taken(snapshot, name, namespace)
    except UserError as error:
        if not skip or error.sqlstate not in _EXISTS:
            raise
        return f'relation "{name}" already exists, skipping'
    return ""


def find(
    snapshot: CatalogSnapshot,
    name: st.ObjectName,
    path: Sequence[str],
    kind: st.ObjectKind | None = None,
) -> TableDef | ObjectDef:
    """The relation that a name means, of that kind if one is given."""
    for namespace in path if name.schema is None else (name.schema,):
        found = snapshot.relation(name.name, namespace)
        if found is None:
            continue
        wanted = KINDS.get(kind, ()) if kind is not None else ()
        if wanted and found.kind not in wanted:
            assert kind is not None
            error = relation_error(
                f'"{name}" is not a {kind.value}',
                "42809",
                hint=f"It is a {found.kind.value}: use DROP or ALTER {found.kind.value.upper()}.",
            )
            raise error
        return found
    what = kind.value if kind is not None else "relation"
    plain = kind not in (st.ObjectKind.INDEX, st.ObjectKind.SINK)
    state = UNDEFINED_TABLE if plain else UNDEFINED_OBJECT
    known = [each.name for each in snapshot.everything if each.kind is not TableKind.STORE]
    raise missing(what, str(name), known, state)


def table_of(statement: st.CreateTable, namespace: str, owner: str) -> TableDef:
    """The definition of a new table that users write."""
    seen: set[str] = set()
    for column in statement.columns:
        if column.name in seen:
            raise _error(f'column "{column.name}" specified more than once', "42701")
        seen.add(column.name)
    columns = tuple(
        Column(c.name, c.type, nullable=c.nullable and c.name not in statement.key)
        for c in statement.columns
    )
    key = statement.key
    if not key:
        columns, key = (*columns, Column(ROW_ID, BIGINT, nullable=False)), (ROW_ID,)
    for name in key:
        if name not in (column.name for column in columns):
            raise _error(f'column "{name}" named in key does not exist', "42703")
    details = {c.name: _column_detail(c) for c in statement.columns}
    conflict = (statement.conflict or st.Conflict.UPDATE).value
    return TableDef(
        id=TableId(0),
        name=statement.name.name,
        namespace=namespace,
        schema=Schema(columns, key),
        folder="",
        append_only=statement.append_only,
        detail=Detail(
            definition=statement.text,
            owner=owner,
            conflict=conflict,
            columns={name: d for name, d in details.items() if d != ColumnDetail()},
        ),
    )


def _column_detail(column: st.ColumnDefinition) -> ColumnDetail:
    return ColumnDetail(
        default=None if column.default is None else column.default.sql(dialect=Grammar),
        generated=None if column.generated is None else column.generated.sql(dialect=Grammar),
        length=column.length,
    )


def materialized_view(
    statement: st.CreateMaterializedView,
    snapshot: CatalogSnapshot,
    path: Sequence[str],
    default_policy: str,
    text: str,
) -> PlannedView:
    """Plan a new materialized view, with the options of its WITH clause."""
    policy = default_policy
    for name, value in options_of(statement.options, _VIEW_OPTIONS):
        if name == "refresh_policy":
            policy = value.lower()
        elif name == "backfill_rate_limit" and not value.lstrip("-").isdigit():
            raise _error(f'backfill_rate_limit cannot be "{value}"', "22023")
    try:
        chosen = RefreshPolicy(policy)
    except ValueError:
        known = ", ".join(each.value for each in RefreshPolicy)
        raise _error(
            f'there is no refresh policy "{policy}"', "22023", hint=f"Choose one of {known}."
        ) from None
    return plan_view(statement, snapshot, path, chosen, text)


def options_of(given: st.Options, known: Sequence[str]) -> st.Options:
    """The options of a WITH clause; unknown and repeated ones are refused."""
    seen: set[str] = set()
    for name, _ in given:
        if name not in known:
            raise _error(
                f'unknown option "{name}"', "22023", hint=f"Known options: {', '.join(known)}."
            )
        if name in seen:
            raise _error(f'option "{name}" is given twice', "42601")
        seen.add(name)
    return given


def view_of(
    statement: st.CreateView,
    snapshot: CatalogSnapshot,
    path: Sequence[str],
    owner: str,
    text: str,
) -> ObjectDef:
    """The definition of a new view."""
    relations = CatalogRelations(snapshot, path)
    planned = plan_query(statement.query, text, relations, aliases=statement.columns)
    types = {output.name: output.type for output in planned.plan.outputs}
    columns = tuple(Column(name, types[column]) for name, column in planned.visible)
    names = [column.name for column in columns]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise _error(f'column "{twice}" specified more than once', "42701")
    return ObjectDef(
        id=0,
        kind=ObjectKind.VIEW,
        name=statement.name.name,
        namespace=place_of(statement.name, path, snapshot),
        definition=statement.text,
        owner=owner,
        query=Query(text=statement.text, reads=relations.reads, aliases=statement.columns),
        columns=columns,
    )


def index_of(
    statement: st.CreateIndex, snapshot: CatalogSnapshot, path: Sequence[str], owner: str
) -> ObjectDef:
    """The definition of a new index; lookups by its columns then need no Spark job."""
    table = find(snapshot, statement.table, path)
    if not isinstance(table, TableDef):
        raise _error(f'"{statement.table}" is not a table or materialized view', "42809")
    keys = []
    for expression in statement.columns:
        inner = expression.this if isinstance(expression, exp.Ordered) else expression
        names = [identifier(inner)] if isinstance(inner, exp.Column) else []
        if len(names) != 1 or names[0] not in (c.name for c in table.columns):
            raise NotSupported(
                "an index on an expression is not supported",
                hint="Index a column of the relation, or a view that computes the expression.",
            )
        if not table.schema[names[0]].type.can_be_key:
            raise SchemaError(f'column "{names[0]}" cannot be part of an index')
        keys.append(names[0])
    name = statement.name.name if statement.name else f"{table.name}_{'_'.join(keys)}_idx"
    return ObjectDef(
        id=0,
        kind=ObjectKind.INDEX,
        name=name,
        namespace=table.namespace,
        definition=statement.text,
        owner=owner,
        table=table.id,
        keys=tuple(keys),
        includes=statement.include,
        unique=statement.unique,
    )


def dropped(
    statement: st.Drop, snapshot: CatalogSnapshot, path: Sequence[str]
) -> tuple[list[TableDef | ObjectDef], list[str]]:
    """What a DROP takes, dependents first, and the names that are not there."""
    found: list[TableDef | ObjectDef] = []
    absent: list[str] = []
    for name in statement.names:
        try:
            found.append(find(snapshot, name, path, statement.kind))
        except UserError as error:
            if not statement.if_exists or error.sqlstate not in (UNDEFINED_TABLE, UNDEFINED_OBJECT):
                raise
            absent.append(str(name))
    return with_dependents(snapshot, found, cascade=statement.cascade), absent


def with_dependents(
    snapshot: CatalogSnapshot, found: Sequence[TableDef | ObjectDef], *, cascade: bool
) -> list[TableDef | ObjectDef]:
    """What goes with some relations: indexes and replacements always, the rest by CASCADE."""
    ids = {each.id for each in found}
    others = snapshot.dependents([each.id for each in found])
    needed = [
        each
        for each in others
        if each.kind is not ObjectKind.INDEX
        and not (isinstance(each, ObjectDef) and each.replaces in ids)
    ]
    if needed and not cascade:
        shown = [each for each in needed if not each.name.startswith(SINK_VIEW)]
        names = ", ".join(f"{each.kind.value} {each.name}" for each in shown)
        raise relation_error(
            f'cannot drop {found[0].kind.value} "{found[0].name}" '
            "because other objects depend on it",
            "2BP01",
            detail=f"It is needed by {names}.",
            hint="Use DROP ... CASCADE to drop the dependent objects too.",
        )
    return [*(each for each in others if each.id not in ids), *found]


def with_column(table: TableDef, column: st.ColumnDefinition) -> TableDef:
    """A table with one more column."""
    if any(each.name == column.name for each in table.schema.columns):
        raise _error(f'column "{column.name}" of relation "{table.name}" already exists', "42701")
    if not column.nullable and column.default is None:
        raise _error(
            f'column "{column.name}" would contain null values',
            "23502",
            hint="Give it a DEFAULT, or leave NOT NULL out.",
        )
    added = Column(column.name, column.type, column.nullable)
    schema = Schema((*table.schema.columns, added), table.schema.key)
    columns = dict(table.detail.columns)
    if (detail := _column_detail(column)) != ColumnDetail():
        columns[column.name] = detail
    return replace(table, schema=schema, detail=replace(table.detail, columns=columns))


def without_column(table: TableDef, column: str, snapshot: CatalogSnapshot) -> TableDef:
    """A table with one column less."""
    if not any(each.name == column for each in table.columns):
        raise missing("column", column, [each.name for each in table.columns], "42703")
    if column in table.schema.key:
        raise _error(f'column "{column}" is part of the key', "0A000")
    readers = [
        reader.name
        for reader in snapshot.readers(table.id)
        if _reads_column(reader, table.id, column)
    ]
    if readers:
        raise relation_error(
            f'cannot drop column "{column}" because other objects depend on it',
            "2BP01",
            detail=f"It is needed by {', '.join(readers)}.",
        )
    kept = tuple(each for each in table.schema.columns if each.name != column)
    columns = {name: detail for name, detail in table.detail.columns.items() if name != column}
    return replace(
        table,
        schema=Schema(kept, table.schema.key),
        detail=replace(table.detail, columns=columns),
    )


def _reads_column(reader: TableDef | ObjectDef, table: TableId, column: str) -> bool:
    query = reader.query if isinstance(reader, ObjectDef) else reader.detail.query
    if query is None:
        delivered = [each.name for each in reader.columns] if isinstance(reader, ObjectDef) else []
        return isinstance(reader, ObjectDef) and column in (*reader.keys, *delivered)
    return any(read.relation == table and column in read.columns for read in query.reads.values())


def _error(message: str, sqlstate: str, *, hint: str = "") -> UserError:
    error = UserError(message, hint=hint)
    error.sqlstate = sqlstate
    return error
