"""Definitions of relations, as frozen values.

    kind                rows                     made of
    table               stored                   one state table
    materialized view   stored                   one state table, and perhaps stores beside it
    store               stored, never shown      what a materialized view keeps for itself
    view                computed when read       its query
    index               none                     a promise that lookups by its columns are fast
    sink                none here                the changes of one relation, on their way elsewhere

A view's query is kept as text, together with the relations that its names meant and the columns
that they had when it was created. Renaming a table or adding a column to it therefore changes
nothing in the views that read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import SourceName, TableId
from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.schema import Column, Schema

PUBLIC = "public"
ROOT = "root"
SINK_VIEW = "_hw_sink_"
"""How the name of a materialized view begins that a sink AS SELECT keeps for itself."""


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


class TableKind(StrEnum):
    """What a stored relation is to its user."""

    TABLE = "table"
    MATERIALIZED_VIEW = "materialized view"
    STORE = "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A relation that a query reads, and the columns it had when the query was planned."""

    relation: int
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The defining query of a view; `reads` is by the name that the text uses."""

    text: str
    reads: Mapping[str, Read] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    policy: str = "auto"
    stores: tuple[TableId, ...] = ()
    """The stores that a materialized view has beside its main one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDetail:
    """What SQL knows of a column beyond its name and type; expressions are kept as text."""

    default: str | None = None
    generated: str | None = None
    length: int | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What SQL knows of a stored relation beyond its rows."""

    definition: str = ""
    """The statement that created it."""
    owner: str = ROOT
    comment: str | None = None
    columns: Mapping[str, ColumnDetail] = field(default_factory=dict)
    conflict: str = "update"
    rate_limit: int | None = None
    parallelism: int | None = None
    """How many splits of its source's table are read at a time, if somebody has said so."""
    query: Query | None = None
    part_of: TableId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDef:
    """A stored relation: its rows' schema, where they come from and where they lie."""

    id: TableId
    name: str
    schema: Schema
    folder: str
    """The name of its folder in storage; no other table ever has the same."""
    namespace: str = PUBLIC
    kind: TableKind = TableKind.TABLE
    source: SourceName | None = None
    upstream: str = ""
    """The name that the table has at its source."""
    append_only: bool = False
    detail: Detail = field(default_factory=Detail)
    defined_at: str = ""
    created: Epoch = NO_EPOCH
    dropped: Epoch | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns that users see."""
        return tuple(c for c in self.schema.columns if not c.name.startswith(HIDDEN_PREFIX))

    @property
    def hidden(self) -> tuple[Column, ...]:
        """The stored columns that are ours."""
        return tuple(c for c in self.schema.columns if c.name.startswith(HIDDEN_PREFIX))

    @property
    def sinks_own(self) -> bool:
        """Whether a sink keeps it for itself, and nobody is shown it."""
        return self.name.startswith(SINK_VIEW)

    @property
    def writable(self) -> bool:
        """Whether INSERT, UPDATE and DELETE are for this relation."""
        return self.kind is TableKind.TABLE and self.source is None

    @property
    def reads(self) -> frozenset[int]:
        """The relations that its query reads."""
        query = self.detail.query
        return frozenset() if query is None else frozenset(r.relation for r in query.reads.values())


class ObjectKind(StrEnum):
    """Things that have a name and no rows of their own."""

    SCHEMA = "schema"
    VIEW = "view"
    INDEX = "index"
    SINK = "sink"
    CREATING = "relation that is still being created"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectDef:
    """A schema, a view, an index, a sink, or a relation that is still being created.

    A view has `query` and `columns`; an index has `table`, the names of its `keys` in order,
    and those it `includes`; a sink has the `table` that it delivers, its `columns`, the `keys`
    that name its rows, and its options as `settings`; what is being created has the statement
    as its `definition`, and the `settings` of the session that began it.
    """

    id: int
    kind: ObjectKind
    name: str
    namespace: str = PUBLIC
    definition: str = ""
    owner: str = ROOT
    comment: str | None = None
    query: Query | None = None
    columns: tuple[Column, ...] = ()
    table: TableId | None = None
    keys: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    unique: bool = False
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Of a sink they may hold passwords, hence never part of the repr."""
    replaces: TableId | None = None
    """The materialized view whose place it will take; its name is that one's until then."""
    created: Epoch = NO_EPOCH

    @property
    def reads(self) -> frozenset[int]:
        """The relations that it needs."""
        found = {int(each) for each in (self.table, self.replaces) if each is not None}
        if self.query is not None:
            found |= {read.relation for read in self.query.reads.values()}
        if self.into is not None:
            found.add(int(self.into))
        return frozenset(found)

    @property
    def into(self) -> TableId | None:
        """The table of this workspace that a sink writes."""
        said = self.settings.get("into", "") if self.kind is ObjectKind.SINK else ""
        return TableId(int(said)) if said else None
