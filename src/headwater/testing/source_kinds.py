"""Build a test source from what a catalog stores: a kind and options of JSON values.

    kind          options
    generated     seed, tables, rate, start, limit, and those of `generated_source.Mix`
    bank          seed, accounts, opening, under_way, rate, start, limit
    script-file   path, tables

    tables        {"orders": {"columns": "id I  amount D(10,2)", "key": ["id"]}}
    rate, start   transactions per second since a time, such as "2024-01-01T00:00:00Z"

The same kind, name and options give the same log, so an engine that restarts reads on.
"""

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from headwater.cdc.source import Source
from headwater.errors import ConfigError
from headwater.model.epoch import WallClock, system_clock
from headwater.model.schema import Column, Schema
from headwater.testing.bank_source import BankSource
from headwater.testing.generated_source import GeneratedSource, Mix
from headwater.testing.pretty import columns_from_pretty, columns_to_pretty
from headwater.testing.script_file_source import ScriptFileSource

_MIX = frozenset(field.name for field in dataclasses.fields(Mix))
_PACE = frozenset({"rate", "start", "limit"})
_OPTIONS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "generated": (frozenset({"tables"}), frozenset({"seed", "tables"}) | _PACE | _MIX),
    "bank": (frozenset(), frozenset({"seed", "accounts", "opening", "under_way"}) | _PACE),
    "script-file": (frozenset({"path", "tables"}), frozenset({"path", "tables"})),
}


def source_from_options(
    kind: str, name: str, options: Mapping[str, Any], *, clock: WallClock = system_clock
) -> Source:
    """Build the source, or raise `ConfigError` with what does not fit."""
    if kind not in _OPTIONS:
        raise ConfigError(
            f'there is no test source of kind "{kind}"', detail=f"Kinds: {', '.join(_OPTIONS)}."
        )
    needed, known = _OPTIONS[kind]
    for option in options:
        if option not in known:
            raise ConfigError(
                f'a source of kind "{kind}" has no option "{option}"',
                detail=f"Options: {', '.join(sorted(known))}.",
            )
    if missing := sorted(needed - options.keys()):
        raise ConfigError(f'a source of kind "{kind}" needs the option "{missing[0]}"')
    try:
        match kind:
            case "generated":
                mix = Mix(**{key: value for key, value in options.items() if key in _MIX})
                tables = _tables(options["tables"])
                seed = options.get("seed", 0)
                return GeneratedSource(name, seed, tables, mix, clock=clock, **_pace(options))
            case "bank":
                given = {key: options[key] for key in options if key not in _PACE}
                return BankSource(name, clock=clock, **given, **_pace(options))
            case _:
                return ScriptFileSource(name, options["path"], _tables(options["tables"]))
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ConfigError(
            f'the options of source "{name}" do not fit its kind "{kind}"', detail=str(error)
        ) from error


def schema_options(schema: Schema) -> dict[str, Any]:
    """A schema as it stands in the option `tables`."""
    columns = tuple((column.name, column.type) for column in schema.columns)
    options: dict[str, Any] = {"columns": columns_to_pretty(columns), "key": list(schema.key)}
    if required := [c.name for c in schema.columns if not c.nullable and c.name not in schema.key]:
        options["not_null"] = required
    return options


def _tables(options: Mapping[str, Any]) -> dict[str, Schema]:
    return {table: _schema(table, described) for table, described in options.items()}


def _schema(table: str, options: Mapping[str, Any]) -> Schema:
    if unknown := sorted(options.keys() - {"columns", "key", "not_null"}):
        raise ConfigError(f'table "{table}" has an unknown option "{unknown[0]}"')
    if "columns" not in options or "key" not in options:
        raise ConfigError(
            f'table "{table}" needs "columns" and "key"',
            hint='They look like {"columns": "id I  name T", "key": ["id"]}.',
        )
    key, required = tuple(options["key"]), {*options["key"], *options.get("not_null", ())}
    columns = tuple(
        Column(name, type_, nullable=name not in required)
        for name, type_ in columns_from_pretty(options["columns"])
    )
    return Schema(columns, key)


def _pace(options: Mapping[str, Any]) -> dict[str, Any]:
    rate = options.get("rate")
    if rate is not None and "start" not in options:
        raise ConfigError(
            'the option "rate" needs the option "start"',
            hint="Without a fixed start, a restarted source would begin to count anew.",
        )
    start = options.get("start")
    moment = None if start is None else datetime.fromisoformat(start)
    if moment is not None and moment.tzinfo is None:
        raise ConfigError(f'the start "{start}" has no time zone', hint="Add Z for UTC.")
    return {"rate": rate, "start": moment, "limit": options.get("limit")}


bank = partial(source_from_options, "bank")
generated = partial(source_from_options, "generated")
script_file = partial(source_from_options, "script-file")
"""The kinds as connectors, which is how an engine finds them."""
