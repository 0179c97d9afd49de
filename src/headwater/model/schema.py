"""Schemas: the columns of a relation and the key that names its rows.

A schema only ever changes in ways that leave stored files readable: columns are added at the
end and are null in older rows, dropped columns leave the schema but not the files, and a type
only widens. `evolve` says which of these a new schema is, or refuses it.
"""

import json
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from headwater.errors import SchemaError
from headwater.model.reserved import HIDDEN_PREFIX, is_reserved
from headwater.model.types import DataType, Kind

_WIDER: dict[Kind, frozenset[Kind]] = {
    Kind.SMALLINT: frozenset({Kind.INTEGER, Kind.BIGINT}),
    Kind.INTEGER: frozenset({Kind.BIGINT}),
    Kind.REAL: frozenset({Kind.DOUBLE}),
}


def widens(old: DataType, new: DataType) -> bool:
    """Whether every value of one type is exactly one of the other, and files stay readable."""
    if old == new or new.kind in _WIDER.get(old.kind, frozenset()):
        return True
    return (
        old.kind is Kind.DECIMAL
        and new.kind is Kind.DECIMAL
        and new.scale == old.scale
        and (new.precision or 0) >= (old.precision or 0)
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column."""

    name: str
    type: DataType
    nullable: bool = True


@dataclass(frozen=True)
class Schema:
    """The columns in order, and the names of those that make up the key."""

    columns: tuple[Column, ...]
    key: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names:
            raise SchemaError("a relation needs at least one column")
        folded: dict[str, str] = {}
        for name in names:
            if is_reserved(name) and not name.startswith(HIDDEN_PREFIX):
                raise SchemaError(
                    f'column name "{name}" is reserved',
                    hint="Choose a name that does not collide with Headwater's own columns.",
                )
            if name.lower() in folded:
                raise SchemaError(
                    f'column "{name}" is there twice',
                    detail=f'"{folded[name.lower()]}" and "{name}" differ at most in case, '
                    "and Delta tables do not tell them apart.",
                )
            folded[name.lower()] = name
        if not self.key:
            raise SchemaError(
                "a relation needs a key", hint="Name the columns that identify a row."
            )
        if len(set(self.key)) != len(self.key):
            raise SchemaError(f"a key column is named twice: {', '.join(self.key)}")
        for name in self.key:
            if name not in names:
                raise SchemaError(
                    f'key column "{name}" does not exist', detail=f"Columns: {', '.join(names)}."
                )
            if not self[name].type.can_be_key:
                raise SchemaError(
                    f'column "{name}" of type {self[name].type.postgres} cannot be part of a key',
                    hint="Cast it to text, or choose another key.",
                )

    def __getitem__(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The column names in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def key_columns(self) -> tuple[Column, ...]:
        """The key's columns, in key order."""
        return tuple(self[name] for name in self.key)

    @cached_property
    def arrow(self) -> pa.Schema:
        """As an Arrow schema; every column may hold nulls, as change rows of deletes do."""
        return pa.schema([pa.field(c.name, c.type.arrow) for c in self.columns])

    @property
    def spark(self) -> str:
        """As a Spark DDL string."""
        return ", ".join(f"`{c.name.replace('`', '``')}` {c.type.spark}" for c in self.columns)

    @property
    def delta(self) -> str:
        """As the schemaString of a Delta table."""
        fields = [
            {"name": c.name, "type": c.type.delta, "nullable": True, "metadata": {}}
            for c in self.columns
        ]
        return json.dumps({"type": "struct", "fields": fields})

    def evolve(self, wanted: "Schema") -> "Schema":
        """Accept `wanted` as the next schema, or say why stored rows would not fit it."""
        if wanted.key != self.key:
            raise SchemaError(
                f"the key cannot change from ({', '.join(self.key)}) to ({', '.join(wanted.key)})",
                hint="Create a new table with the other key.",
            )
        for column in wanted.columns:
            if column.name not in self.names:
                continue
            old, new = self[column.name].type, column.type
            if widens(old, new):
                continue
            raise SchemaError(
                f'column "{column.name}" cannot change from {old.postgres} to {new.postgres}',
                detail="A type may only become wider, so that stored rows stay exact.",
                hint="Add a column of the new type instead.",
            )
        return wanted
