"""Run SHOW, DESCRIBE, SET, RESET and ALTER ... SET: what the catalog and the session know."""

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from headwater.catalog.relation import (
    SINK_VIEW,
    Detail,
    ObjectDef,
    ObjectKind,
    TableDef,
    TableKind,
)
from headwater.catalog.snapshot import CatalogSnapshot
from headwater.config import Settings
from headwater.errors import ConfigError, NotSupported, UserError
from headwater.model.types import BIGINT, VARCHAR
from headwater.pgwire.session import ResultColumn, Rows, StatementResult
from headwater.session import answers, definitions
from headwater.session.context import Context
from headwater.session.sink_statements import alter_sink_setting, sink_shown
from headwater.session.source_statements import source_text
from headwater.sql import statement as st

_FOREIGN_SYSTEM = frozenset(
    {
        "max_concurrent_creating_streaming_jobs",
        "per_database_isolation",
        "pause_on_next_bootstrap",
        "enable_tracing",
        "use_new_object_prefix_strategy",
        "license_key",
        "time_travel_retention_ms",
        "adaptive_parallelism_strategy",
        "enforce_secret",
    }
)
"""System settings of RisingWave that have no meaning here."""

_RATE_LIMITS = frozenset(
    {"backfill_rate_limit", "source_rate_limit", "sink_rate_limit", "dml_rate_limit"}
)
_PARALLELISM = frozenset({"parallelism", "backfill_parallelism"})
_OF_BACKFILL = frozenset({"backfill_rate_limit", "backfill_parallelism"})


async def show(context: Context, statement: st.Show) -> Rows:
    """SHOW of a list of objects."""
    snapshot = await context.snapshot()
    like = _matcher(statement.like)
    what = statement.what
    if what == "columns" or (what == "indexes" and statement.name is not None):
        assert statement.name is not None
        relation = definitions.find(snapshot, statement.name, context.path)
        return _columns(relation) if what == "columns" else _indexes(snapshot, relation)
    if what == "jobs":
        return _jobs(context, await context.snapshot())
    if what in ("parameters", "all"):
        return _parameters(context.engine.settings.now, like)
    namespace = None if statement.name is None else statement.name.name
    names = [name for name in _names(snapshot, what, namespace) if like(name)]
    return answers.texts(["Name"], [[name] for name in sorted(names)], tag="SHOW")


def _names(snapshot: CatalogSnapshot, what: str, namespace: str | None) -> Iterable[str]:
    kinds: dict[str, tuple[TableKind | ObjectKind, ...]] = {
        "tables": (TableKind.TABLE,),
        "materialized views": (TableKind.MATERIALIZED_VIEW,),
        "internal tables": (TableKind.STORE,),
        "views": (ObjectKind.VIEW,),
        "indexes": (ObjectKind.INDEX,),
        "sinks": (ObjectKind.SINK,),
    }
    if what in kinds:
        return [
            each.name
            for each in snapshot.everything
            if each.kind in kinds[what]
            and namespace in (None, each.namespace)
            and not each.name.startswith(SINK_VIEW)
        ]
    match what:
        case "sources":
            return [source.name for source in snapshot.sources]
        case "schemas":
            return [*snapshot.schemas, "pg_catalog", "information_schema", "rw_catalog"]
        case "databases":
            return ["dev"]
        case "users":
            return ["root"]
        case _:
            return []


def _columns(relation: TableDef | ObjectDef) -> Rows:
    key = relation.schema.key if isinstance(relation, TableDef) else ()
    details = relation.detail.columns if isinstance(relation, TableDef) else {}
    rows = []
    for column in relation.columns:
        detail = details.get(column.name)
        rows.append(
            [
                column.name,
                column.type.postgres,
                "false",
                "true" if column.name in key else "false",
                detail.comment if detail is not None else None,
            ]
        )
    names = ["Name", "Type", "Is Hidden", "Is Primary Key", "Description"]
    return answers.texts(names, rows, tag="SHOW")


def _indexes(snapshot: CatalogSnapshot, relation: TableDef | ObjectDef) -> Rows:
    rows = [
        [each.name, relation.name, ", ".join(each.keys), ", ".join(each.includes), ""]
        for each in snapshot.objects
        if each.kind is ObjectKind.INDEX and each.table == relation.id
    ]
    return answers.texts(["Name", "On", "Key", "Include", "Distributed By"], rows, tag="SHOW")


def _jobs(context: Context, snapshot: CatalogSnapshot) -> Rows:
    rows: list[list[object]] = [
        [creating.intent.id, creating.intent.definition, "BACKGROUND", creating.progress]
        for creating in context.engine.creating.running.values()
    ]
    rows += [
        [filling.sink.id, sink_shown(snapshot, filling.sink), "BACKGROUND", filling.progress]
        for filling in context.engine.sinks.filling.values()
    ]
    for table in snapshot.tables:
        if table.source in context.engine.cdc.jobs:
            found = context.engine.cdc.progress(table.id)
            if not found.backfilled or found.stopped:
                rows.append([table.id, table.detail.definition, "BACKGROUND", str(found)])
        elif table.source in context.engine.upstreams.jobs:
            shown = context.engine.upstreams.progress(table.id)
            if not shown.backfilled or shown.stopped:
                rows.append([table.id, table.detail.definition, "BACKGROUND", str(shown)])
    names = [("Id", BIGINT), ("Statement", VARCHAR), ("Create Type", VARCHAR)]
    return answers.typed([*names, ("Progress", VARCHAR)], rows, tag="SHOW")


def _parameters(settings: Settings, like: Callable[[str], bool]) -> Rows:
    from dataclasses import fields  # noqa: PLC0415

    rows: list[list[str | None]] = [
        [
            field.name,
            _plain(getattr(settings, field.name)),
            field.metadata["doc"],
            "true" if field.metadata["live"] else "false",
        ]
        for field in fields(settings)
        if like(field.name)
    ]
    return answers.texts(["Name", "Value", "Description", "Mutable"], rows, tag="SHOW")


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def describe(context: Context, statement: st.Describe) -> Rows:
    """DESCRIBE: the columns, the key and the comment of a relation."""
    snapshot = await context.snapshot()
    relation = definitions.find(snapshot, statement.name, context.path)
    rows: list[list[str | None]] = []
    details = relation.detail.columns if isinstance(relation, TableDef) else {}
    for column in relation.columns:
        detail = details.get(column.name)
        said = detail.comment if detail is not None else None
        rows.append([column.name, column.type.postgres, "false", said])
    if isinstance(relation, TableDef):
        rows += [[c.name, c.type.postgres, "true", None] for c in relation.hidden]
        rows.append(["primary key", ", ".join(relation.schema.key), None, None])
        rows.append(["table description", relation.name, None, relation.detail.comment])
    names = ["Name", "Type", "Is Hidden", "Description"]
    return answers.texts(names, rows, tag="DESCRIBE")


async def show_create(context: Context, statement: st.ShowCreate) -> Rows:
    """SHOW CREATE: the statement that made a relation."""
    snapshot = await context.snapshot()
    if statement.kind is st.ObjectKind.SOURCE:
        source = snapshot.source(statement.name.name)
        row: list[str | None] = [f"public.{source.name}", source_text(source)]
        return answers.texts(["Name", "Create Sql"], [row], tag="SHOW")
    found = definitions.find(snapshot, statement.name, context.path, statement.kind)
    text = found.detail.definition if isinstance(found, TableDef) else found.definition
    if isinstance(found, ObjectDef) and found.kind is ObjectKind.SINK:
        text = sink_shown(snapshot, found)
    if not text:
        raise UserError(f'"{statement.name}" was not created by SQL')
    shown = f"{found.namespace}.{found.name}"
    return answers.texts(["Name", "Create Sql"], [[shown, text]], tag="SHOW")


def set_variable(context: Context, statement: st.SetVariable) -> StatementResult:
    """SET of a session setting."""
    variable = context.variables.set(statement.name, statement.value)
    if variable.idle:
        return answers.done("SET", f'"{variable.name}" is accepted and has no meaning here')
    return answers.done("SET")


def reset_variable(context: Context, statement: st.ResetVariable) -> StatementResult:
    """RESET of one setting, or of all."""
    if statement.name == "all":
        context.variables.reset()
    else:
        context.variables.set(statement.name, None)
    return answers.done("RESET")


def show_variable(context: Context, statement: st.ShowVariable) -> Rows:
    """SHOW of one setting, or of all."""
    if statement.name == "all":
        rows = [list(each) for each in context.variables.all()]
        return answers.texts(["Name", "Setting", "Description"], rows, tag="SHOW")
    value = context.variables[statement.name]
    return answers.texts([statement.name], [[value]], tag="SHOW")


async def alter_setting(context: Context, statement: st.AlterSetting) -> StatementResult:
    """ALTER SYSTEM | DATABASE SET, and the limits of relations."""
    tag = f"ALTER {statement.kind.value.upper()}"
    name = statement.setting.lower()
    if statement.kind in (st.ObjectKind.SYSTEM, st.ObjectKind.DATABASE):
        return await _alter_system(context, name, statement.value, tag)
    snapshot = await context.snapshot()
    assert statement.name is not None
    found = definitions.find(snapshot, statement.name, context.path, statement.kind)
    if isinstance(found, ObjectDef) and found.kind is ObjectKind.SINK:
        return await alter_sink_setting(context, found, name, statement.value)
    if name in _OF_BACKFILL:
        # While a view is being replaced, it is the new one that is filled.
        found = snapshot.replacement_of(found.id) or found
    if name in _RATE_LIMITS:
        await _limit(context, found, name, statement.value)
        return answers.done(tag)
    if name in _PARALLELISM:
        _check_parallelism(statement.value)
        if isinstance(found, TableDef) and found.source in context.engine.cdc.jobs:
            await _scale(context, found, statement.value)
            return answers.done(tag)
        if found.id in context.engine.creating.running and isinstance(found, ObjectDef):
            await context.engine.ddl.scale_view(found, _number(statement.value))
            return answers.done(tag)
        return answers.done(tag, "parallelism follows Spark's executors; the value is accepted")
    raise NotSupported(f"{tag} ... SET {statement.setting} is not supported")


async def _alter_system(
    context: Context, name: str, value: str | None, tag: str
) -> StatementResult:
    if name in _FOREIGN_SYSTEM:
        return answers.done(tag, f'"{name}" is accepted and has no meaning here')
    engine = context.engine
    wanted = value if value is not None else _plain(getattr(Settings(), name, ""))
    try:
        await engine.change_settings({name: wanted})
    except ConfigError as error:
        error.sqlstate = "42704" if "there is no setting" in error.message else "22023"
        raise
    await context.blocking(engine.catalog.set_settings, {name: value})
    return answers.done(tag)


async def _limit(
    context: Context, found: TableDef | ObjectDef, name: str, value: str | None
) -> None:
    if value is not None and not re.fullmatch(r"-?\d+", value):
        raise ConfigError(f'{name} cannot be "{value}"', hint="Give rows per second, or DEFAULT.")
    limit = None if value is None or int(value) < 0 else int(value)
    if isinstance(found, ObjectDef) and found.id in context.engine.creating.running:
        if name == "backfill_rate_limit":
            await context.engine.ddl.limit_view(found, limit)
        return
    if not isinstance(found, TableDef):
        raise NotSupported(f"a {found.kind.value} has no {name}")
    await _redetail(context, found, lambda detail: replace(detail, rate_limit=limit))
    if found.source in context.engine.cdc.jobs:
        context.engine.cdc.throttle(found.id, limit)
    elif found.source in context.engine.upstreams.jobs:
        context.engine.upstreams.throttle(found, limit)
    elif found.source is not None:
        await context.engine.throttle(found.source, limit)


async def _scale(context: Context, found: TableDef, value: str | None) -> None:
    """How many splits of a followed table are read at a time, now and after a restart."""
    readers = _number(value)
    await _redetail(context, found, lambda detail: replace(detail, parallelism=readers))
    context.engine.cdc.scale(found.id, readers)


async def _redetail(context: Context, found: TableDef, change: Callable[[Detail], Detail]) -> None:
    await context.engine.ddl.alter_table(
        found, lambda now, _: replace(now, detail=change(now.detail))
    )


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


def _check_parallelism(value: str | None) -> None:
    if value is None or value.lower() in ("adaptive", "auto", "default"):
        return
    if not value.isdigit() or not 1 <= int(value) <= 256:
        raise ConfigError(
            f'parallelism cannot be "{value}"', hint="Give a number from 1 to 256, or ADAPTIVE."
        )


def _matcher(like: str | None) -> Callable[[str], bool]:
    if like is None:
        return lambda name: True
    pattern = fnmatch.translate(like.replace("*", "[*]").replace("%", "*").replace("_", "?"))
    compiled = re.compile(pattern)
    return lambda name: compiled.match(name) is not None


def result_names(context: Context, statement: st.Statement) -> tuple[ResultColumn, ...] | None:
    """The columns that a statement which is no query gives; None when it gives no rows."""
    names: list[str] | None = None
    match statement:
        case st.Show(what="columns"):
            names = ["Name", "Type", "Is Hidden", "Is Primary Key", "Description"]
        case st.Show(what="indexes", name=name) if name is not None:
            names = ["Name", "On", "Key", "Include", "Distributed By"]
        case st.Show(what="jobs"):
            columns = [("Id", BIGINT), ("Statement", VARCHAR), ("Create Type", VARCHAR)]
            return tuple(ResultColumn(name=n, type=t) for n, t in [*columns, ("Progress", VARCHAR)])
        case st.Show(what="parameters" | "all"):
            names = ["Name", "Value", "Description", "Mutable"]
        case st.Show():
            names = ["Name"]
        case st.Describe():
            names = ["Name", "Type", "Is Hidden", "Description"]
        case st.ShowCreate():
            names = ["Name", "Create Sql"]
        case st.ShowVariable(name="all"):
            names = ["Name", "Setting", "Description"]
        case st.ShowVariable(name=variable):
            names = [variable]
        case st.CancelJobs():
            names = ["Id"]
        case _:
            return None
    return tuple(ResultColumn(name=name, type=VARCHAR) for name in names)
