"""Find the code behind a source's kind.

Connectors are entry points of the group `headwater.connectors`: a name, and a function that
makes a source from its name and options. Packages of others add theirs in the same way.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from headwater.cdc.source import Source
from headwater.errors import ConfigError
from headwater.model.ids import SourceName

Connector = Callable[[SourceName, Mapping[str, Any]], Source]

_GROUP = "headwater.connectors"


def find_connector(kind: str, given: Mapping[str, Connector] | None = None) -> Connector:
    """The connector of a kind: one handed to the engine, or one that is installed."""
    if given is not None and kind in given:
        return given[kind]
    installed = {point.name: point for point in entry_points(group=_GROUP)}
    if kind not in installed:
        known = ", ".join(sorted({*installed, *(given or {})}))
        raise ConfigError(
            f'there is no connector "{kind}"',
            detail=f"Installed connectors: {known or 'none'}.",
            hint="Check the spelling, or install the package that brings it.",
        )
    connector: Connector = installed[kind].load()
    return connector
