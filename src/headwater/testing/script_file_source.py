"""A source that reads a file to which another process appends.

Each line is one transaction, as JSON: by table, a list of changes in commit order. Signs are
those of drawn tables (`testing/pretty.py`).

    {"orders": [["+", {"id": 1, "amount": "10.00"}]], "lines": [["-", {"id": 7}]]}

The position is the number of lines read. A line counts once its newline is there, so a writer
may be killed in the middle of one. Columns that a change leaves out are null; values that JSON
has no word for (decimals, timestamps, bytes, NaN) are text as in `testing/cells.py`.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.cdc.source import SourceBatch
from headwater.errors import SchemaError, SourceUnavailable, UserError
from headwater.model.ids import SourceName
from headwater.model.position import Ordinal
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.model.types import DataType, Kind
from headwater.testing.cells import type_of_arrow, value_of_text, write_value
from headwater.testing.pretty import SIGNS
from headwater.testing.source_contract import SourceContract

_SIGN_OF = {change.value: sign for sign, change in SIGNS.items()}
_READ_AT_ONCE = 1 << 20
_PLAIN: dict[Kind, type | tuple[type, ...]] = {
    Kind.BOOLEAN: bool,
    Kind.SMALLINT: int,
    Kind.INTEGER: int,
    Kind.BIGINT: int,
    Kind.DECIMAL: int,
    Kind.REAL: (int, float),
    Kind.DOUBLE: (int, float),
}


class ScriptFileSource:
    """Follows a file of JSON lines; satisfies `headwater.cdc.source.Source`."""

    def __init__(self, name: str, path: str | Path, tables: Mapping[str, Schema]) -> None:
        self.name = SourceName(name)
        self.schemas = dict(tables)
        self._path = Path(path)
        self._ends = [0]
        """Where each complete line ends, in bytes; the first entry is the beginning."""
        self._contract = SourceContract(self.name)

    @property
    def acknowledged(self) -> str:
        """The highest position that was acknowledged; "0" before the first."""
        return self._contract.acknowledged.encode()

    def restarted(self) -> None:
        """Hear that the reader crashed and may begin again at an older position."""
        self._contract.restarted()

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        """Give the complete lines after a position, about `max_bytes` of them."""
        begin = self._contract.begin_read(after).count
        batch = await asyncio.to_thread(self._collect, begin, max_bytes)
        self._contract.end_read(Ordinal.decode(batch.position))
        return batch

    async def acknowledge(self, position: str) -> None:
        """Hear that everything up to `position` is stored; checked against what was read."""
        self._contract.acknowledge(position)

    async def close(self) -> None:
        """Nothing is held open."""

    def _collect(self, begin: int, max_bytes: int) -> SourceBatch:
        self._find_lines()
        lines = len(self._ends) - 1
        if begin > lines:
            raise UserError(
                f'the file of source "{self.name}" has {lines} lines, but {begin} were read',
                hint="Lines of a script file may only be appended.",
            )
        end = begin
        while end < lines and (
            end == begin or self._ends[end + 1] - self._ends[begin] <= max_bytes
        ):
            end += 1
        with self._path.open("rb") as file:
            file.seek(self._ends[begin])
            text = file.read(self._ends[end] - self._ends[begin])
        changes: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for number, line in enumerate(text.split(b"\n")[:-1], begin + 1):
            if line.strip():
                self._read_line(line, number, changes)
        return SourceBatch(
            position=Ordinal(end).encode(),
            changes={table: self._chunk(table, listed) for table, listed in changes.items()},
            more=end < lines,
        )

    def _find_lines(self) -> None:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._ends[-1]:
                    raise UserError(
                        f'the file of source "{self.name}" has become shorter',
                        hint="Lines of a script file may only be appended.",
                    )
                at = file.seek(self._ends[-1])
                while block := file.read(_READ_AT_ONCE):
                    found = block.find(b"\n")
                    while found >= 0:
                        self._ends.append(at + found + 1)
                        found = block.find(b"\n", found + 1)
                    at += len(block)
        except OSError as error:
            raise SourceUnavailable(
                f'the file of source "{self.name}" cannot be read', detail=str(error)
            ) from error

    def _read_line(
        self, line: bytes, number: int, changes: dict[str, list[tuple[str, Mapping[str, Any]]]]
    ) -> None:
        try:
            for table, listed in json.loads(line).items():
                if table not in self.schemas:
                    raise ValueError(f'there is no table "{table}"')
                schema = self.schemas[table]
                for sign, row in listed:
                    changes.setdefault(table, []).append(
                        (SIGNS[sign].value, {n: _from_json(v, schema, n) for n, v in row.items()})
                    )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SchemaError(
                f'line {number} of the file of source "{self.name}" cannot be read',
                detail=f"{error}",
                hint='A line looks like {"table": [["+", {"column": value}]]}.',
            ) from error

    def _chunk(self, table: str, listed: list[tuple[str, Mapping[str, Any]]]) -> pa.Table:
        columns = {
            column.name: pa.array([row.get(column.name) for _, row in listed], column.type.arrow)
            for column in self.schemas[table].columns
        }
        columns[CHANGE_TYPE] = pa.array([change for change, _ in listed], pa.string())
        return pa.table(columns)


def append_transactions(path: str | Path, *transactions: Mapping[str, pa.Table]) -> None:
    """Write transactions to a script file, each as one line, in one write.

    Replay: not repeatable; a second call is a second set of transactions.
    """
    text = "".join(_line(transaction) for transaction in transactions)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        left = memoryview(text.encode())
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)


def _line(transaction: Mapping[str, pa.Table]) -> str:
    tables: dict[str, list[Any]] = {}
    for table, chunk in transaction.items():
        names = [name for name in chunk.column_names if name != CHANGE_TYPE]
        types = {name: type_of_arrow(chunk.schema.field(name).type) for name in names}
        tables[table] = [
            [
                _SIGN_OF[chunk[CHANGE_TYPE][number].as_py()],
                {
                    name: _to_json(chunk[name][number], types[name])
                    for name in names
                    if chunk[name][number].is_valid
                },
            ]
            for number in range(chunk.num_rows)
        ]
    return json.dumps(tables) + "\n"


def _to_json(scalar: pa.Scalar, type_: DataType) -> Any:
    if not scalar.is_valid:
        return None
    match type_.kind:
        case Kind.BOOLEAN | Kind.SMALLINT | Kind.INTEGER | Kind.BIGINT | Kind.VARCHAR:
            return scalar.as_py()
        case Kind.LIST:
            assert type_.element is not None
            return [_to_json(item, type_.element) for item in scalar.values]
        case Kind.STRUCT:
            pairs = zip(type_.fields, scalar.values(), strict=True)
            return {name: _to_json(value, inner) for (name, inner), value in pairs}
        case _:
            return write_value(scalar, type_)


def _from_json(value: Any, schema: Schema, column: str) -> Any:
    if column not in schema.names:
        raise ValueError(f'there is no column "{column}"')
    try:
        return _typed(value, schema[column].type)
    except ValueError as error:
        raise ValueError(f'column "{column}": {error}') from None


def _typed(value: Any, type_: DataType) -> Any:
    if value is None:
        return None
    if type_.kind is Kind.LIST and isinstance(value, list):
        assert type_.element is not None
        element = type_.element
        return [_typed(item, element) for item in value]
    if type_.kind is Kind.STRUCT and isinstance(value, dict):
        return {name: _typed(value.get(name), inner) for name, inner in type_.fields}
    if isinstance(value, str):
        return value_of_text(value, type_)
    plain = _PLAIN.get(type_.kind)
    if plain is None or not isinstance(value, plain):
        raise ValueError(f"{value!r} is no {type_.postgres}")
    if isinstance(value, bool) is not (type_.kind is Kind.BOOLEAN):
        raise ValueError(f"{value!r} is no {type_.postgres}")
    return value if isinstance(value, bool) else value_of_text(repr(value), type_)
