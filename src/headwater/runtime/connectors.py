"""Find the code behind a source's kind.

Connectors are entry points of the group `headwater.connectors`: a name, and a function that
makes a source from its name and options. Packages of others add theirs in the same way.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from headwater.cdc.external_table import ExternalDatabase
from headwater.cdc.source import Source
from headwater.errors import ConfigError
from headwater.model.ids import SourceName

Connector = Callable[[SourceName, Mapping[str, Any]], Source]

Databases = Callable[[SourceName, Mapping[str, Any]], ExternalDatabase]

_GROUP = "headwater.connectors"


def _postgres(name: SourceName, options: Mapping[str, Any]) -> ExternalDatabase:
    from headwater.cdc.postgres.database import PostgresDatabase  # noqa: PLC0415  when needed
    from headwater.cdc.postgres.options import parse_options  # noqa: PLC0415

    return PostgresDatabase(parse_options(options, source=name))


def _mysql(name: SourceName, options: Mapping[str, Any]) -> ExternalDatabase:
    from headwater.cdc.mysql.database import MySqlDatabase  # noqa: PLC0415  when needed

    return MySqlDatabase({key: str(value) for key, value in options.items()})


_DATABASES: Mapping[str, Databases] = {"postgres-cdc": _postgres, "mysql-cdc": _mysql}


def keeps_log(kind: str) -> bool:
    """Whether a server of this kind keeps log for us, for as long as we do not take it."""
    return kind == "postgres-cdc"


def is_database(kind: str) -> bool:
    """Whether a kind of source is an external database, with a snapshot and a log."""
    return kind in _DATABASES


def find_database(kind: str) -> Databases:
    """What makes an external database of a kind from a source's name and options."""
    if kind not in _DATABASES:
        raise ConfigError(
            f'"{kind}" is not a database whose tables can be followed',
            detail=f"Connectors: {', '.join(_DATABASES)}.",
        )
    return _DATABASES[kind]


def find_connector(kind: str, given: Mapping[str, Connector] | None = None) -> Connector:
    """The connector of a kind: one handed to the engine, or one that is installed."""
    if given is not None and kind in given:
        return given[kind]
    installed = {point.name: point for point in entry_points(group=_GROUP)}
    if kind not in installed:
        known = ", ".join(sorted({*installed, *(given or {}), *_DATABASES}))
        raise ConfigError(
            f'there is no connector "{kind}"',
            detail=f"Installed connectors: {known or 'none'}.",
            hint="Check the spelling, or install the package that brings it.",
        )
    connector: Connector = installed[kind].load()
    return connector
