"""System views, written as queries over the system tables.

Each view says where its rows come from and what its columns are; a column that is not mentioned
is null. The queries run inside the embedded database, so they may call the functions that
`functions.py` puts there (`hw_...`).
"""

import re
from dataclasses import dataclass, field

from headwater.system.relations import form_of, known


@dataclass(frozen=True, slots=True)
class Derived:
    """A view: rows `of` a query's FROM clause, and an expression for each column that has one."""

    of: str
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """The system relations that it reads."""
        return frozenset(re.findall(r'"((?:pg|rw|hw|information)_\w+\.\w+)"', self.of))

    def select(self, key: str) -> str:
        """The query of the view by that name."""
        relation = known()[key]
        wrong = self.columns.keys() - {column.name for column in relation.columns}
        assert not wrong, f"{key} has no columns {wrong}"
        parts = [
            f'CAST({self.columns.get(c.name, "NULL")} AS {form_of(c.form).duckdb}) AS "{c.name}"'
            for c in relation.columns
        ]
        return f"SELECT {', '.join(parts)} FROM {self.of}"


_CLASS = '"pg_catalog.pg_class" c JOIN "pg_catalog.pg_namespace" n ON n.oid = c.relnamespace'
_NAMED = {"schemaname": "n.nspname"}
_OWNER = "hw_user_name(c.relowner)"

_PG_VIEWS: dict[str, Derived] = {
    "pg_catalog.pg_tables": Derived(
        f"{_CLASS} WHERE c.relkind IN ('r', 'p')",
        {
            **_NAMED,
            "tablename": "c.relname",
            "tableowner": _OWNER,
            "hasindexes": "c.relhasindex",
            "hasrules": "false",
            "hastriggers": "false",
            "rowsecurity": "false",
        },
    ),
    "pg_catalog.pg_views": Derived(
        f"{_CLASS} WHERE c.relkind = 'v'",
        {
            **_NAMED,
            "viewname": "c.relname",
            "viewowner": _OWNER,
            "definition": "hw_view_text(c.oid)",
        },
    ),
    "pg_catalog.pg_matviews": Derived(
        f"{_CLASS} WHERE c.relkind = 'm'",
        {
            **_NAMED,
            "matviewname": "c.relname",
            "matviewowner": _OWNER,
            "hasindexes": "c.relhasindex",
            "ispopulated": "true",
            "definition": "hw_view_text(c.oid)",
        },
    ),
    "pg_catalog.pg_indexes": Derived(
        f'{_CLASS} JOIN "pg_catalog.pg_index" x ON x.indrelid = c.oid '
        'JOIN "pg_catalog.pg_class" i ON i.oid = x.indexrelid',
        {
            **_NAMED,
            "tablename": "c.relname",
            "indexname": "i.relname",
            "indexdef": "hw_index_text(i.oid, 0, false)",
        },
    ),
    "pg_catalog.pg_group": Derived('"pg_catalog.pg_authid" a WHERE NOT a.rolcanlogin'),
    "pg_catalog.pg_stat_database": Derived(
        '"pg_catalog.pg_database" d', {"datid": "d.oid", "datname": "d.datname"}
    ),
}
_STATISTICS = {
    "relid": "c.oid",
    "schemaname": "n.nspname",
    "relname": "c.relname",
    "n_live_tup": "greatest(hw_row_count(c.oid), 0)",
    "n_dead_tup": "0",
}
_INDEX_STATISTICS = {
    "relid": "c.oid",
    "indexrelid": "i.oid",
    "schemaname": "n.nspname",
    "relname": "c.relname",
    "indexrelname": "i.relname",
}
_STORED = f"{_CLASS} WHERE c.relkind IN ('r', 'm')"
_USERS = "n.nspname NOT IN ('pg_catalog', 'information_schema', 'rw_catalog', 'hw_catalog')"
for _which, _where in (("all", "true"), ("user", _USERS), ("sys", f"NOT {_USERS}")):
    _PG_VIEWS[f"pg_catalog.pg_stat_{_which}_tables"] = Derived(
        f"{_STORED} AND {_where}", _STATISTICS
    )
    _PG_VIEWS[f"pg_catalog.pg_statio_{_which}_tables"] = Derived(
        f"{_STORED} AND {_where}",
        {name: _STATISTICS[name] for name in ("relid", "schemaname", "relname")},
    )
    _PG_VIEWS[f"pg_catalog.pg_stat_{_which}_indexes"] = Derived(
        f"{_PG_VIEWS['pg_catalog.pg_indexes'].of} AND {_where}", _INDEX_STATISTICS
    )

_CATALOG = "hw_database()"
_TABLE_NAMES = {
    "table_catalog": _CATALOG,
    "table_schema": "n.nspname",
    "table_name": "c.relname",
}
_DATA_TYPE = """CASE WHEN t.typcategory = 'A' AND t.typlen = -1 THEN 'ARRAY'
    ELSE hw_format_type(a.atttypid, -1) END"""
_COLUMNS = (
    f'{_CLASS} JOIN "pg_catalog.pg_attribute" a ON a.attrelid = c.oid '
    'JOIN "pg_catalog.pg_type" t ON t.oid = a.atttypid '
    'JOIN "pg_catalog.pg_namespace" tn ON tn.oid = t.typnamespace '
    'LEFT JOIN "pg_catalog.pg_attrdef" d ON d.adrelid = c.oid AND d.adnum = a.attnum '
    "WHERE c.relkind IN ('r', 'v', 'm') AND a.attnum > 0"
)
_NUMERIC_PRECISION = """CASE a.atttypid WHEN 21 THEN 16 WHEN 23 THEN 32 WHEN 20 THEN 64
    WHEN 700 THEN 24 WHEN 701 THEN 53
    WHEN 1700 THEN CASE WHEN a.atttypmod >= 4 THEN ((a.atttypmod - 4) >> 16) & 65535 END END"""
_NUMERIC_SCALE = """CASE WHEN a.atttypid IN (21, 23, 20) THEN 0
    WHEN a.atttypid = 1700 AND a.atttypmod >= 4 THEN (a.atttypmod - 4) & 65535 END"""
_LENGTH = "CASE WHEN a.atttypid IN (1042, 1043) AND a.atttypmod >= 4 THEN a.atttypmod - 4 END"
_OCTETS = """CASE WHEN a.atttypid IN (1042, 1043) AND a.atttypmod >= 4 THEN (a.atttypmod - 4) * 4
    WHEN a.atttypid IN (25, 1042, 1043) THEN 1073741824 END"""

_CONSTRAINTS = (
    '"pg_catalog.pg_constraint" k JOIN "pg_catalog.pg_class" c ON c.oid = k.conrelid '
    'JOIN "pg_catalog.pg_namespace" n ON n.oid = c.relnamespace'
)
_CONSTRAINT_NAMES = {
    "constraint_catalog": _CATALOG,
    "constraint_schema": "n.nspname",
    "constraint_name": "k.conname",
}
_KEY_COLUMNS = (
    "(SELECT k.conname, k.conrelid, unnest(k.conkey) AS attnum, "
    'unnest(generate_series(1, len(k.conkey))) AS place FROM "pg_catalog.pg_constraint" k) k '
    'JOIN "pg_catalog.pg_class" c ON c.oid = k.conrelid '
    'JOIN "pg_catalog.pg_namespace" n ON n.oid = c.relnamespace '
    'JOIN "pg_catalog.pg_attribute" a ON a.attrelid = k.conrelid AND a.attnum = k.attnum'
)
_PRIVILEGES = (
    f"{_CLASS}, (SELECT unnest(['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS privilege) p "
    "WHERE c.relkind IN ('r', 'v', 'm')"
)
_GRANT = {
    **_TABLE_NAMES,
    "grantor": _OWNER,
    "grantee": _OWNER,
    "privilege_type": "p.privilege",
    "is_grantable": "'YES'",
    "with_hierarchy": "CASE p.privilege WHEN 'SELECT' THEN 'YES' ELSE 'NO' END",
}

_INFORMATION: dict[str, Derived] = {
    "information_schema.information_schema_catalog_name": Derived(
        "(SELECT 1) one", {"catalog_name": _CATALOG}
    ),
    "information_schema.schemata": Derived(
        '"pg_catalog.pg_namespace" n',
        {
            "catalog_name": _CATALOG,
            "schema_name": "n.nspname",
            "schema_owner": "hw_user_name(n.nspowner)",
        },
    ),
    "information_schema.tables": Derived(
        f"{_CLASS} WHERE c.relkind IN ('r', 'v', 'm')",
        {
            **_TABLE_NAMES,
            "table_type": "CASE c.relkind WHEN 'r' THEN 'BASE TABLE' WHEN 'v' THEN 'VIEW' "
            "ELSE 'MATERIALIZED VIEW' END",
            "is_insertable_into": "CASE WHEN hw_writable(c.oid) THEN 'YES' ELSE 'NO' END",
            "is_typed": "'NO'",
        },
    ),
    "information_schema.columns": Derived(
        _COLUMNS,
        {
            **_TABLE_NAMES,
            "column_name": "a.attname",
            "ordinal_position": "a.attnum",
            "column_default": "CASE WHEN a.attgenerated = '' THEN d.adbin END",
            "is_nullable": "CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END",
            "data_type": _DATA_TYPE,
            "character_maximum_length": _LENGTH,
            "character_octet_length": _OCTETS,
            "numeric_precision": _NUMERIC_PRECISION,
            "numeric_precision_radix": "CASE WHEN a.atttypid IN (21, 23, 20, 700, 701) THEN 2 "
            "WHEN a.atttypid = 1700 THEN 10 END",
            "numeric_scale": _NUMERIC_SCALE,
            "datetime_precision": "CASE WHEN a.atttypid = 1082 THEN 0 "
            "WHEN a.atttypid IN (1083, 1114, 1184, 1186) THEN 6 END",
            "udt_catalog": _CATALOG,
            "udt_schema": "tn.nspname",
            "udt_name": "t.typname",
            "dtd_identifier": "a.attnum",
            "is_self_referencing": "'NO'",
            "is_identity": "'NO'",
            "identity_cycle": "'NO'",
            "is_generated": "CASE WHEN a.attgenerated = '' THEN 'NEVER' ELSE 'ALWAYS' END",
            "generation_expression": "CASE WHEN a.attgenerated <> '' THEN d.adbin END",
            "is_updatable": "CASE WHEN hw_writable(c.oid) THEN 'YES' ELSE 'NO' END",
        },
    ),
    "information_schema.views": Derived(
        f"{_CLASS} WHERE c.relkind = 'v'",
        {
            **_TABLE_NAMES,
            "view_definition": "hw_view_text(c.oid)",
            "check_option": "'NONE'",
            **dict.fromkeys(
                ("is_updatable", "is_insertable_into", "is_trigger_updatable",
                 "is_trigger_deletable", "is_trigger_insertable_into"), "'NO'",
            ),
        },
    ),
    "information_schema.table_constraints": Derived(
        _CONSTRAINTS,
        {
            **_CONSTRAINT_NAMES,
            **_TABLE_NAMES,
            "constraint_type": "'PRIMARY KEY'",
            "is_deferrable": "'NO'",
            "initially_deferred": "'NO'",
            "enforced": "'YES'",
        },
    ),
    "information_schema.constraint_table_usage": Derived(
        _CONSTRAINTS, {**_CONSTRAINT_NAMES, **_TABLE_NAMES}
    ),
    "information_schema.key_column_usage": Derived(
        _KEY_COLUMNS,
        {
            **_CONSTRAINT_NAMES,
            **_TABLE_NAMES,
            "column_name": "a.attname",
            "ordinal_position": "k.place",
        },
    ),
    "information_schema.constraint_column_usage": Derived(
        _KEY_COLUMNS, {**_CONSTRAINT_NAMES, **_TABLE_NAMES, "column_name": "a.attname"}
    ),
    "information_schema.enabled_roles": Derived(
        '"pg_catalog.pg_roles" r', {"role_name": "r.rolname"}
    ),
    "information_schema.table_privileges": Derived(_PRIVILEGES, _GRANT),
    "information_schema.role_table_grants": Derived(_PRIVILEGES, _GRANT),
    "information_schema.character_sets": Derived(
        "(SELECT 1) one",
        {
            "character_set_name": "'UTF8'",
            "character_repertoire": "'UCS'",
            "form_of_use": "'UTF8'",
            "default_collate_catalog": _CATALOG,
        },
    ),
    "information_schema.collations": Derived(
        '"pg_catalog.pg_collation" k',
        {
            "collation_catalog": _CATALOG,
            "collation_schema": "'pg_catalog'",
            "collation_name": "k.collname",
            "pad_attribute": "'NO PAD'",
        },
    ),
}  # fmt: skip

_SHOWN = "id, name, {} AS relation_type, schema_id, owner, definition, acl"
_KINDS = {
    "table": "rw_tables",
    "system table": "rw_system_tables",
    "source": "rw_sources",
    "index": "rw_indexes",
    "sink": "rw_sinks",
    "materialized view": "rw_materialized_views",
    "view": "rw_views",
}
_UNION = " UNION ALL ".join(
    f"""SELECT {_SHOWN.format(f"'{kind}'")} FROM "rw_catalog.{name}\""""
    for kind, name in _KINDS.items()
)

_RW_VIEWS: dict[str, Derived] = {
    "rw_catalog.rw_relations": Derived(
        f"({_UNION}) r",
        {
            name: f"r.{name}"
            for name in ("id", "name", "relation_type", "schema_id", "owner", "definition", "acl")
        },
    ),
}

DERIVED: dict[str, Derived] = {**_PG_VIEWS, **_INFORMATION, **_RW_VIEWS}
