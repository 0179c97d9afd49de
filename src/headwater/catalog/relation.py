"""Definitions of relations, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import SourceName, TableId
from headwater.model.schema import Schema


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDef:
    """An upstream database: how to reach it. The catalog fills in the epochs."""

    id: int
    name: SourceName
    kind: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """May hold passwords, hence never part of the repr."""
    defined_at: str = ""
    created: Epoch = NO_EPOCH
    dropped: Epoch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDef:
    """A table: its rows' schema, where they come from and where they lie."""

    id: TableId
    name: str
    schema: Schema
    folder: str
    """The name of its folder in storage; no other table ever has the same."""
    source: SourceName | None = None
    upstream: str = ""
    """The name that the table has at its source."""
    append_only: bool = False
    defined_at: str = ""
    created: Epoch = NO_EPOCH
    dropped: Epoch | None = None
