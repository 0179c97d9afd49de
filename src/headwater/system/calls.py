"""How each function of PostgreSQL that a catalog query may call is computed here.

    how          meaning
    same         the embedded database has it under the same name
    renamed      it has it under another name
    ours         `functions.py` has it; missing arguments take their defaults
    fixed        it always gives the same in Headwater
    made         a small expression says what it means

A function that is in none of these is refused: the embedded database has functions of its own
that PostgreSQL does not have, or that mean something else there.
"""

from collections.abc import Callable, Sequence

from sqlglot import exp

Arguments = Sequence[exp.Expr]


def call(name: str, *arguments: exp.Expr) -> exp.Anonymous:
    """A call of a function of the embedded database."""
    return exp.Anonymous(this=name, expressions=list(arguments))


def number(value: int) -> exp.Expr:
    """A number."""
    return exp.Literal.number(value)


def text(value: str) -> exp.Literal:
    """A text."""
    return exp.Literal.string(value)


def cast(value: exp.Expr, type_: str) -> exp.Cast:
    """A cast to a type of the embedded database."""
    return exp.Cast(this=value, to=exp.DataType.build(type_, dialect="duckdb"))


def none_of(type_: str) -> exp.Expr:
    """No rows of a type, where a function gives a set."""
    return call("unnest", cast(exp.Array(expressions=[]), f"{type_}[]"))


SAME = frozenset(
    """
    lower upper initcap length octet_length bit_length concat concat_ws replace translate left right
    lpad rpad ltrim rtrim repeat reverse md5 ascii chr strpos split_part starts_with substr
    regexp_replace regexp_matches abs ceil floor round mod power sqrt sign greatest least coalesce
    nullif count sum min max avg bool_and bool_or string_agg array_agg row_number rank dense_rank
    ntile first_value last_value lag lead now date_trunc date_part to_timestamp array_append
    array_prepend unnest array
    """.split()
)
RENAMED = {
    "char_length": "length",
    "character_length": "length",
    "btrim": "trim",
    "every": "bool_and",
    "array_cat": "list_concat",
    "cardinality": "len",
    "string_to_array": "string_split",
    "json_agg": "json_group_array",
    "jsonb_agg": "json_group_array",
    "json_build_object": "json_object",
    "jsonb_build_object": "json_object",
    "json_object_agg": "json_group_object",
    "jsonb_object_agg": "json_group_object",
    "json_array_length": "json_array_length",
    "jsonb_array_length": "json_array_length",
    "clock_timestamp": "now",
    "statement_timestamp": "now",
    "transaction_timestamp": "now",
}

_NO = cast(exp.Null(), "VARCHAR")
_NEVER = cast(exp.Null(), "TIMESTAMP WITH TIME ZONE")
OURS: dict[str, tuple[str, int, tuple[exp.Expr, ...]]] = {
    # name: (ours, how many arguments count, defaults of those that may be left out)
    "version": ("hw_version", 0, ()),
    "current_database": ("hw_database", 0, ()),
    "current_catalog": ("hw_database", 0, ()),
    "current_schema": ("hw_schema", 0, ()),
    "current_schemas": ("hw_schemas", 1, ()),
    "current_user": ("hw_user", 0, ()),
    "session_user": ("hw_user", 0, ()),
    "pg_backend_pid": ("hw_pid", 0, ()),
    "current_setting": ("hw_setting", 2, (exp.false(),)),
    "set_config": ("hw_set_config", 2, ()),
    "pg_get_userbyid": ("hw_user_name", 1, ()),
    "format_type": ("hw_format_type", 2, (number(-1),)),
    "pg_get_viewdef": ("hw_view_text", 1, ()),
    "pg_get_indexdef": ("hw_index_text", 3, (number(0), exp.false())),
    "pg_get_constraintdef": ("hw_constraint_text", 1, ()),
    "pg_table_is_visible": ("hw_visible", 1, ()),
    "obj_description": ("hw_comment", 2, (text("pg_class"),)),
    "col_description": ("hw_column_comment", 2, ()),
    "to_regclass": ("hw_to_regclass", 1, ()),
    "to_regtype": ("hw_to_regtype", 1, ()),
    "pg_encoding_to_char": ("hw_encoding", 1, ()),
    "pg_char_to_encoding": ("hw_encoding_number", 1, ()),
    "pg_size_pretty": ("hw_size_pretty", 1, ()),
    "pg_relation_size": ("hw_bytes", 1, ()),
    "pg_table_size": ("hw_bytes", 1, ()),
    "pg_total_relation_size": ("hw_bytes", 1, ()),
    "pg_database_size": ("hw_database_bytes", 0, ()),
    "array_remove": ("hw_array_without", 2, ()),
    "to_char": ("hw_to_char", 2, ()),
    "quote_ident": ("hw_quote_ident", 1, ()),
    "quote_literal": ("hw_quote_literal", 1, ()),
    "quote_nullable": ("hw_quote_nullable", 1, ()),
}
BY_RELATION = frozenset(
    "pg_get_viewdef pg_get_indexdef pg_relation_size pg_table_size pg_total_relation_size "
    "pg_table_is_visible obj_description col_description".split()
)
"""Functions whose first argument is a regclass: a name will do."""

_YES, _NOT = exp.true(), exp.false()
_EMPTY = text("")
FIXED: dict[str, exp.Expr] = {
    **dict.fromkeys(
        (f"has_{what}_privilege" for what in (
            "table", "column", "any_column", "schema", "database", "function", "type", "sequence",
            "tablespace", "language", "foreign_data_wrapper", "server",
        )), _YES,
    ),
    **dict.fromkeys(
        (f"pg_{what}_is_visible" for what in (
            "type", "function", "operator", "opclass", "opfamily", "collation", "conversion",
            "ts_config", "ts_dict", "ts_parser", "ts_template", "statistics_obj",
        )), _YES,
    ),
    "pg_has_role": _YES,
    "pg_is_in_recovery": _NOT,
    "pg_is_other_temp_schema": _NOT,
    "pg_relation_is_publishable": _NOT,
    "row_security_active": _NOT,
    "pg_is_wal_replay_paused": _NOT,
    "pg_my_temp_schema": number(0),
    "pg_advisory_unlock_all": _EMPTY,
    "pg_tablespace_location": _EMPTY,
    "pg_indexes_size": number(0),
    "getdatabaseencoding": text("UTF8"),
    "pg_client_encoding": text("UTF8"),
    "inet_server_addr": _NO, "inet_server_port": cast(exp.Null(), "INTEGER"),
    "inet_client_addr": _NO, "inet_client_port": cast(exp.Null(), "INTEGER"),
    "pg_get_serial_sequence": _NO, "pg_get_partkeydef": _NO,
    "pg_get_triggerdef": _NO, "pg_get_ruledef": _NO, "pg_get_functiondef": _NO,
    "pg_get_function_sqlbody": _NO, "pg_get_partition_constraintdef": _NO,
    "pg_get_statisticsobjdef": _NO, "pg_get_statisticsobjdef_columns": _NO,
    "pg_get_statisticsobjdef_expressions": _NO, "pg_get_function_arg_default": _NO,
    "shobj_description": _NO, "pg_describe_object": _NO, "pg_identify_object": _NO,
    "pg_postmaster_start_time": _NEVER, "pg_conf_load_time": _NEVER,
    "pg_stat_get_last_analyze_time": _NO, "pg_relation_filenode": _NO, "pg_get_acl": _NO,
    "pg_get_function_arguments": _EMPTY, "pg_get_function_identity_arguments": _EMPTY,
    "pg_get_function_result": _EMPTY, "pg_get_replica_identity_index": _NO,
    "acldefault": _NO, "pg_listening_channels": none_of("VARCHAR"),
    "pg_tablespace_databases": none_of("UINTEGER"),
    "pg_partition_ancestors": none_of("UINTEGER"),
    "txid_current": number(0), "pg_current_xact_id": number(0),
    "pg_stat_get_numscans": number(0),
}  # fmt: skip


def _first(arguments: Arguments) -> exp.Expr:
    return arguments[0]


def _length(arguments: Arguments) -> exp.Expr:
    # An empty array has no length, and no upper bound.
    return call("nullif", call("len", arguments[0]), number(0))


def _joined(arguments: Arguments) -> exp.Expr:
    return call("array_to_string", cast(arguments[0], "VARCHAR[]"), arguments[1])


def _position(arguments: Arguments) -> exp.Expr:
    return call("nullif", call("list_position", *arguments), number(0))


def _formatted(arguments: Arguments) -> exp.Expr:
    given = exp.Array(expressions=[cast(each, "VARCHAR") for each in arguments[1:]])
    return call("hw_format", arguments[0], cast(given, "VARCHAR[]"))


def _expanded(arguments: Arguments) -> exp.Expr:
    return call("unnest", call("hw_expanded", arguments[0]))


def _series(arguments: Arguments) -> exp.Expr:
    return call("unnest", call("generate_series", *arguments))


def _age(arguments: Arguments) -> exp.Expr:
    # Of a transaction: there are none. Of two moments: the time between them.
    return number(0) if len(arguments) == 1 else exp.Sub(this=arguments[0], expression=arguments[1])


def _matched(arguments: Arguments) -> exp.Expr:
    return call("regexp_extract_all", *arguments)


MADE: dict[str, Callable[[Arguments], exp.Expr]] = {
    "pg_get_expr": _first,
    "array_length": _length,
    "array_upper": _length,
    "array_lower": lambda _: number(1),
    "array_to_string": _joined,
    "array_position": _position,
    "format": _formatted,
    "_pg_expandarray": _expanded,
    "generate_series": _series,
    "age": _age,
    "regexp_match": _matched,
    "pg_typeof": lambda arguments: call("lower", call("typeof", arguments[0])),
    "to_json": lambda arguments: call("to_json", arguments[0]),
    "row_to_json": lambda arguments: call("to_json", arguments[0]),
    "to_jsonb": lambda arguments: call("to_json", arguments[0]),
}

EMPTY_SETS: dict[str, tuple[tuple[str, str], ...]] = {
    # Functions that give rows, and never any here.
    "pg_options_to_table": (("option_name", "VARCHAR"), ("option_value", "VARCHAR")),
    "aclexplode": (
        ("grantor", "UINTEGER"),
        ("grantee", "UINTEGER"),
        ("privilege_type", "VARCHAR"),
        ("is_grantable", "BOOLEAN"),
    ),
    "pg_get_publication_tables": (("relid", "UINTEGER"), ("attrs", "SMALLINT[]")),
    "pg_partition_tree": (
        ("relid", "UINTEGER"),
        ("parentrelid", "UINTEGER"),
        ("isleaf", "BOOLEAN"),
        ("level", "INTEGER"),
    ),
    "pg_partition_ancestors": (("relid", "UINTEGER"), ("depth", "BIGINT")),
}
ROW_FUNCTIONS = {
    "pg_show_all_settings": "pg_catalog.pg_settings",
    "pg_available_extensions": "pg_catalog.pg_available_extensions",
}
"""Functions that give the rows of a system relation."""

KEYWORDS = "pg_get_keywords"

_ELSEWHERE_TOO = frozenset(
    {"array_remove", "to_char", "quote_ident", "quote_literal", "quote_nullable"}
)
_ONLY_CATALOG = frozenset({*OURS, *FIXED, *EMPTY_SETS, *ROW_FUNCTIONS, KEYWORDS}) - _ELSEWHERE_TOO


def is_served(name: str) -> bool:
    """Whether a function can be called here."""
    return any(name in each for each in (SAME, RENAMED, MADE, OURS, _ONLY_CATALOG))


def is_catalog(name: str) -> bool:
    """Whether a function asks about the catalog or the session, and nobody else answers it."""
    return name in _ONLY_CATALOG or name in ("pg_get_expr", "_pg_expandarray")


def rewritten(name: str, arguments: list[exp.Expr]) -> exp.Expr | None:
    """The call as the embedded database computes it; None for a function that is not served."""
    if name in FIXED:
        return FIXED[name].copy()
    if name in OURS:
        ours, count, defaults = OURS[name]
        given = arguments[:count]
        missing = count - len(given)
        given += [each.copy() for each in defaults[len(defaults) - missing :]] if missing else []
        return call(ours, *given)
    if name in MADE:
        return MADE[name](arguments)
    if name in SAME or name in RENAMED:
        return call(RENAMED.get(name, name), *arguments)
    return None
