"""CREATE SINK and ALTER SINK: from statements to sinks.

    CREATE SINK totals FROM revenue WITH (connector = 'postgres', host = ..., table = 'revenue');
    CREATE SINK big AS SELECT * FROM orders WHERE amount > 100 WITH (connector = 'kafka', ...)
        FORMAT UPSERT ENCODE JSON;

A sink AS SELECT keeps a materialized view for itself, whose changes it delivers. Everything that
can be known to be wrong is said before anything is created: options, columns, the key, and
what the target itself says when it is asked.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from headwater.catalog.relation import SINK_VIEW, ObjectDef, ObjectKind, TableDef
from headwater.catalog.snapshot import CatalogSnapshot, missing, relation_error
from headwater.errors import ConfigError, NotSupported, UserError
from headwater.model.epoch import Epoch, epoch_at
from headwater.model.schema import Column
from headwater.model.spelling import sql_quoted
from headwater.pgwire.session import StatementResult
from headwater.runtime.sinks.definition import SinkSettings, sink_text, spec_of
from headwater.session import definitions
from headwater.session.answers import done
from headwater.session.context import Context
from headwater.session.finishing import finished
from headwater.session.sink_into import Into, plan_into
from headwater.session.sink_wishes import (
    OWN,
    Wishes,
    checkpoints_of,
    flag,
    limit_of,
    read_wishes,
    wrong,
)
from headwater.sinks.connectors import make_sink, secret_options
from headwater.sinks.sink import Encoding, SinkKind
from headwater.sql import statement as st
from headwater.sql.parse import parse_one
from headwater.views.layout import is_linear

_KINDS = {
    "append-only": SinkKind.APPEND_ONLY,
    "upsert": SinkKind.UPSERT,
    "retract": SinkKind.RETRACT,
    "debezium": SinkKind.RETRACT,
}
_FORMATS = {
    "plain": SinkKind.APPEND_ONLY,
    "upsert": SinkKind.UPSERT,
    "debezium": SinkKind.RETRACT,
}


async def create_sink(context: Context, statement: st.CreateSink) -> StatementResult:
    """CREATE SINK ... FROM a relation, or AS a query."""
    tag = "CREATE SINK"
    snapshot = await context.snapshot()
    namespace = definitions.place_of(statement.name, context.path, snapshot)
    found = snapshot.relation(statement.name.name, namespace)
    if found is not None and statement.if_not_exists:
        return done(tag, f'relation "{found.name}" already exists, skipping')
    definitions.refuse_taken(snapshot, statement.name.name, namespace)
    wishes = read_wishes(dict(statement.options), context.variables["sink_rate_limit"])
    if context.variables["sink_decouple"] == "false":
        raise NotSupported(
            "sinks are always decoupled: a target never holds back an epoch",
            hint="SET sink_decouple = default.",
        )
    into = None
    if statement.into is not None:
        into = plan_into(context, snapshot, statement, wishes)
        statement, wishes = into.statement, into.wishes
    elif wishes.evolves and statement.from_relation is None:
        raise wrong(
            "auto.schema.change needs a sink FROM a table",
            detail="The columns of a query are those that it names.",
            hint="Leave it out, or deliver the table itself.",
        )
    elif not wishes.connector:
        raise wrong("a sink needs a connector", hint="WITH (connector = 'postgres', ...)")
    relation, made = await _relation(context, statement, snapshot, wishes)
    try:
        sink = _sink(statement, namespace, context.user, relation, wishes, into=into)
        if into is None:
            target = make_sink(wishes.connector, spec_of(sink))
            await context.blocking(target.check)
        creating = await finished(
            context.engine.ddl.create_sink(
                sink, snapshot=wishes.snapshot, limit=wishes.backfill_limit
            )
        )
    except BaseException:
        if made:
            await finished(context.engine.ddl.drop([relation]))
        raise
    if creating is not None and not context.variables.is_on("background_ddl"):
        await asyncio.shield(creating)
    return done(tag)


async def _relation(
    context: Context, statement: st.CreateSink, snapshot: CatalogSnapshot, wishes: Wishes
) -> tuple[TableDef, bool]:
    """The relation whose changes are delivered, and whether it was made for this sink."""
    if statement.from_relation is not None:
        found = definitions.find(snapshot, statement.from_relation, context.path)
        if not isinstance(found, TableDef):
            raise relation_error(
                f'"{statement.from_relation}" is not a table or materialized view',
                "42809",
                hint="A sink delivers stored rows; use AS SELECT ... FROM it.",
            )
        return found, False
    name = f"{SINK_VIEW}{secrets.token_hex(6)}"
    view = parse_one(f"CREATE MATERIALIZED VIEW {name} AS {statement.query_text}")
    assert isinstance(view, st.CreateMaterializedView)
    planned = definitions.materialized_view(
        view, snapshot, context.path, context.variables["refresh_policy"], view.text
    )
    if not wishes.snapshot and not is_linear(planned.layout.view.plan):
        raise NotSupported(
            "snapshot = false needs a query that only filters and projects",
            detail="This query joins, groups or orders rows: what changes in it depends on all.",
            hint="Leave snapshot = 'false' out, or create a materialized view and sink FROM it.",
        )
    await context.engine.ddl.make_view_for_sink(view, planned, context.user)
    made = (await context.snapshot()).table(name)
    return made, True


def _sink(  # noqa: PLR0913
    statement: st.CreateSink,
    namespace: str,
    owner: str,
    relation: TableDef,
    wishes: Wishes,
    *,
    into: Into | None,
) -> ObjectDef:
    form = statement.format
    encoding_options = dict(form.options)
    force = flag(encoding_options, "force_append_only") or wishes.ignore_delete
    kind = _kind(wishes.type, form.format)
    key = _key(relation, wishes.key, kind)
    if kind is SinkKind.APPEND_ONLY and not force and not relation.append_only:
        error = UserError(
            f'the sink cannot be append-only: rows of "{_shown(relation)}" may be updated '
            "or deleted",
            hint="Use type = 'upsert', or ignore_delete = 'true' to leave deletes out and send "
            "updates as new rows.",
        )
        error.sqlstate = "22023"
        raise error
    settings = SinkSettings(
        connector=wishes.connector,
        kind=kind,
        ident=f"hw_{secrets.token_hex(8)}",
        ignore_delete=force,
        checkpoints=wishes.checkpoints,
        rate_limit=wishes.rate_limit,
        query=statement.query_text if into is None else into.query,
        into=None if into is None else into.table,
        into_columns=() if into is None else into.columns,
        evolves=wishes.evolves,
    )
    options = {name: value for name, value in statement.options if name not in OWN}
    encoding = Encoding(format=form.format, encode=form.encode, options=encoding_options)
    return ObjectDef(
        id=0,
        kind=ObjectKind.SINK,
        name=statement.name.name,
        namespace=namespace,
        owner=owner,
        columns=tuple(relation.columns),
        table=relation.id,
        keys=key,
        settings=settings.stored(options, encoding),
    )


def _shown(relation: TableDef) -> str:
    return "the query" if relation.sinks_own else relation.name


def _kind(type_: str, form: str) -> SinkKind:
    if form and form not in _FORMATS:
        raise NotSupported(
            f"FORMAT {form.upper()} is not supported", hint="Use PLAIN, UPSERT or DEBEZIUM."
        )
    if not type_:
        return _FORMATS[form] if form else SinkKind.UPSERT
    if type_ not in _KINDS:
        raise wrong(f'type cannot be "{type_}"', hint=f"Choose one of {', '.join(_KINDS)}.")
    kind = _KINDS[type_]
    if form and _FORMATS[form] is not kind:
        raise wrong(
            f"type = '{type_}' does not go with FORMAT {form.upper()}", hint="Leave type out."
        )
    return kind


def _key(relation: TableDef, given: Sequence[str], kind: SinkKind) -> tuple[str, ...]:
    shown = {column.name: column for column in relation.columns}
    for name in given:
        if name not in shown:
            raise missing("column", name, list(shown), "42703")
        _check_key(shown[name])
    if given or kind is SinkKind.APPEND_ONLY:
        return tuple(given)
    if all(name in shown for name in relation.schema.key):
        return relation.schema.key
    raise wrong(
        "primary key not defined",
        hint=f"Say which columns name a row at the target: primary_key = '{next(iter(shown))}'.",
    )


def _check_key(column: Column) -> None:
    if not column.type.can_be_key:
        raise wrong(
            f'column "{column.name}" of type {column.type.postgres} cannot be part of primary_key'
        )


async def alter_sink(context: Context, statement: st.AlterOptions) -> StatementResult:
    """ALTER SINK s CONNECTOR WITH (...), or SET (...): reach the same target in another way."""
    snapshot = await context.snapshot()
    sink = definitions.find(snapshot, statement.name, context.path, st.ObjectKind.SINK)
    assert isinstance(sink, ObjectDef)
    given = dict(statement.options)
    if not given:
        raise ConfigError("ALTER SINK names no option")
    for name in given:
        if name in OWN and name not in ("commit_checkpoint_interval",):
            raise NotSupported(
                f'option "{name}" of a sink cannot be altered',
                hint="Create another sink; this one goes on until it is dropped.",
            )
    said: dict[str, str] = {}
    if sink.into is not None and given.keys() - set(OWN):
        raise wrong("a sink into a table has no options of a connector")
    if "commit_checkpoint_interval" in given:
        said["commit_checkpoint_interval"] = str(checkpoints_of(given))
    said |= {f"with/{name}": value for name, value in given.items() if name not in OWN}
    if sink.into is None:
        altered = replace(sink, settings={**sink.settings, **said})
        target = make_sink(sink.settings["connector"], spec_of(altered))
        await context.blocking(target.check)
    await finished(context.engine.ddl.alter_sink(sink, said))
    return done("ALTER SINK")


async def alter_sink_setting(
    context: Context, sink: ObjectDef, name: str, value: str | None
) -> StatementResult:
    """ALTER SINK s SET SINK_RATE_LIMIT = n | default, and its like."""
    tag = "ALTER SINK"
    if name in ("parallelism", "backfill_parallelism"):
        return done(tag, "parallelism follows Spark's executors; the value is accepted")
    if name not in ("sink_rate_limit", "backfill_rate_limit"):
        raise NotSupported(f"ALTER SINK ... SET {name} is not supported")
    limit = limit_of(name, "default" if value is None else value)
    said = {name: "" if limit is None else str(limit)}
    await finished(context.engine.ddl.alter_sink(sink, said))
    return done(tag)


async def rewind_sink(context: Context, statement: st.RewindSink) -> StatementResult:
    """ALTER SINK s REWIND TO EPOCH e | TIMESTAMP t."""
    snapshot = await context.snapshot()
    sink = definitions.find(snapshot, statement.name, context.path, st.ObjectKind.SINK)
    assert isinstance(sink, ObjectDef)
    epoch = Epoch(statement.epoch or 0)
    if statement.timestamp is not None:
        epoch = _epoch_of(statement.timestamp)
    if epoch > context.engine.visible:
        raise wrong(f"epoch {epoch} is still to come", hint="Give one that is committed.")
    await finished(context.engine.ddl.rewind_sink(sink, epoch))
    notice = (
        "rows after that epoch are delivered again; the target converges"
        if SinkSettings.of(sink).kind is SinkKind.UPSERT
        else "rows after that epoch are delivered again, and an append-only target has them twice"
    )
    return done("ALTER SINK", notice)


def _epoch_of(timestamp: str) -> Epoch:
    try:
        when = datetime.fromisoformat(timestamp)
    except ValueError:
        raise wrong(
            f'"{timestamp}" is not a timestamp', hint="Write '2026-01-31 12:00:00+00'."
        ) from None
    return epoch_at(when if when.tzinfo else when.replace(tzinfo=UTC))


def sink_shown(snapshot: CatalogSnapshot, sink: ObjectDef) -> str:
    """The statement that would create a sink; secrets are not shown."""
    relation = snapshot.by_id(sink.table or 0)
    secret = secret_options(sink.settings["connector"])
    into = None
    if sink.into is not None:
        table = snapshot.by_id(sink.into)
        into = "?" if table is None else sql_quoted(table.name)
    return sink_text(sink, "?" if relation is None else sql_quoted(relation.name), secret, into)
