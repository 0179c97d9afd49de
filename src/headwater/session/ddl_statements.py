"""Run CREATE, ALTER, DROP and COMMENT.

A definition that was begun is finished even if the client goes away: afterwards it is there or
it is not, and the same statement sent again says which.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headwater.catalog.relation import (
    PUBLIC,
    ColumnDetail,
    ObjectDef,
    ObjectKind,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import CatalogSnapshot, missing, relation_error
from headwater.errors import NotSupported, UserError
from headwater.model.spelling import sql_quoted
from headwater.pgwire.session import StatementResult
from headwater.runtime.connectors import find_connector
from headwater.runtime.names import still_creating
from headwater.runtime.succession_rules import refuse_being_replaced
from headwater.session import definitions
from headwater.session.answers import done
from headwater.session.context import Context
from headwater.session.create_as import create_table_as
from headwater.session.finishing import finished
from headwater.session.source_statements import create_table_from
from headwater.session.writes.update import update
from headwater.sql import statement as st
from headwater.sql.parse import parse_one


async def create_table(context: Context, statement: st.CreateTable, text: str) -> StatementResult:
    """CREATE TABLE [AS]."""
    snapshot = await context.snapshot()
    namespace = definitions.place_of(statement.name, context.path, snapshot)
    if exists := definitions.exists_already(
        snapshot, statement.name.name, namespace, skip=statement.if_not_exists
    ):
        return done("CREATE TABLE", exists)
    if statement.source is not None:
        return await create_table_from(context, statement, namespace, text)
    _refuse_source(statement)
    if statement.query is not None:
        return await create_table_as(context, statement, namespace, text)
    table = definitions.table_of(statement, namespace, context.user)
    await finished(context.engine.ddl.create_table(table))
    return done("CREATE TABLE")


def _refuse_source(statement: st.CreateTable) -> None:
    options = dict(statement.options)
    if "connector" in options:
        find_connector(options["connector"])
        raise NotSupported(
            "a table cannot have a connector of its own",
            hint="CREATE SOURCE first, then CREATE TABLE ... FROM source TABLE 'name'.",
        )
    if statement.options:
        definitions.options_of(statement.options, ())


async def create_view(context: Context, statement: st.CreateView, text: str) -> StatementResult:
    """CREATE [OR REPLACE] VIEW."""
    snapshot = await context.snapshot()
    definitions.options_of(statement.options, ())
    namespace = definitions.place_of(statement.name, context.path, snapshot)
    found = snapshot.relation(statement.name.name, namespace)
    replaces = statement.or_replace and found is not None
    if not replaces and (
        exists := definitions.exists_already(
            snapshot, statement.name.name, namespace, skip=statement.if_not_exists
        )
    ):
        return done("CREATE VIEW", exists)
    view = definitions.view_of(statement, snapshot, context.path, context.user, text)
    if not replaces:
        await finished(context.engine.ddl.create_object(view))
        return done("CREATE VIEW")
    if not isinstance(found, ObjectDef) or found.kind is not ObjectKind.VIEW:
        raise relation_error(f'"{statement.name}" is not a view', "42809")
    if found.id in view.reads:
        raise relation_error(f'view "{found.name}" would read itself', "42P17")
    old = [(column.name, column.type) for column in found.columns]
    if [(c.name, c.type) for c in view.columns[: len(old)]] != old:
        raise relation_error(
            "cannot change or drop columns of a view",
            "42P16",
            hint="Columns may only be added at the end; else drop the view first.",
        )
    await finished(context.engine.ddl.replace_object(replace(view, id=found.id)))
    return done("CREATE VIEW")


async def create_index(context: Context, statement: st.CreateIndex) -> StatementResult:
    """CREATE INDEX."""
    snapshot = await context.snapshot()
    index = definitions.index_of(statement, snapshot, context.path, context.user)
    if exists := definitions.exists_already(
        snapshot, index.name, index.namespace, skip=statement.if_not_exists
    ):
        return done("CREATE INDEX", exists)
    await finished(context.engine.ddl.create_object(index))
    return done("CREATE INDEX")


async def create_schema(context: Context, statement: st.CreateSchema) -> StatementResult:
    """CREATE SCHEMA."""
    snapshot = await context.snapshot()
    if statement.name in snapshot.schemas:
        if statement.if_not_exists:
            return done("CREATE SCHEMA", f'schema "{statement.name}" already exists, skipping')
        raise relation_error(f'schema "{statement.name}" already exists', "42P06")
    made = ObjectDef(id=0, kind=ObjectKind.SCHEMA, name=statement.name, owner=context.user)
    await finished(context.engine.ddl.create_object(made))
    return done("CREATE SCHEMA")


async def drop(context: Context, statement: st.Drop) -> StatementResult:
    """DROP of any kind."""
    tag = f"DROP {statement.kind.value.upper()}"
    snapshot = await context.snapshot()
    if statement.kind is st.ObjectKind.SCHEMA:
        return await _drop_schemas(context, statement, snapshot)
    if statement.kind is st.ObjectKind.SOURCE:
        return await _drop_sources(context, statement, snapshot)
    found, absent = definitions.dropped(statement, snapshot, context.path)
    if found:
        await finished(context.engine.ddl.drop(found))
    kind = statement.kind.value
    return done(tag, *(f'{kind} "{name}" does not exist, skipping' for name in absent))


async def _drop_sources(
    context: Context, statement: st.Drop, snapshot: CatalogSnapshot
) -> StatementResult:
    notices = []
    for name in statement.names:
        if statement.if_exists and not any(s.name == name.name for s in snapshot.sources):
            notices.append(f'source "{name}" does not exist, skipping')
            continue
        tables = snapshot.tables_of(snapshot.source(name.name).name)
        if tables and not statement.cascade:
            definitions.with_dependents(snapshot, tables, cascade=False)
            raise relation_error(
                f'cannot drop source "{name}" because other objects depend on it',
                "2BP01",
                detail=f"Tables read from it: {', '.join(table.name for table in tables)}.",
                hint="Use DROP SOURCE ... CASCADE to drop them too.",
            )
        above = snapshot.dependents([table.id for table in tables])
        if above:
            await finished(context.engine.ddl.drop(above))
        await finished(context.engine.drop_source(name.name))
    return done("DROP SOURCE", *notices)


async def _drop_schemas(
    context: Context, statement: st.Drop, snapshot: CatalogSnapshot
) -> StatementResult:
    notices = []
    going: list[TableDef | ObjectDef] = []
    for name in statement.names:
        schema = next(
            (o for o in snapshot.objects if o.kind is ObjectKind.SCHEMA and o.name == name.name),
            None,
        )
        if schema is None:
            if name.name == PUBLIC:
                raise NotSupported('schema "public" cannot be dropped')
            if not statement.if_exists:
                raise missing("schema", name.name, snapshot.schemas, "3F000")
            notices.append(f'schema "{name}" does not exist, skipping')
            continue
        inside = [
            each
            for each in snapshot.everything
            if each.namespace == name.name and each.kind not in (ObjectKind.SCHEMA, TableKind.STORE)
        ]
        if inside and not statement.cascade:
            raise relation_error(
                f'cannot drop schema "{name}" because other objects depend on it',
                "2BP01",
                detail=f"It holds {', '.join(each.name for each in inside)}.",
                hint="Use DROP SCHEMA ... CASCADE to drop them too.",
            )
        every = definitions.with_dependents(snapshot, inside, cascade=True) if inside else []
        going += [*_outermost_first(snapshot, every), schema]
    if going:
        await finished(context.engine.ddl.drop(going))
    return done("DROP SCHEMA", *notices)


def _outermost_first(
    snapshot: CatalogSnapshot, relations: list[TableDef | ObjectDef]
) -> list[TableDef | ObjectDef]:
    # What needs another has fewer that need it in turn.
    return sorted(relations, key=lambda each: len(snapshot.dependents([each.id])))


Altering = st.Rename | st.SetSchema | st.SetOwner


async def alter(context: Context, statement: Altering) -> StatementResult:
    """ALTER ... RENAME TO, SET SCHEMA, OWNER TO."""
    tag = f"ALTER {statement.kind.value.upper()}"
    snapshot = await context.snapshot()
    if statement.kind is st.ObjectKind.SCHEMA:
        raise NotSupported("ALTER SCHEMA is not supported", hint="Create another schema.")
    if statement.kind is st.ObjectKind.SOURCE:
        raise NotSupported(
            f"{tag} ... RENAME TO, OWNER TO and SET SCHEMA are not supported",
            detail="A source's name is the name of its position; it is in schema public.",
            hint="ALTER SOURCE ... SET (...) changes how its database is reached.",
        )
    if statement.kind not in definitions.KINDS:
        raise NotSupported(f"{tag} is not supported")
    found = definitions.find(snapshot, statement.name, context.path, statement.kind)
    if found.kind is ObjectKind.CREATING:
        raise still_creating(str(statement.name))
    if isinstance(found, TableDef) and not isinstance(statement, st.SetOwner):
        # What is being built for its place was told the name.
        refuse_being_replaced(snapshot, found)
    match statement:
        case st.Rename(new_name=name):
            definitions.refuse_taken(snapshot, name, found.namespace)
            await _redefine(context, found, lambda now: replace(now, name=name))
        case st.SetSchema(schema=schema):
            if schema not in snapshot.schemas:
                raise missing("schema", schema, snapshot.schemas, "3F000")
            definitions.refuse_taken(snapshot, found.name, schema)
            await _redefine(context, found, lambda now: replace(now, namespace=schema))
        case st.SetOwner(owner=owner):
            await _redefine(context, found, lambda now: _owned(now, owner))
    return done(tag)


def _owned(now: TableDef | ObjectDef, owner: str) -> TableDef | ObjectDef:
    if isinstance(now, TableDef):
        return replace(now, detail=replace(now.detail, owner=owner))
    return replace(now, owner=owner)


async def _redefine(
    context: Context, found: TableDef | ObjectDef, change: Callable[[Any], Any]
) -> None:
    """Change it as it is by then, not as it was found."""
    ddl = context.engine.ddl
    if isinstance(found, TableDef):
        await finished(ddl.alter_table(found, lambda now, _: change(now)))
    else:
        await finished(ddl.alter_object(found, change))


async def alter_columns(
    context: Context, statement: st.AddColumn | st.DropColumn
) -> StatementResult:
    """ALTER TABLE ... ADD COLUMN, DROP COLUMN."""
    snapshot = await context.snapshot()
    table = definitions.find(snapshot, statement.name, context.path, st.ObjectKind.TABLE)
    assert isinstance(table, TableDef)
    if not table.writable:
        raise NotSupported(
            f'the columns of "{table.name}" follow its source', hint="Change them upstream."
        )
    match statement:
        case st.AddColumn(column=column):
            there = any(each.name == column.name for each in table.columns)
            if there and statement.if_not_exists:
                notice = f'column "{column.name}" already exists, skipping'
                return done("ALTER TABLE", notice)
            filling = _filling(definitions.with_column(table, column), column)
            await finished(
                context.engine.ddl.alter_table(
                    table, lambda now, _: definitions.with_column(now, column)
                )
            )
            if filling is not None:
                await update(context, filling)
            return done("ALTER TABLE")
        case st.DropColumn(column=name):
            there = any(each.name == name for each in table.columns)
            if not there and statement.if_exists:
                return done("ALTER TABLE", f'column "{name}" does not exist, skipping')
            await finished(
                context.engine.ddl.alter_table(
                    table, lambda now, then: definitions.without_column(now, name, then)
                )
            )
            return done("ALTER TABLE")


def _filling(table: TableDef, column: st.ColumnDefinition) -> st.Update | None:
    """The statement that gives the rows that are there a new column's default, if it has one."""
    if column.default is None and column.generated is None:
        return None
    computed = column.generated is not None
    target = sql_quoted(_another(table, column.name) if computed else column.name)
    value = target if computed else "DEFAULT"
    name = f"{sql_quoted(table.namespace)}.{sql_quoted(table.name)}"
    statement = parse_one(f"UPDATE {name} SET {target} = {value}")
    assert isinstance(statement, st.Update)
    return statement


def _another(table: TableDef, column: str) -> str:
    """A column that may be set to itself, so that generated ones are computed."""
    generated = {n for n, d in table.detail.columns.items() if d.generated is not None}
    for each in table.columns:
        if each.name not in (column, *table.schema.key) and each.name not in generated:
            return each.name
    raise NotSupported(
        "a generated column cannot be added to a table whose other columns are all part of its key",
        hint="Create another table with it.",
    )


async def comment(context: Context, statement: st.Comment) -> StatementResult:
    """COMMENT ON a relation or one of its columns."""
    snapshot = await context.snapshot()
    if statement.kind is st.ObjectKind.SCHEMA:
        found: TableDef | ObjectDef | None = next(
            (o for o in snapshot.objects if o.name == statement.name.name), None
        )
        if found is None:
            raise missing("schema", statement.name.name, snapshot.schemas, "3F000")
    else:
        kind = None if statement.column is not None else statement.kind
        found = definitions.find(snapshot, statement.name, context.path, kind)
    if statement.column is None and isinstance(found, ObjectDef):
        await _redefine(context, found, lambda now: replace(now, comment=statement.comment))
        return done("COMMENT")
    if not isinstance(found, TableDef):
        raise NotSupported("comments on columns of views are not supported")
    await _redefine(context, found, lambda now: _commented(now, statement))
    return done("COMMENT")


def _commented(now: TableDef, statement: st.Comment) -> TableDef:
    detail = now.detail
    if statement.column is None:
        return replace(now, detail=replace(detail, comment=statement.comment))
    names = [column.name for column in now.columns]
    if statement.column not in names:
        raise missing("column", statement.column, names, "42703")
    column = detail.columns.get(statement.column, ColumnDetail())
    columns = {**detail.columns, statement.column: replace(column, comment=statement.comment)}
    return replace(now, detail=replace(detail, columns=columns))


def not_yet(_: st.RenameColumn) -> UserError:
    """Why a statement that is understood cannot be carried out."""
    return NotSupported(
        "columns cannot be renamed", hint="Read the table through a view with other names."
    )
