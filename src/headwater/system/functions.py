"""PostgreSQL's catalog functions, as functions of the embedded database.

Each looks at the scene of the query that runs now. Arguments that are object identifiers come as
bigint, so that every integer fits. Unless it says so, a function of null is null and is not
called.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import duckdb
from duckdb.func import FunctionNullHandling

from headwater.system import numbers, pg_types
from headwater.system.listing import quoted
from headwater.system.pg_fixed import ENCODINGS
from headwater.system.scene import Scene, split_name

Stage = Callable[[], Scene]
"""Gives the scene of the query that runs now."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function: what it takes, what it gives, and whether it wants to see nulls."""

    call: Callable[..., Any]
    takes: tuple[str, ...]
    gives: str
    sees_null: bool = False


def _regclass(scene: Scene, text: str) -> int:
    oid = scene.relation_oid(text)
    if oid is None:
        raise scene.missing_relation(text)
    return oid


def _type_oid(scene: Scene, text: str) -> int | None:
    if text.isdigit():
        return int(text)
    if text == "-":
        return 0
    found = pg_types.named(text)
    if found is not None:
        return found.oid
    relation = scene.relation_oid(text)
    return None if relation is None else numbers.row_type_oid(relation)


def _regtype(scene: Scene, text: str) -> int:
    oid = _type_oid(scene, text)
    if oid is None:
        raise scene.refuse(f'type "{text}" does not exist', "42704")
    return oid


def _regproc(scene: Scene, text: str) -> int:
    if text.isdigit():
        return int(text)
    name = split_name(text.partition("(")[0])[-1]
    for each in pg_types.functions().values():
        if each.name == name:
            return each.oid
    raise scene.refuse(f'function "{text}" does not exist', "42883")


def _regproc_shown(_scene: Scene, oid: int) -> str:
    if oid == 0:
        return "-"
    found = pg_types.functions().get(oid)
    return str(oid) if found is None else found.name


def _regnamespace(scene: Scene, text: str) -> int:
    if text.isdigit():
        return int(text)
    name = split_name(text)[-1]
    if name not in scene.listing.schemas:
        raise scene.refuse(f'schema "{name}" does not exist', "3F000")
    return scene.listing.schemas[name]


def _regnamespace_shown(scene: Scene, oid: int) -> str:
    names = {number: name for name, number in scene.listing.schemas.items()}
    return quoted(names[oid]) if oid in names else ("-" if oid == 0 else str(oid))


def _regrole(scene: Scene, text: str) -> int:
    if text.isdigit():
        return int(text)
    name = split_name(text)[-1]
    for user in scene.facts.users:
        if user.name == name:
            return numbers.user_oid(user.id)
    raise scene.refuse(f'role "{name}" does not exist', "42704")


def _setting(scene: Scene, name: str, missing_ok: bool | None) -> str | None:
    found = scene.setting(name)
    if found is None and not missing_ok:
        raise scene.refuse(f'unrecognized configuration parameter "{name}"', "42704")
    return found


def _set_config(scene: Scene, name: str, value: str | None) -> str:
    scene.changed[name.lower()] = value or ""
    return value or ""


def _size_pretty(_scene: Scene, size: int) -> str:
    units = ("bytes", "kB", "MB", "GB", "TB", "PB")
    value, unit = size, 0
    while unit < len(units) - 1 and abs(value) >= 10 * 1024:
        # PostgreSQL rounds half up, one step at a time.
        value = (value + 512) // 1024
        unit += 1
    return f"{value} {units[unit]}"


def _expanded(_scene: Scene, values: list[int]) -> list[dict[str, int]]:
    return [{"x": value, "n": place} for place, value in enumerate(values, 1)]


def _formatted(_scene: Scene, pattern: str, arguments: list[str | None]) -> str:
    """format(): %s as it is, %I as a name, %L as a literal, %% a percent sign."""
    waiting = list(arguments)
    made, rest = "", pattern
    while "%" in rest:
        before, _, rest = rest.partition("%")
        made += before
        kind, rest = rest[:1], rest[1:]
        if kind == "%":
            made += "%"
        elif kind == "I":
            made += quoted(waiting.pop(0) or "")
        elif kind == "L":
            made += _quote_nullable(_scene, waiting.pop(0))
        else:
            made += waiting.pop(0) or ""
    return made + rest


def _quote_literal(_scene: Scene, text: str) -> str:
    escaped = text.replace("'", "''")
    return "E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in text else f"'{escaped}'"


def _quote_nullable(scene: Scene, text: str | None) -> str:
    return "NULL" if text is None else _quote_literal(scene, text)


_PATTERNS = {
    "YYYY": "%Y", "MM": "%m", "DD": "%d", "HH24": "%H", "HH12": "%I", "HH": "%I", "MI": "%M",
    "SS": "%S", "US": "%f", "TZ": "%Z", "Mon": "%b", "Month": "%B", "Day": "%A", "Dy": "%a",
}  # fmt: skip
_PATTERN = re.compile("|".join(sorted(_PATTERNS, key=len, reverse=True)))


def _to_char(_scene: Scene, moment: datetime, pattern: str) -> str:
    """The usual patterns of a moment; what else stands there stays."""
    return moment.strftime(_PATTERN.sub(lambda found: _PATTERNS[found[0]], pattern))


def _array(_scene: Scene, text: str) -> list[str | None]:
    return array_elements(text)


def array_elements(text: str) -> list[str | None]:
    """The elements of a one-dimensional array as PostgreSQL writes it."""
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        return []
    elements: list[str | None] = []
    word, in_quotes, was_quoted, escaped = "", False, False, False
    for char in inner[1:-1] + ",":
        if escaped:
            word, escaped = word + char, False
        elif char == "\\":
            escaped = True
        elif char == '"':
            in_quotes, was_quoted = not in_quotes, True
        elif char == "," and not in_quotes:
            plain = word if was_quoted else word.strip()
            if plain or was_quoted:
                elements.append(None if plain.upper() == "NULL" and not was_quoted else plain)
            word, was_quoted = "", False
        else:
            word += char
    return elements


def _encoding_number(_scene: Scene, name: str) -> int:
    wanted = name.upper().replace("-", "")
    return next((number for number, each in ENCODINGS.items() if each == wanted), -1)


_OID = "BIGINT"
_TEXT = "VARCHAR"

FUNCTIONS: dict[str, Function] = {
    "hw_version": Function(
        lambda s: f"PostgreSQL {s.facts.session.server_version}", (), _TEXT
    ),
    "hw_database": Function(lambda s: s.facts.session.database, (), _TEXT),
    "hw_user": Function(lambda s: s.facts.session.user, (), _TEXT),
    "hw_schema": Function(lambda s: next(iter(s.path), None), (), _TEXT),
    "hw_pid": Function(lambda s: s.facts.session.backend_pid, (), "INTEGER"),
    "hw_schemas": Function(lambda s, implicit: s.schemas(implicit), ("BOOLEAN",), "VARCHAR[]"),
    "hw_setting": Function(_setting, (_TEXT, "BOOLEAN"), _TEXT, True),
    "hw_set_config": Function(_set_config, (_TEXT, _TEXT), _TEXT, True),
    "hw_user_name": Function(lambda s, oid: s.user_name(oid), (_OID,), _TEXT),
    "hw_format_type": Function(
        lambda s, oid, mod: None if oid is None else s.type_shown(oid, mod),
        (_OID, _OID), _TEXT, True,
    ),
    "hw_view_text": Function(lambda s, oid: s.view_text(oid), (_OID,), _TEXT),
    "hw_index_text": Function(
        lambda s, oid, n, pretty: s.index_text(oid, n, pretty), (_OID, _OID, "BOOLEAN"), _TEXT
    ),
    "hw_constraint_text": Function(lambda s, oid: s.constraint_text(oid), (_OID,), _TEXT),
    "hw_row_count": Function(lambda s, oid: s.row_count(oid), (_OID,), "DOUBLE"),
    "hw_pages": Function(
        lambda s, oid: min((s.bytes(oid) or 0) // 8192, (1 << 31) - 1), (_OID,), "INTEGER"
    ),
    "hw_bytes": Function(lambda s, oid: s.bytes(oid), (_OID,), "BIGINT"),
    "hw_database_bytes": Function(
        lambda s: sum(size.bytes for size in s.facts.sizes().values()), (), "BIGINT"
    ),
    "hw_writable": Function(lambda s, oid: s.writable(oid), (_OID,), "BOOLEAN"),
    "hw_visible": Function(lambda s, oid: s.visible(oid), (_OID,), "BOOLEAN"),
    "hw_comment": Function(lambda s, oid, c: s.comment(oid, c), (_OID, _TEXT), _TEXT),
    "hw_column_comment": Function(
        lambda s, oid, n: s.column_comment(oid, n), (_OID, _OID), _TEXT
    ),
    "hw_regclass": Function(_regclass, (_TEXT,), "UINTEGER"),
    "hw_to_regclass": Function(lambda s, text: s.relation_oid(text), (_TEXT,), "UINTEGER"),
    "hw_regclass_shown": Function(lambda s, oid: s.shown(oid), (_OID,), _TEXT),
    "hw_regtype": Function(_regtype, (_TEXT,), "UINTEGER"),
    "hw_to_regtype": Function(_type_oid, (_TEXT,), "UINTEGER"),
    "hw_regtype_shown": Function(lambda s, oid: s.type_shown(oid), (_OID,), _TEXT),
    "hw_regproc": Function(_regproc, (_TEXT,), "UINTEGER"),
    "hw_regproc_shown": Function(_regproc_shown, (_OID,), _TEXT),
    "hw_regnamespace": Function(_regnamespace, (_TEXT,), "UINTEGER"),
    "hw_regnamespace_shown": Function(_regnamespace_shown, (_OID,), _TEXT),
    "hw_regrole": Function(_regrole, (_TEXT,), "UINTEGER"),
    "hw_regrole_shown": Function(lambda s, oid: quoted(s.user_name(oid)), (_OID,), _TEXT),
    "hw_encoding": Function(lambda _, number: ENCODINGS.get(number, ""), (_OID,), _TEXT),
    "hw_encoding_number": Function(_encoding_number, (_TEXT,), "INTEGER"),
    "hw_size_pretty": Function(_size_pretty, ("HUGEINT",), _TEXT),
    "hw_quote_ident": Function(lambda _, text: quoted(text), (_TEXT,), _TEXT),
    "hw_quote_literal": Function(_quote_literal, (_TEXT,), _TEXT),
    "hw_quote_nullable": Function(_quote_nullable, (_TEXT,), _TEXT, True),
    "hw_format": Function(_formatted, (_TEXT, "VARCHAR[]"), _TEXT),
    "hw_array": Function(_array, (_TEXT,), "VARCHAR[]"),
    "hw_array_without": Function(
        lambda _, values, gone: [each for each in values if each != gone],
        ("VARCHAR[]", _TEXT), "VARCHAR[]",
    ),
    "hw_to_char": Function(_to_char, ("TIMESTAMP WITH TIME ZONE", _TEXT), _TEXT),
    "hw_expanded": Function(_expanded, ("BIGINT[]",), "STRUCT(x BIGINT, n INTEGER)[]"),
}  # fmt: skip


def install(connection: duckdb.DuckDBPyConnection, stage: Stage) -> None:
    """Put the functions into the embedded database."""
    for name, function in FUNCTIONS.items():
        connection.create_function(
            name,
            _on_stage(function, stage),
            list(function.takes),
            function.gives,
            # A function may give null for what is not null.
            null_handling=FunctionNullHandling.SPECIAL,
            # The answer depends on the scene, which the database does not see.
            side_effects=name == "hw_set_config",
        )


def _on_stage(function: Function, stage: Stage) -> Callable[..., Any]:
    # The database looks at the signature, hence one shape for each number of arguments.
    call, sees = function.call, function.sees_null
    match len(function.takes):
        case 0:
            return lambda: call(stage())
        case 1:
            return lambda a: None if a is None and not sees else call(stage(), a)
        case 2:
            return lambda a, b: (
                None if (a is None or b is None) and not sees else call(stage(), a, b)
            )
        case _:
            return lambda a, b, c: (
                None if None in (a, b, c) and not sees else call(stage(), a, b, c)
            )
