"""Whether a server is ready to be a source: each lack by name, with the SQL that mends it."""

from collections.abc import Sequence
from typing import Any

from headwater.cdc.postgres.options import PostgresOptions
from headwater.cdc.postgres.schema import PgTable
from headwater.cdc.postgres.slot import read_status
from headwater.errors import UserError
from headwater.model.spelling import sql_quoted

_OLDEST = 130_000
_SERVER = """
    SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),
           current_setting('wal_level'),
           (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
             OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname IN ('rds_replication',
                 'cloudsqlsuperuser', 'azure_pg_admin') AND pg_has_role(r.oid, 'member')),
           current_setting('max_replication_slots')::int,
           (SELECT count(*) FROM pg_replication_slots)::int,
           has_database_privilege(current_database(), 'CREATE')"""
_PUBLICATION = """
    SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot
    FROM pg_publication WHERE pubname = %s"""
_LEAVES = """
    SELECT format('%%I.%%I', n.nspname, c.relname), c.relreplident::text,
           EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
    FROM pg_partition_tree(%s::bigint::oid) t
    JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE t.isleaf"""
_NARROWED = """
    SELECT p.prqual IS NOT NULL, p.prattrs IS NOT NULL FROM pg_publication_rel p
    JOIN pg_publication b ON b.oid = p.prpubid
    WHERE b.pubname = %s AND p.prrelid = %s::bigint::oid"""
_NARROWED_SINCE = 150_000


def check_server(connection: Any, options: PostgresOptions) -> None:
    """Version, role, log, slots and publication."""
    version, standby, wal_level, may_replicate, most, taken, may_create = connection.execute(
        _SERVER
    ).fetchone()
    user = sql_quoted(options.username)
    if version < _OLDEST:
        raise UserError(
            f"PostgreSQL {version // 10_000} is too old", hint="Version 13 or later is needed."
        )
    if standby:
        raise UserError(
            f"{options.hostname}:{options.port} is a standby, which cannot be a source",
            hint='Let the option "hostname" name the primary server.',
        )
    if wal_level != "logical":
        raise UserError(
            f"wal_level is {wal_level}, and must be logical",
            hint="ALTER SYSTEM SET wal_level = logical; then restart the server.",
        )
    if not may_replicate:
        raise UserError(
            f'user "{options.username}" may not use replication slots',
            hint=f"ALTER ROLE {user} REPLICATION;",
        )
    _check_slot(connection, options, most, taken)
    found = connection.execute(_PUBLICATION, [options.publication]).fetchone()
    if found is None:
        _check_may_publish(options, may_create)
    elif not found[0]:
        raise UserError(
            f'publication "{options.publication}" leaves out some kinds of changes',
            hint=f"ALTER PUBLICATION {sql_quoted(options.publication)} "
            "SET (publish = 'insert, update, delete, truncate');",
        )


def _check_slot(connection: Any, options: PostgresOptions, most: int, taken: int) -> None:
    status = read_status(connection, options.slot)
    if not status.exists:
        if taken >= most:
            raise UserError(
                f"all {most} replication slots of the server are taken",
                detail="SELECT slot_name, active FROM pg_replication_slots; lists them.",
                hint="Drop one that nobody uses with pg_drop_replication_slot, or ALTER SYSTEM "
                f"SET max_replication_slots = {most + 4}; and restart the server.",
            )
        return
    if status.plugin != "pgoutput" or status.database != options.database:
        raise UserError(
            f'slot "{options.slot}" exists and belongs to something else',
            detail=f"Its plugin is {status.plugin}, its database is {status.database}.",
            hint='Give another name in the option "slot.name".',
        )


def _check_may_publish(options: PostgresOptions, may_create: bool) -> None:
    create = (
        f"CREATE PUBLICATION {sql_quoted(options.publication)} "
        "WITH (publish_via_partition_root = true);"
    )
    if not options.publication_create:
        raise UserError(
            f'publication "{options.publication}" does not exist',
            hint=f'{create} or set the option "publication.create.enable" to "true".',
        )
    if not may_create:
        raise UserError(
            f'user "{options.username}" may not create publication "{options.publication}"',
            hint=f"GRANT CREATE ON DATABASE {sql_quoted(options.database)} TO "
            f"{sql_quoted(options.username)}; or, as an administrator: {create}",
        )


def check_table(connection: Any, options: PostgresOptions, table: PgTable) -> None:
    """Privileges and replica identity of one table."""
    user = sql_quoted(options.username)
    readable = connection.execute(
        "SELECT has_schema_privilege(%s, 'USAGE')", [table.schema_name]
    ).fetchone()[0]
    if not readable:
        raise UserError(
            f'user "{options.username}" may not use schema {table.schema_name}',
            hint=f"GRANT USAGE ON SCHEMA {sql_quoted(table.schema_name)} TO {user};",
        )
    may_select = all(
        connection.execute(
            "SELECT has_column_privilege(%s::bigint::oid, %s, 'SELECT')", [table.oid, column.name]
        ).fetchone()[0]
        for column in table.columns
    )
    if not may_select:
        raise UserError(
            f'user "{options.username}" may not read {table.full_name}',
            hint=f"GRANT SELECT ON {table.sql} TO {user};",
        )
    for name, identity, has_key in _pieces(connection, table):
        if identity == "n" or (identity == "d" and not has_key):
            raise UserError(
                f"the log does not say which rows of {name} change",
                detail="It has no primary key, or its replica identity is NOTHING.",
                hint=f"ALTER TABLE {name} REPLICA IDENTITY FULL; or add a primary key"
                + (" and set REPLICA IDENTITY DEFAULT." if identity == "n" else "."),
            )


def _pieces(connection: Any, table: PgTable) -> Sequence[tuple[str, str, bool]]:
    if not table.partitioned:
        return [(table.sql, table.replica_identity, bool(table.key))]
    return list(connection.execute(_LEAVES, [table.oid]).fetchall())


def check_published(connection: Any, options: PostgresOptions, table: PgTable) -> None:
    """Whether the publication gives the whole table, and partitions under their root's name."""
    found = connection.execute(_PUBLICATION, [options.publication]).fetchone()
    publication = sql_quoted(options.publication)
    if found is not None and table.partitioned and not found[1]:
        raise UserError(
            f'publication "{options.publication}" gives partitions under their own names',
            hint=f"ALTER PUBLICATION {publication} SET (publish_via_partition_root = true);",
        )
    if connection.info.server_version < _NARROWED_SINCE:
        return
    for filtered, narrowed in connection.execute(_NARROWED, [options.publication, table.oid]):
        if filtered or narrowed:
            what = "rows" if filtered else "columns"
            raise UserError(
                f'publication "{options.publication}" leaves out {what} of {table.full_name}',
                hint=f"ALTER PUBLICATION {publication} DROP TABLE {table.sql}; "
                f"ALTER PUBLICATION {publication} ADD TABLE {table.sql};",
            )
