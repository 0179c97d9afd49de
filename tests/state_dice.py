"""Schemas, keys, rows and changes that are likely to hurt, the same ones for the same seed."""

import math
from collections.abc import Iterable
from random import Random

import pyarrow as pa

from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.testing.oracle import Row, key_of
from headwater.testing.value_pools import distinct_keys, pool_of

STRUCT = DataType(Kind.STRUCT, fields=(("x", INTEGER), ("y", VARCHAR)))


def schema_of(key: Iterable[str], **columns: DataType) -> Schema:
    """A schema in few words."""
    return Schema(tuple(Column(name, type_) for name, type_ in columns.items()), tuple(key))


SCHEMAS: dict[str, Schema] = {
    "int": schema_of(["id"], id=BIGINT, name=VARCHAR, amount=decimal(12, 2), score=DOUBLE),
    "text": schema_of(["k"], k=VARCHAR, v=INTEGER, flag=BOOLEAN),
    "composite": schema_of(
        ["a", "b", "c"], a=INTEGER, v=VARCHAR, b=VARCHAR, c=DATE, w=TIMESTAMPTZ
    ),
    "numbers": schema_of(["r", "n"], r=DOUBLE, n=decimal(38, 10), f=REAL, s=SMALLINT),
    "times": schema_of(["t", "z"], t=TIMESTAMP, z=TIMESTAMPTZ, d=DATE, u=UUID),
    "everything": schema_of(
        ["u"], u=UUID, bo=BOOLEAN, s=SMALLINT, i=INTEGER, b=BIGINT, r=REAL, d=DOUBLE,
        m=decimal(38, 18), n=NUMERIC, t=VARCHAR, y=BYTEA, da=DATE, ti=TIME, ts=TIMESTAMP,
        tz=TIMESTAMPTZ, j=JSONB, li=list_of(DOUBLE), lt=list_of(VARCHAR), st=STRUCT,
    ),
    "bytes": schema_of(["o", "y"], y=BYTEA, o=BOOLEAN, v=VARCHAR),
}  # fmt: skip


def changes_of(rows: Iterable[tuple[str, Row]], schema: Schema) -> pa.Table:
    """Changes as a table; columns that a row leaves out are null."""
    listed = list(rows)
    arrays = [
        pa.array([row.get(column.name) for _, row in listed], column.type.arrow)
        for column in schema.columns
    ]
    kinds = pa.array([kind for kind, _ in listed], pa.string())
    return pa.table([*arrays, kinds], names=[*schema.names, CHANGE_TYPE])


class Dice:
    """Draws keys, rows, changes and schemas, the same ones for the same seed."""

    def __init__(self, seed: object, schema: Schema, keys: int = 40) -> None:
        self.random = Random(f"{seed}")
        self.schema = schema
        self.keys = distinct_keys(schema, keys, extreme=True).to_pylist()
        for key in list(self.keys[:: max(1, keys // 8)]):
            for name in schema.key[1:]:
                self.keys.append({**key, name: None})
        self.keys = list({key_of(key, schema.key): key for key in self.keys}.values())
        self._added = 0

    def key(self) -> Row:
        """One of the keys; a zero of a floating point key has either sign."""
        key = dict(self.random.choice(self.keys))
        for name, value in key.items():
            if isinstance(value, float) and value == 0:
                key[name] = math.copysign(0.0, self.random.choice((-1, 1)))
        return key

    def row(self) -> Row:
        """A whole row; extreme values are as likely as ordinary ones."""
        row = self.key()
        for column in self.schema.columns:
            if column.name in row:
                continue
            pool = pool_of(column.type)
            upto = pool.extremes if self.random.random() < 0.5 else len(pool.values)
            picked = pool.values[self.random.randrange(upto)].as_py()
            row[column.name] = None if self.random.random() < 0.1 else picked
        return row

    def changes(self, most: int = 16) -> pa.Table:
        """Some changes, several of one key among them, and preimages that mean nothing."""
        listed: list[tuple[str, Row]] = []
        for _ in range(self.random.randrange(most + 1)):
            kind = self.random.choices(
                ("insert", "update_postimage", "delete", "update_preimage"), (5, 3, 4, 1)
            )[0]
            listed.append((kind, self.key() if kind == "delete" else self.row()))
        return changes_of(listed, self.schema)

    def other_schema(self) -> Schema:
        """A schema that the table may change to: a column more, one less, or a wider type."""
        columns = list(self.schema.columns)
        free = [c for c in columns if c.name not in self.schema.key]
        wider = {INTEGER: BIGINT, SMALLINT: INTEGER, REAL: DOUBLE, decimal(12, 2): decimal(20, 2)}
        match self.random.randrange(3):
            case 1 if len(free) > 1:
                columns.remove(self.random.choice(free))
            case 2 if any(c.type in wider for c in columns):
                at = self.random.choice([i for i, c in enumerate(columns) if c.type in wider])
                columns[at] = Column(columns[at].name, wider[columns[at].type])
            case _:
                self._added += 1
                type_ = self.random.choice((INTEGER, VARCHAR, REAL, TIMESTAMPTZ, BOOLEAN))
                columns.append(Column(f"added {self._added}", type_))
        self.schema = Schema(tuple(columns), self.schema.key)
        return self.schema
