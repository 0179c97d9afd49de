"""Headwater keeps Spark tables and materialized views in step with operational databases."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.config import Settings
    from headwater.errors import HeadwaterError
    from headwater.model.schema import Column, Schema
    from headwater.runtime.engine import Engine
    from headwater.session.synchronous import Headwater, connect

__all__ = ["Column", "Engine", "Headwater", "HeadwaterError", "Schema", "Settings", "connect"]

_HOMES = {
    "Column": "headwater.model.schema",
    "Engine": "headwater.runtime.engine",
    "Headwater": "headwater.session.synchronous",
    "HeadwaterError": "headwater.errors",
    "Schema": "headwater.model.schema",
    "Settings": "headwater.config",
    "connect": "headwater.session.synchronous",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that the command line starts fast."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
