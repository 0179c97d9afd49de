"""CREATE SOURCE of an external database, and CREATE TABLE ... FROM it.

    CREATE SOURCE shop WITH (connector = 'postgres-cdc', hostname = ..., slot.name = ...);
    CREATE TABLE orders (*) FROM shop TABLE 'public.orders';

A table exists, empty, as soon as CREATE TABLE returns, and fills while it already follows the
log. `WAIT` returns once it is filled; `SHOW JOBS` says how far it is.
"""

import json
from collections.abc import Container, Sequence
from dataclasses import replace

from headwater.backfill.cdc.keyless import keyless_schema
from headwater.catalog.relation import PUBLIC, Detail, SourceDef, TableDef
from headwater.catalog.snapshot import CatalogSnapshot, missing, relation_error
from headwater.cdc.external_table import (
    ExternalDatabase,
    ExternalSchema,
    ExternalStorageTable,
)
from headwater.cdc.included import Included
from headwater.errors import NotSupported, SchemaError, UserError
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Column, Schema
from headwater.model.spelling import sql_quoted
from headwater.pgwire.session import StatementResult
from headwater.runtime.cdc_sources import table_options
from headwater.runtime.connectors import find_connector, is_database
from headwater.runtime.upstream.sources import is_workspace
from headwater.session import definitions
from headwater.session.answers import done
from headwater.session.context import Context
from headwater.session.finishing import finished
from headwater.session.including import check_included, included_of
from headwater.session.upstream_statements import create_table_from_workspace
from headwater.sql import statement as st
from headwater.sql.parse import parse_one

_SECRETS = frozenset({"password"})


async def create_source(
    context: Context, statement: st.CreateSource, snapshot: CatalogSnapshot
) -> StatementResult:
    """CREATE SOURCE of an external database."""
    tag = "CREATE SOURCE"
    name = statement.name.name
    if (statement.name.schema or PUBLIC) != PUBLIC:
        raise NotSupported("sources are in schema public", hint="Leave the schema out.")
    if any(source.name == name for source in snapshot.sources):
        if statement.if_not_exists:
            return done(tag, f'source "{name}" already exists, skipping')
        raise relation_error(f'source "{name}" already exists', "42710")
    options = dict(statement.options)
    kind = options.pop("connector", "")
    if not is_database(kind) and not is_workspace(kind):
        find_connector(kind)
        raise NotSupported(f'a source of kind "{kind}" cannot be created by SQL')
    if statement.columns:
        raise NotSupported(
            "a source of a database has no columns of its own",
            hint="Leave them out; CREATE TABLE ... FROM the source names them.",
        )
    definition = SourceDef(
        id=0,
        name=SourceName(name),
        kind=kind,
        options={key: json.dumps(value) for key, value in options.items()},
    )
    ddl = context.engine.ddl
    create = ddl.create_upstream_source if is_workspace(kind) else ddl.create_database_source
    await finished(create(definition))
    return done(tag)


async def create_table_from(
    context: Context, statement: st.CreateTable, namespace: str, text: str
) -> StatementResult:
    """CREATE TABLE ... FROM source TABLE 'upstream'; `text` is what its places count in."""
    assert statement.source is not None
    snapshot = await context.snapshot()
    source = statement.source.name
    jobs = context.engine.cdc.jobs
    if SourceName(source) in context.engine.upstreams.jobs:
        return await create_table_from_workspace(context, statement, namespace)
    if SourceName(source) not in jobs:
        if any(each.name == source for each in snapshot.sources):
            raise NotSupported(f'tables cannot be created from source "{source}"')
        raise missing("source", source, [str(name) for name in jobs], "42704")
    if not statement.upstream:
        raise UserError("FROM a source needs TABLE 'schema.table'")
    table_options(dict(statement.options))
    database = jobs[SourceName(source)].upstream.database
    names = [column.name for column in statement.columns] or None
    added = included_of(statement, database.origin(statement.upstream), text)
    external = await context.blocking(database.open_table, statement.upstream, names)
    if not external.schema.key:
        await context.blocking(_check_keyless, database, external, statement)
    definition = TableDef(
        id=TableId(0),
        name=statement.name.name,
        namespace=namespace,
        schema=_schema(statement, external.schema, added, text),
        folder="",
        source=SourceName(source),
        upstream=statement.upstream,
        detail=Detail(definition=statement.text, owner=context.user),
    )
    await finished(context.engine.ddl.create_database_table(definition))
    return done("CREATE TABLE")


def _check_keyless(
    database: ExternalDatabase, external: ExternalStorageTable, statement: st.CreateTable
) -> None:
    """Whether a table without a key can be followed: with all columns, and from a snapshot."""
    if statement.columns:
        raise NotSupported(
            f"table {external.name} has no primary key, so all its columns must be followed",
            hint="Write (*), or add a primary key upstream.",
        )
    if not table_options(dict(statement.options)).snapshot:
        raise NotSupported(
            f"table {external.name} has no primary key, so it begins with a snapshot",
            hint="Leave snapshot = 'false' out, or add a primary key upstream.",
        )
    database.hold(external).close()


async def refresh_schema(context: Context, statement: st.RefreshSchema) -> StatementResult:
    """ALTER TABLE ... REFRESH SCHEMA: fill a table anew, with the columns it has upstream now."""
    snapshot = await context.snapshot()
    table = definitions.find(snapshot, statement.name, context.path, st.ObjectKind.TABLE)
    assert isinstance(table, TableDef)
    jobs = context.engine.cdc.jobs
    if table.source is None or table.source not in jobs:
        raise NotSupported(
            f'"{table.name}" does not follow a table of a database',
            hint="Use ALTER TABLE ... ADD COLUMN and DROP COLUMN.",
        )
    created = parse_one(table.detail.definition)
    assert isinstance(created, st.CreateTable)
    database = jobs[table.source].upstream.database
    text = table.detail.definition
    added = included_of(created, database.origin(table.upstream), text)
    followed = [name for name in table.schema.names if name not in added.names]
    names = followed if created.columns else None
    found = (await context.blocking(database.open_table, table.upstream, names)).schema
    schema = _schema(replace(created, columns=(), key=()), found, added, text)
    await finished(context.engine.ddl.refresh_followed(table, schema))
    return done("ALTER TABLE")


def _schema(statement: st.CreateTable, found: ExternalSchema, added: Included, text: str) -> Schema:
    """The stored columns: the upstream's, which must be what the statement says, and included ones.

    These come last; columns that are added upstream later come behind them.
    """
    if statement.key and set(statement.key) != set(found.key):
        raise SchemaError(
            f"the primary key of {statement.upstream} is ({', '.join(found.key)})",
            detail=f"The statement says ({', '.join(statement.key)}).",
            hint="Use the same columns as upstream, or (*) to take them over.",
        )
    stated = {column.name: column for column in statement.columns}
    columns = tuple(_stored(each.column, stated) for each in found.columns)
    check_included(statement, columns, added, text)
    columns = (*columns, *added.stored)
    return Schema(columns, found.key) if found.key else keyless_schema(columns)


def _stored(column: Column, stated: "dict[str, st.ColumnDefinition]") -> Column:
    wanted = stated.get(column.name)
    if wanted is not None and wanted.type != column.type:
        raise SchemaError(
            f'column "{column.name}" is {column.type.postgres} upstream, '
            f"not {wanted.type.postgres}",
            hint=f"Write {column.name} {column.type.postgres}, or (*) to take all columns over.",
        )
    return column


def source_text(source: SourceDef) -> str:
    """The statement that would create a source; secrets are not shown."""
    options = {"connector": source.kind}
    options |= {key: str(json.loads(value)) for key, value in source.options.items()}
    said = [f"{key} = {_shown(key, value)}" for key, value in options.items()]
    return f"CREATE SOURCE {sql_quoted(source.name)} WITH ({', '.join(said)})"


def _shown(option: str, value: str) -> str:
    text = "[hidden]" if option in _SECRETS else value.replace("'", "''")
    return f"'{text}'"


def unfilled(
    jobs: Container[SourceName], snapshot: CatalogSnapshot, name: str | None
) -> Sequence[TableId]:
    """The tables of sources that WAIT waits for."""
    return [
        table.id for table in snapshot.tables if table.source in jobs and name in (None, table.name)
    ]
