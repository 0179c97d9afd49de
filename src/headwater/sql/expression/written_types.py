"""The types of casts, as sqlglot's tree has them."""

from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.types import DataType, Kind
from headwater.sql.expression.problem import Text

_SIMPLE: dict[str, DataType] = {
    "SMALLINT": types.SMALLINT,
    "INT": types.INTEGER,
    "BIGINT": types.BIGINT,
    "FLOAT": types.REAL,
    "DOUBLE": types.DOUBLE,
    "BOOLEAN": types.BOOLEAN,
    "VARCHAR": types.VARCHAR,
    "CHAR": types.VARCHAR,
    "NCHAR": types.VARCHAR,
    "BPCHAR": types.VARCHAR,
    "TEXT": types.VARCHAR,
    "NAME": types.VARCHAR,
    "VARBINARY": types.BYTEA,
    "DATE": types.DATE,
    "TIME": types.TIME,
    "TIMESTAMP": types.TIMESTAMP,
    "TIMESTAMPNTZ": types.TIMESTAMP,
    "TIMESTAMPTZ": types.TIMESTAMPTZ,
    "INTERVAL": types.INTERVAL,
    "JSON": types.JSONB,
    "JSONB": types.JSONB,
    "UUID": types.UUID,
}
_WITH_LENGTH = ("VARCHAR", "CHAR", "NCHAR", "BPCHAR")


def written_type(node: exp.Expr, text: Text) -> tuple[DataType, int | None]:
    """A type, and the n of varchar(n)."""
    if not isinstance(node, exp.DataType):
        text.refuse(f"type {node.sql()} is not supported", node)
    name = getattr(node.this, "name", str(node.this))
    numbers = [_number(each) for each in node.expressions if isinstance(each, exp.DataTypeParam)]
    if name == "ARRAY" and node.expressions:
        return types.list_of(written_type(node.expressions[0], text)[0]), None
    if name == "STRUCT":
        fields = tuple(
            (str(each.this.this).lower(), written_type(each.args["kind"], text)[0])
            for each in node.expressions
        )
        return DataType(Kind.STRUCT, fields=fields), None
    if name in ("DECIMAL", "NUMERIC"):
        return _decimal(numbers), None
    if name in _SIMPLE:
        if numbers and name not in _WITH_LENGTH and numbers != [6]:
            text.refuse(f"type {node.sql('postgres')} is not supported", node)
        length = numbers[0] if numbers and name in _WITH_LENGTH else None
        return _SIMPLE[name], length or (1 if name == "CHAR" else None)
    if name == "USERDEFINED":
        kind = node.args.get("kind")
        shown = kind.name if isinstance(kind, exp.Expr) else str(kind)
        text.mistake(f'type "{shown}" does not exist', node, sqlstate="42704")
    text.refuse(f"type {name.lower()} is not supported", node)


def _number(param: Any) -> int:
    return int(param.this.this)


def _decimal(numbers: list[int]) -> DataType:
    if not numbers:
        return types.NUMERIC
    precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
    if not (1 <= precision <= types.MAX_PRECISION and 0 <= scale <= precision):
        return types.NUMERIC
    return types.decimal(precision, scale)
