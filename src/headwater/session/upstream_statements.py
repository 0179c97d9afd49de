"""CREATE TABLE ... FROM a source that is another workspace.

    CREATE SOURCE other WITH (connector = 'headwater', workspace = '/srv/other');
    CREATE TABLE orders FROM other TABLE 'public.orders';
    CREATE TABLE revenue (day DATE, total NUMERIC) FROM other TABLE 'revenue';

Columns and key are those of the relation there. A list of columns takes those over and no others.
"""

from collections.abc import Sequence

from headwater.catalog.relation import Detail, TableDef
from headwater.errors import ConfigError, NotSupported, SchemaError, UserError
from headwater.model.ids import SourceName, TableId
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column, Schema
from headwater.pgwire.session import StatementResult
from headwater.runtime.upstream.sources import upstream_schema
from headwater.session.answers import done
from headwater.session.context import Context
from headwater.session.finishing import finished
from headwater.sql import statement as st

_LIMIT = "backfill_rate_limit"


async def create_table_from_workspace(
    context: Context, statement: st.CreateTable, namespace: str
) -> StatementResult:
    """CREATE TABLE ... FROM source TABLE 'schema.relation'."""
    assert statement.source is not None
    if not statement.upstream:
        raise UserError("FROM a source needs TABLE 'schema.table'")
    if statement.includes:
        raise NotSupported("INCLUDE is for tables of databases, not for those of workspaces")
    limit = _rate_limit(dict(statement.options))
    source = SourceName(statement.source.name)
    workspace = context.engine.upstreams.jobs[source].workspace
    found = await context.blocking(upstream_schema, workspace, statement.upstream)
    definition = TableDef(
        id=TableId(0),
        name=statement.name.name,
        namespace=namespace,
        schema=_schema(statement, found),
        folder="",
        source=source,
        upstream=statement.upstream,
        detail=Detail(definition=statement.text, owner=context.user, rate_limit=limit),
    )
    await finished(context.engine.ddl.create_upstream_table(definition))
    return done("CREATE TABLE")


def _rate_limit(options: dict[str, str]) -> int | None:
    for name in options:
        if name != _LIMIT:
            raise ConfigError(
                f'there is no option "{name}" for a table of another workspace',
                detail=f"Options: {_LIMIT}.",
            )
    text = options.get(_LIMIT)
    if text is None:
        return None
    if not text.lstrip("-").isdigit():
        raise ConfigError(f'{_LIMIT} cannot be "{text}"', hint="Give rows per second.")
    return None if int(text) < 0 else int(text)


def _schema(statement: st.CreateTable, found: Schema) -> Schema:
    """The columns that are taken over, which must be what the statement says of them."""
    own = [name for name in found.key if name.startswith(HIDDEN_PREFIX)]
    if statement.key and set(statement.key) != set(found.key):
        shown = "a hidden one" if own else f"({', '.join(found.key)})"
        raise SchemaError(
            f"the primary key of {statement.upstream} is {shown}",
            detail=f"The statement says ({', '.join(statement.key)}).",
            hint="Leave the key out; it is taken over.",
        )
    if not statement.columns:
        return found
    _check_columns(statement, found)
    wanted = {column.name for column in statement.columns}
    lacking = [name for name in found.key if name not in wanted and name not in own]
    if lacking:
        raise SchemaError(
            f"the key of {statement.upstream} has column {', '.join(lacking)}",
            hint="Name all columns of the key, or none at all to take over the whole table.",
        )
    return Schema(_chosen(found, wanted), found.key)


def _chosen(found: Schema, wanted: set[str]) -> tuple[Column, ...]:
    return tuple(
        column
        for column in found.columns
        if column.name in wanted or column.name.startswith(HIDDEN_PREFIX)
    )


def _check_columns(statement: st.CreateTable, found: Schema) -> None:
    names: Sequence[str] = found.names
    for column in statement.columns:
        if column.name not in names:
            raise SchemaError(
                f'{statement.upstream} has no column "{column.name}"',
                detail=f"Columns: {', '.join(names)}.",
            )
        if found[column.name].type != column.type:
            raise SchemaError(
                f'column "{column.name}" is {found[column.name].type.postgres} upstream, '
                f"not {column.type.postgres}",
                hint="Leave the columns out to take all of them over.",
            )
