"""The tables of rw_catalog and hw_catalog.

Numbers here are the catalog's own ids, as in RisingWave. Passwords never come here: of a source's
options only those are shown that are known to hold none.
"""

import json
from collections.abc import Callable

import pyarrow as pa

from headwater.catalog.relation import SourceDef, TableKind
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_time
from headwater.model.vnode import VNODE_COUNT
from headwater.system import numbers
from headwater.system.facts import SystemFacts
from headwater.system.listing import MATERIALIZED_VIEW, TABLE, VIEW, Listed, Listing
from headwater.system.pg_objects import Build, comments, system_columns
from headwater.system.pg_types import all_types
from headwater.system.relations import RW_CATALOG, known
from headwater.system.rows import rows_of

_SHOWN_OPTIONS = frozenset(
    {
        "connector", "hostname", "port", "username", "database.name", "schema.name", "table.name",
        "slot.name", "publication.name", "server.id", "topic", "ssl.mode", "format", "encode",
        "max_wal_retained", "on_wal_retained",
    }
)  # fmt: skip


def _user(facts: SystemFacts, name: str) -> int:
    return next((user.id for user in facts.users if user.name == name), 1)


def schema_id(listing: Listing, name: str) -> int:
    """A schema's number in rw_catalog: its id, or PostgreSQL's number for those that always are."""
    oid = listing.schemas.get(name, 0)
    return oid if name in numbers.SYSTEM_SCHEMAS else oid - numbers.relation_oid(0)


def _time(epoch: Epoch) -> object:
    return None if epoch == NO_EPOCH else epoch_time(epoch)


def _version(facts: SystemFacts) -> dict[str, object]:
    return {
        "initialized_at_cluster_version": facts.cluster_version or None,
        "created_at_cluster_version": facts.cluster_version or None,
        "acl": [],
    }


_RELATION = ("id", "name", "schema_id", "owner", "definition")
_TIMES = ("initialized_at", "created_at")


def _relation(each: Listed, facts: SystemFacts, listing: Listing) -> tuple[object, ...]:
    owner = _user(facts, each.owner)
    return (each.id, each.name, schema_id(listing, each.namespace), owner, each.definition)


def _rw_tables(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [
        (*_relation(each, facts, listing), each.append_only, *[_time(each.created)] * 2)
        for each in listing.relations
        if each.kind == TABLE
    ]
    names = (*_RELATION, "append_only", *_TIMES)
    return rows_of("rw_catalog.rw_tables", names, rows, _version(facts))


def _rw_materialized_views(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [
        (*_relation(each, facts, listing), each.append_only, *[_time(each.created)] * 2)
        for each in listing.relations
        if each.kind == MATERIALIZED_VIEW
    ]
    names = (*_RELATION, "append_only", *_TIMES)
    same = {**_version(facts), "background_ddl": False}
    return rows_of("rw_catalog.rw_materialized_views", names, rows, same)


def _rw_views(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [_relation(each, facts, listing) for each in listing.relations if each.kind == VIEW]
    return rows_of("rw_catalog.rw_views", _RELATION, rows, {"acl": []})


def _rw_indexes(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [
        (
            each.id, each.name, each.table.id, list(each.keys), list(each.includes),
            schema_id(listing, each.namespace), _user(facts, each.owner),
            each.definition or each.ddl(each.table.full_name), *[_time(each.created)] * 2,
        )
        for each in listing.indexes
        if not each.primary
    ]  # fmt: skip
    names = (
        "id", "name", "primary_table_id", "key_columns", "include_columns", "schema_id", "owner",
        "definition", *_TIMES,
    )  # fmt: skip
    return rows_of("rw_catalog.rw_indexes", names, rows, _version(facts))


def _rw_internal_tables(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [
        (
            each.id, each.name, schema_id(listing, each.namespace), each.detail.part_of or each.id,
            _user(facts, each.detail.owner), each.detail.definition, *[_time(each.created)] * 2,
        )
        for each in facts.snapshot.tables
        if each.kind is TableKind.STORE
    ]  # fmt: skip
    names = ("id", "name", "schema_id", "job_id", "owner", "definition", *_TIMES)
    return rows_of("rw_catalog.rw_internal_tables", names, rows, _version(facts))


def _rw_system_tables(_facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(r.oid, r.name, numbers.SYSTEM_SCHEMAS[r.namespace]) for r in known().values()]
    same: dict[str, object] = {"owner": 1, "acl": []}
    return rows_of("rw_catalog.rw_system_tables", ("id", "name", "schema_id"), rows, same)


def _rw_columns(_facts: SystemFacts, listing: Listing) -> pa.Table:
    names = (
        "relation_id", "name", "position", "is_primary_key", "is_generated", "is_nullable",
        "generation_expression", "data_type", "type_oid", "type_len", "udt_type",
    )  # fmt: skip
    rows: list[tuple[object, ...]] = [
        (
            each.id, c.name, c.number, c.number in each.key, c.detail.generated is not None,
            c.nullable, c.detail.generated, c.column.type.postgres, c.type.oid, c.type.length,
            c.type.name,
        )
        for each in listing.relations
        for c in each.columns
    ]  # fmt: skip
    rows += [
        (each.oid, name, number, False, False, True, None, type_.shown, type_.oid, type_.length,
         type_.name)
        for each in known().values()
        for number, name, type_ in system_columns(each)
    ]  # fmt: skip
    same: dict[str, object] = {"is_hidden": False, "is_distribution_key": False}
    return rows_of("rw_catalog.rw_columns", names, rows, same)


def _rw_schemas(facts: SystemFacts, listing: Listing) -> pa.Table:
    owners = {each.name: each.owner for each in facts.snapshot.objects}
    rows = [
        (schema_id(listing, name), name, _user(facts, owners.get(name, "")))
        for name in listing.schemas
    ]
    return rows_of("rw_catalog.rw_schemas", ("id", "name", "owner"), rows, {"acl": []})


def _rw_depend(_facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [(each.id, read) for each in listing.relations for read in sorted(each.reads)]
    rows += [(each.id, each.table.id) for each in listing.indexes if not each.primary]
    return rows_of("rw_catalog.rw_depend", ("objid", "refobjid"), rows)


def _rw_description(_facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [
        (oid - numbers.relation_oid(0), column or None, text)
        for oid, column, text in comments(listing)
    ]
    names = ("objoid", "objsubid", "description")
    same = {"classoid": known()[f"{RW_CATALOG}.rw_tables"].oid}
    return rows_of("rw_catalog.rw_description", names, rows, same)


def _rw_types(_facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(t.oid, t.name, t.functions[0].name, t.element, t.array) for t in all_types()]
    names = ("id", "name", "input_oid", "typelem", "typarray")
    return rows_of("rw_catalog.rw_types", names, rows)


FOLLOWING: dict[str, Build] = {
    "rw_catalog.rw_tables": _rw_tables,
    "rw_catalog.rw_materialized_views": _rw_materialized_views,
    "rw_catalog.rw_views": _rw_views,
    "rw_catalog.rw_indexes": _rw_indexes,
    "rw_catalog.rw_internal_tables": _rw_internal_tables,
    "rw_catalog.rw_system_tables": _rw_system_tables,
    "rw_catalog.rw_columns": _rw_columns,
    "rw_catalog.rw_schemas": _rw_schemas,
    "rw_catalog.rw_depend": _rw_depend,
    "rw_catalog.rw_description": _rw_description,
    "rw_catalog.rw_types": _rw_types,
}
"""What is made anew when the catalog changed."""


def _options(source: SourceDef) -> str:
    shown = {}
    for name, value in sorted(source.options.items()):
        plain = name in _SHOWN_OPTIONS
        kind, told = ("plaintext", value) if plain else ("hidden", None)
        shown[name] = {"type": kind, "value": told}
    return json.dumps(shown)


def _rw_sources(facts: SystemFacts, _listing: Listing) -> pa.Table:
    definitions = facts.source_definitions()
    rows = [
        (each.id, each.name, each.kind.upper(), definitions.get(each.name, ""),
         *[_time(each.created)] * 2, _options(each))
        for each in facts.snapshot.sources
    ]  # fmt: skip
    names = ("id", "name", "connector", "definition", *_TIMES, "connector_props")
    same = {
        **_version(facts), "schema_id": numbers.SYSTEM_SCHEMAS["public"], "owner": 1, "columns": [],
        "append_only": False, "is_shared": True, "format_encode_options": "{}",
    }  # fmt: skip
    return rows_of("rw_catalog.rw_sources", names, rows, same)


def _rw_sinks(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [
        (each.id, each.name, schema_id(listing, each.namespace), _user(facts, each.owner),
         each.connector.upper(), each.sink_type.upper(), each.definition, each.created_at,
         each.created_at)
        for each in facts.sinks()
    ]  # fmt: skip
    names = (
        "id", "name", "schema_id", "owner", "connector", "sink_type", "definition", *_TIMES
    )  # fmt: skip
    same = {**_version(facts), "connector_props": "{}", "format_encode_options": "{}"}
    return rows_of("rw_catalog.rw_sinks", names, rows, same)


def _rw_databases(facts: SystemFacts, _listing: Listing) -> pa.Table:
    settings = {each.name: each.value for each in facts.settings()}
    interval, frequency = settings.get("barrier_interval_ms"), settings.get("checkpoint_frequency")
    row: tuple[object, ...] = (
        numbers.DATABASE_OID, facts.session.database, 1, [], "default",
        None if interval is None else int(interval), None if frequency is None else int(frequency),
    )  # fmt: skip
    names = tuple(column.name for column in known()["rw_catalog.rw_databases"].columns)
    return rows_of("rw_catalog.rw_databases", names, [row])


def _rw_users(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(user.id, user.name, *(user.superuser,) * 3, True) for user in facts.users]
    names = ("id", "name", "is_super", "create_db", "create_user", "can_login")
    return rows_of("rw_catalog.rw_users", names, rows)


def _rw_ddl_progress(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [
        (each.id, each.statement, each.create_type, each.progress, each.initialized_at)
        for each in facts.jobs()
    ]
    names = ("ddl_id", "ddl_statement", "create_type", "progress", "initialized_at")
    return rows_of("rw_catalog.rw_ddl_progress", names, rows)


def _rw_cdc_progress(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(b.job_id, b.splits, b.backfilled, b.completed) for b in facts.backfills()]
    names = tuple(column.name for column in known()["rw_catalog.rw_cdc_progress"].columns)
    return rows_of("rw_catalog.rw_cdc_progress", names, rows)


def _rw_rate_limit(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [
        (each.table_id, each.node, each.table_id,
         "default" if each.limit is None else str(each.limit))
        for each in facts.rate_limits()
    ]  # fmt: skip
    names = ("fragment_id", "node_name", "table_id", "rate_limit")
    return rows_of("rw_catalog.rw_rate_limit", names, rows, {"fragment_type": []})


def _rw_table_stats(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(id_, size.rows, 0, size.bytes) for id_, size in sorted(facts.sizes().items())]
    names = ("id", "total_key_count", "total_key_size", "total_value_size")
    return rows_of("rw_catalog.rw_table_stats", names, rows)


def _rw_event_logs(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [
        (str(each.id), each.at, each.kind.upper(),
         json.dumps({"subject": each.subject, "text": each.text, "epoch": each.epoch,
                     "details": json.loads(each.details or "{}")}))
        for each in facts.events()
    ]  # fmt: skip
    names = ("unique_id", "timestamp", "event_type", "info")
    return rows_of("rw_catalog.rw_event_logs", names, rows)


def _jobs(facts: SystemFacts, listing: Listing) -> list[tuple[int, str, str, str]]:
    """What streams: id, name, kind and status."""
    creating = {each.id for each in facts.jobs()}
    found = [
        (each.id, each.name, "table" if each.kind == TABLE else "materialized view")
        for each in listing.relations
        if each.kind != VIEW
    ]
    found += [(each.id, each.name, "sink") for each in facts.sinks()]
    return [(*job, "CREATING" if job[0] in creating else "CREATED") for job in found]


def _rw_streaming_jobs(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [(id_, name, status) for id_, name, _, status in _jobs(facts, listing)]
    same: dict[str, object] = {
        "parallelism": f"FIXED({facts.parallelism})", "max_parallelism": VNODE_COUNT,
        "resource_group": "default", "database_id": numbers.DATABASE_OID,
    }  # fmt: skip
    return rows_of("rw_catalog.rw_streaming_jobs", ("id", "name", "status"), rows, same)


def _rw_table_fragments(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [(id_, status) for id_, _, _, status in _jobs(facts, listing)]
    same: dict[str, object] = {
        "parallelism": f"FIXED({facts.parallelism})", "max_parallelism": VNODE_COUNT
    }  # fmt: skip
    return rows_of("rw_catalog.rw_table_fragments", ("table_id", "status"), rows, same)


def _rw_streaming_parallelism(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [(id_, name, kind) for id_, name, kind, _ in _jobs(facts, listing)]
    names = ("id", "name", "relation_type")
    same = {"parallelism": f"FIXED({facts.parallelism})"}
    return rows_of("rw_catalog.rw_streaming_parallelism", names, rows, same)


_INFO_TYPES = {TABLE: "TABLE", VIEW: "VIEW", MATERIALIZED_VIEW: "MATERIALIZED VIEW"}


def _rw_relation_info(facts: SystemFacts, listing: Listing) -> pa.Table:
    rows = [
        (each.namespace, each.name, _user(facts, each.owner), each.definition,
         _INFO_TYPES[each.kind], each.id, *[_time(each.created)] * 2)
        for each in listing.relations
    ]  # fmt: skip
    names = (
        "schemaname", "relationname", "relationowner", "definition", "relationtype", "relationid",
        *_TIMES,
    )  # fmt: skip
    same = {name: value for name, value in _version(facts).items() if name != "acl"}
    return rows_of("rw_catalog.rw_relation_info", names, rows, {**same, "relationtimezone": "UTC"})


def _cdc_progress(facts: SystemFacts, _listing: Listing) -> pa.Table:
    names = tuple(column.name for column in known()["hw_catalog.cdc_progress"].columns)
    rows = [tuple(getattr(each, name) for name in names) for each in facts.cdc()]
    return rows_of("hw_catalog.cdc_progress", names, rows)


def _sinks(facts: SystemFacts, _listing: Listing) -> pa.Table:
    names = tuple(column.name for column in known()["hw_catalog.sinks"].columns)
    rows = [tuple(getattr(each, name) for name in names) for each in facts.sinks()]
    return rows_of("hw_catalog.sinks", names, rows)


def _epochs(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(e.epoch, e.committed_at, e.kind, e.changes, e.duration_ms) for e in facts.epochs()]
    names = ("epoch", "committed_at", "kind", "changes", "duration_ms")
    return rows_of("hw_catalog.epochs", names, rows)


def _events(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(e.id, e.at, e.epoch, e.kind, e.subject, e.text, e.details) for e in facts.events()]
    names = ("id", "at", "epoch", "kind", "subject", "text", "details")
    return rows_of("hw_catalog.events", names, rows)


def _settings(facts: SystemFacts, _listing: Listing) -> pa.Table:
    rows = [(s.name, s.value, s.unit, s.description, s.live) for s in facts.settings()]
    names = ("name", "value", "unit", "description", "live")
    return rows_of("hw_catalog.settings", names, rows)


ASKED: dict[str, Callable[[SystemFacts, Listing], pa.Table]] = {
    "rw_catalog.rw_sources": _rw_sources,
    "rw_catalog.rw_sinks": _rw_sinks,
    "rw_catalog.rw_databases": _rw_databases,
    "rw_catalog.rw_users": _rw_users,
    "rw_catalog.rw_ddl_progress": _rw_ddl_progress,
    "rw_catalog.rw_cdc_progress": _rw_cdc_progress,
    "rw_catalog.rw_rate_limit": _rw_rate_limit,
    "rw_catalog.rw_table_stats": _rw_table_stats,
    "rw_catalog.rw_event_logs": _rw_event_logs,
    "rw_catalog.rw_streaming_jobs": _rw_streaming_jobs,
    "rw_catalog.rw_table_fragments": _rw_table_fragments,
    "rw_catalog.rw_streaming_parallelism": _rw_streaming_parallelism,
    "rw_catalog.rw_relation_info": _rw_relation_info,
    "hw_catalog.cdc_progress": _cdc_progress,
    "hw_catalog.epochs": _epochs,
    "hw_catalog.events": _events,
    "hw_catalog.settings": _settings,
    "hw_catalog.sinks": _sinks,
}
"""What is made anew for each query that names it."""
