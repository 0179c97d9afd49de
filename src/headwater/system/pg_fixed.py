"""The tables of pg_catalog that are the same in every workspace, or follow users and settings."""

from collections.abc import Callable

import pyarrow as pa

from headwater.system import numbers
from headwater.system.facts import SystemFacts
from headwater.system.pg_objects import OPERATOR_CLASSES, owner_oid
from headwater.system.pg_types import by_name, functions
from headwater.system.rows import rows_of

UTF8 = 6
ENCODINGS = {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}

Live = Callable[[SystemFacts], pa.Table]


def _pg_database(facts: SystemFacts) -> pa.Table:
    same: dict[str, object] = {
        "encoding": UTF8, "datlocprovider": "c", "datistemplate": False, "datallowconn": True,
        "dathasloginevt": False, "datconnlimit": -1, "datfrozenxid": 0, "datminmxid": 0,
        "dattablespace": numbers.DEFAULT_TABLESPACE, "datcollate": "C", "datctype": "C",
        "datlastsysoid": 0,
    }  # fmt: skip
    row = (numbers.DATABASE_OID, facts.session.database, owner_oid(facts.users, "root"))
    return rows_of("pg_catalog.pg_database", ("oid", "datname", "datdba"), [row], same)


_ROLE_SAME: dict[str, object] = {
    "rolinherit": True, "rolcanlogin": True, "rolreplication": False, "rolconnlimit": -1
}  # fmt: skip
_ROLE_NAMES = ("oid", "rolname", "rolsuper", "rolcreaterole", "rolcreatedb", "rolbypassrls")


def _roles(facts: SystemFacts) -> list[tuple[object, ...]]:
    return [(numbers.user_oid(user.id), user.name, *(user.superuser,) * 4) for user in facts.users]


def _pg_authid(facts: SystemFacts) -> pa.Table:
    return rows_of("pg_catalog.pg_authid", _ROLE_NAMES, _roles(facts), _ROLE_SAME)


def _pg_roles(facts: SystemFacts) -> pa.Table:
    same = {**_ROLE_SAME, "rolpassword": "********"}
    return rows_of("pg_catalog.pg_roles", _ROLE_NAMES, _roles(facts), same)


def _pg_user(facts: SystemFacts) -> pa.Table:
    rows = [(user.name, numbers.user_oid(user.id), *(user.superuser,) * 3) for user in facts.users]
    names = ("usename", "usesysid", "usecreatedb", "usesuper", "usebypassrls")
    same = {"userepl": False, "passwd": "********"}
    return rows_of("pg_catalog.pg_user", names, rows, same)


def _pg_shadow(facts: SystemFacts) -> pa.Table:
    rows = [(user.name, numbers.user_oid(user.id), *(user.superuser,) * 3) for user in facts.users]
    names = ("usename", "usesysid", "usecreatedb", "usesuper", "usebypassrls")
    return rows_of("pg_catalog.pg_shadow", names, rows, {"userepl": False})


def session_settings(facts: SystemFacts) -> dict[str, tuple[str, str, str]]:
    """Every setting that a session can ask for: value, unit and description, by lower-case name."""
    session = facts.session
    shown = session.server_version.split()[0]
    parts = [int(part) for part in shown.split(".") if part.isdigit()]
    number = parts[0] * 10000 + (parts[1] if len(parts) > 1 else 0)
    found: dict[str, tuple[str, str, str]] = {
        name: (value, "", "") for name, value in _SESSION_DEFAULTS.items()
    }
    found["server_version"] = (session.server_version, "", "Shows the server version.")
    found["server_version_num"] = (str(number), "", "Shows the server version as a number.")
    path = ", ".join(session.search_path)
    found["search_path"] = (path, "", "Schemas that names are looked up in.")
    found["is_superuser"] = ("on", "", "Whether the session's user is a superuser.")
    found["session_authorization"] = (session.user, "", "The session's user.")
    for each in facts.settings():
        found[each.name] = (each.value, each.unit, each.description)
    for name, value in session.settings.items():
        found[name] = (value, *found.get(name, ("", "", ""))[1:])
    return found


_SESSION_DEFAULTS = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "DateStyle": "ISO, MDY",
    "default_table_access_method": "heap",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "extra_float_digits": "1",
    "integer_datetimes": "on",
    "IntervalStyle": "postgres",
    "jit": "off",
    "lc_collate": "C",
    "lc_ctype": "C",
    "lc_messages": "C",
    "lc_monetary": "C",
    "max_identifier_length": "63",
    "max_index_keys": "32",
    "server_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "TimeZone": "UTC",
    "transaction_isolation": "read committed",
    "transaction_read_only": "off",
}


def _pg_settings(facts: SystemFacts) -> pa.Table:
    live = {each.name for each in facts.settings() if each.live}
    rows = [
        (name, value, unit or None, description, "user" if name in live else "internal",
         value, value)
        for name, (value, unit, description) in sorted(session_settings(facts).items())
    ]  # fmt: skip
    names = ("name", "setting", "unit", "short_desc", "context", "boot_val", "reset_val")
    same: dict[str, object] = {
        "category": "Headwater", "vartype": "string", "source": "default", "pending_restart": False
    }  # fmt: skip
    return rows_of("pg_catalog.pg_settings", names, rows, same)


def _pg_stat_activity(facts: SystemFacts) -> pa.Table:
    names = (
        "datname", "pid", "usename", "application_name", "client_addr", "client_port",
        "backend_start", "query_start", "state_change", "state", "query", "usesysid",
    )  # fmt: skip
    rows = [
        (
            each.database, each.pid, each.user, each.application_name, each.client_address,
            each.client_port, each.started_at, each.query_started_at, each.query_started_at,
            each.state, each.query, owner_oid(facts.users, each.user),
        )
        for each in facts.connections()
    ]  # fmt: skip
    same: dict[str, object] = {"datid": numbers.DATABASE_OID, "backend_type": "client backend"}
    return rows_of("pg_catalog.pg_stat_activity", names, rows, same)


LIVE: dict[str, Live] = {
    "pg_catalog.pg_database": _pg_database,
    "pg_catalog.pg_authid": _pg_authid,
    "pg_catalog.pg_roles": _pg_roles,
    "pg_catalog.pg_user": _pg_user,
    "pg_catalog.pg_shadow": _pg_shadow,
    "pg_catalog.pg_settings": _pg_settings,
    "pg_catalog.pg_stat_activity": _pg_stat_activity,
}
"""What is made anew for each query that names it."""


def _pg_am() -> pa.Table:
    rows = [(numbers.HEAP, "heap", "t"), (numbers.BTREE, "btree", "i")]
    return rows_of("pg_catalog.pg_am", ("oid", "amname", "amtype"), rows, {"amhandler": 0})


def _pg_tablespace() -> pa.Table:
    rows = [(numbers.DEFAULT_TABLESPACE, "pg_default"), (numbers.GLOBAL_TABLESPACE, "pg_global")]
    same = {"spcowner": numbers.user_oid(1)}
    return rows_of("pg_catalog.pg_tablespace", ("oid", "spcname"), rows, same)


def _pg_collation() -> pa.Table:
    rows = [(numbers.DEFAULT_COLLATION, "default", "d", None), (950, "C", "c", "C")]
    same: dict[str, object] = {
        "collnamespace": 11, "collowner": numbers.user_oid(1), "collisdeterministic": True,
        "collencoding": -1,
    }  # fmt: skip
    names = ("oid", "collname", "collprovider", "collcollate")
    return rows_of("pg_catalog.pg_collation", names, rows, same)


def _pg_language() -> pa.Table:
    rows = [(12, "internal", False), (14, "sql", True)]
    same: dict[str, object] = {
        "lanowner": numbers.user_oid(1), "lanispl": False, "lanplcallfoid": 0, "laninline": 0,
        "lanvalidator": 0,
    }  # fmt: skip
    return rows_of("pg_catalog.pg_language", ("oid", "lanname", "lanpltrusted"), rows, same)


def _pg_opclass() -> pa.Table:
    rows = [
        (oid, name, family, by_name()[type_].oid)
        for type_, (oid, name, family) in OPERATOR_CLASSES.items()
    ]
    same: dict[str, object] = {
        "opcmethod": numbers.BTREE, "opcnamespace": 11, "opcowner": numbers.user_oid(1),
        "opcdefault": True, "opckeytype": 0,
    }  # fmt: skip
    names = ("oid", "opcname", "opcfamily", "opcintype")
    return rows_of("pg_catalog.pg_opclass", names, rows, same)


def _pg_proc() -> pa.Table:
    """The functions that pg_type names; what else can be called has no row."""
    rows = [(each.oid, each.name) for each in functions().values()]
    same: dict[str, object] = {
        "pronamespace": 11, "proowner": numbers.user_oid(1), "prolang": 12, "procost": 1.0,
        "prorows": 0.0, "provariadic": 0, "prosupport": 0, "prokind": "f", "prosecdef": False,
        "proleakproof": False, "proisstrict": True, "proretset": False, "provolatile": "i",
        "proparallel": "s", "pronargs": 1, "pronargdefaults": 0,
        "prorettype": by_name()["internal"].oid, "proargtypes": [by_name()["cstring"].oid],
        "prosrc": "internal",
    }  # fmt: skip
    return rows_of("pg_catalog.pg_proc", ("oid", "proname"), rows, same)


STATIC: dict[str, Callable[[], pa.Table]] = {
    "pg_catalog.pg_am": _pg_am,
    "pg_catalog.pg_tablespace": _pg_tablespace,
    "pg_catalog.pg_collation": _pg_collation,
    "pg_catalog.pg_language": _pg_language,
    "pg_catalog.pg_opclass": _pg_opclass,
    "pg_catalog.pg_proc": _pg_proc,
}
"""What never changes."""
