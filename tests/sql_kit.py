"""The same tables in PostgreSQL and in Spark, and both answers to one query, side by side."""

import datetime
import math
import os
import struct
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.string import TextLoader

from headwater.model.ids import TableId
from headwater.model.schema import Column
from headwater.sql.algebra import Query
from headwater.sql.create_statements import CreateTable
from headwater.sql.parse import parse, parse_one
from headwater.sql.plan import plan_query
from headwater.sql.relations import FixedRelations, Relation
from headwater.sql.statement import Select
from headwater.views.recompute import query_sql

# Spark hands timestamps to Python in the machine's zone.
os.environ["TZ"] = "UTC"

_FAMILY = {
    "int2": "smallint", "int4": "integer", "int8": "bigint", "float4": "real",
    "float8": "double", "numeric": "decimal", "text": "varchar", "varchar": "varchar",
    "bpchar": "varchar", "name": "varchar", "bool": "boolean", "bytea": "bytea", "date": "date",
    "time": "time", "timestamp": "timestamp", "timestamptz": "timestamptz",
    "interval": "interval", "jsonb": "jsonb", "uuid": "uuid", "unknown": "varchar",
}  # fmt: skip


GOLDEN = Path(__file__).resolve().parent / "golden" / "sql"


def expression_cases(name: str) -> dict[str, list[str]]:
    """The expressions of a golden file, by table; the empty name is no table."""
    found: dict[str, list[str]] = {}
    table = ""
    for line in (GOLDEN / name).read_text().splitlines():
        if line.startswith("-- table "):
            table = line.removeprefix("-- table ")
        elif line.strip() and not line.startswith("-- "):
            found.setdefault(table, []).append(line)
    return found


def query_cases(name: str) -> list[tuple[str, str]]:
    """The queries of a golden file, each with the comment line before it, if any."""
    found = []
    for part in (GOLDEN / name).read_text().split(";\n"):
        lines = part.strip().splitlines()
        comments = [line[3:] for line in lines if line.startswith("-- ")]
        text = "\n".join(line for line in lines if not line.startswith("-- "))
        if text:
            found.append((text, comments[-1] if comments else ""))
    return found


def relations_of(ddl: str) -> FixedRelations:
    """The tables of a script, as the planner sees them."""
    found = []
    for number, statement in enumerate(parse(ddl), 1):
        assert isinstance(statement, CreateTable)
        columns = tuple(
            Column(each.name, each.type, each.nullable and each.name not in statement.key)
            for each in statement.columns
        )
        found.append(
            Relation(
                name=statement.name.name, id=TableId(number), columns=columns, key=statement.key
            )
        )
    return FixedRelations(found)


class Pair:
    """PostgreSQL and Spark with the same rows."""

    def __init__(self, spark: Any, url: str, ddl: str) -> None:
        self.spark = spark
        self.relations = relations_of(ddl)
        self.names = {each.id: f"sql_{each.id}" for each in self.relations._found.values()}
        self.connection = psycopg.connect(
            url.replace("+psycopg", ""), autocommit=True, options="-c timezone=UTC"
        )
        for name in ("interval", "jsonb", "uuid", "time"):
            self.connection.adapters.register_loader(name, TextLoader)
        self.connection.execute(ddl)

    def load(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        """The rows into both."""
        from pyspark.sql.types import StructType

        relation = self.relations._found[("public", table)]
        marks = ", ".join(f"%s::{each.type.postgres}" for each in relation.columns)
        with self.connection.cursor() as cursor:
            cursor.executemany(f"insert into {table} values ({marks})", rows)
        schema = StructType.fromDDL(
            ", ".join(f"`{each.name}` {each.type.spark}" for each in relation.columns)
        )
        frame = self.spark.createDataFrame(rows, schema, verifySchema=False)
        frame.coalesce(2).localCheckpoint().createOrReplaceTempView(f"sql_{relation.id}")

    def plan(self, text: str, *, for_view: bool = False) -> Query:
        """Our plan."""
        statement = parse_one(text)
        assert isinstance(statement, Select)
        return plan_query(statement.query, text, self.relations, for_view=for_view)

    def ours(self, text: str, *, for_view: bool = False) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Types and rows by our plan on Spark."""
        query = self.plan(text, for_view=for_view)
        rendered = query_sql(query, self.names)
        types = {output.name: output.type for output in query.plan.outputs}
        frame = self.spark.sql(rendered)
        for (_, name), field in zip(query.visible, frame.schema.fields, strict=True):
            said = types[name].spark.replace("`", "")
            assert field.dataType.simpleString() == said, f"{name}: {said} is {field.dataType}"
        return [types[name].kind.value for _, name in query.visible], [
            tuple(row) for row in frame.collect()
        ]

    def theirs(self, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Types and rows by PostgreSQL."""
        cursor = self.connection.execute(text)
        names = []
        for each in cursor.description or ():
            info = self.connection.adapters.types.get(each.type_code)
            array = info is not None and info.array_oid == each.type_code
            known = info.name if info is not None else "unknown"
            names.append("list" if array else _FAMILY.get(known, known))
        rows = [
            tuple(
                struct.unpack("f", struct.pack("f", cell))[0]
                if kind == "real" and cell is not None
                else cell
                for kind, cell in zip(names, row, strict=True)
            )
            for row in cursor.fetchall()
        ]
        return names, rows

    def close(self) -> None:
        """Leave PostgreSQL."""
        self.connection.close()


def plain(value: Any) -> Any:  # noqa: PLR0911
    """A value in a form that both sides share."""
    match value:
        case datetime.datetime(tzinfo=zone) if zone is not None:
            return value.astimezone(datetime.UTC).replace(tzinfo=None)
        case bytearray():
            return bytes(value)
        case uuid.UUID():
            return str(value)
        case list() | tuple():
            return tuple(plain(each) for each in value)
        case float() if math.isnan(value):
            return "NaN"
        case Decimal():
            return value.normalize() + 0 if value else Decimal(0)
        case _:
            return value


def _tagged(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_tagged(each) for each in value)
    return (type(value).__name__, value)


def close(one: Any, two: Any, digits: int) -> bool:
    """Equal, or numbers that agree to that many digits after the point (or of a float)."""
    if one == two and type(one) is type(two):
        return True
    if isinstance(one, float) and isinstance(two, float):
        return math.isclose(one, two, rel_tol=1e-13, abs_tol=0.0)
    if isinstance(one, Decimal) and isinstance(two, Decimal):
        return abs(one - two) <= Decimal(10) ** -digits * max(1, abs(two))
    if isinstance(one, tuple) and isinstance(two, tuple):
        return len(one) == len(two) and all(map(lambda a, b: close(a, b, digits), one, two))
    return False


def differences(
    ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], *, digits: int = 40
) -> list[str]:
    """Rows that only one side has, in both directions."""
    left = [tuple(plain(each) for each in row) for row in ours]
    right = [tuple(plain(each) for each in row) for row in theirs]
    # Python takes 1, 1.0, True and Decimal(1) for equal; here they are not.
    left = [tuple(_tagged(each) for each in row) for row in left]
    right = [tuple(_tagged(each) for each in row) for row in right]
    one, two = Counter(left), Counter(right)
    only_ours, only_theirs = list((one - two).elements()), list((two - one).elements())
    for row in list(only_ours):
        match = next((each for each in only_theirs if close(row, each, digits)), None)
        if match is not None:
            only_ours.remove(row)
            only_theirs.remove(match)
    return [f"only ours:   {row}" for row in only_ours[:5]] + [
        f"only theirs: {row}" for row in only_theirs[:5]
    ]
