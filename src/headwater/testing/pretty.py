"""Draw change tables as text, so that a test shows its data.

    chunk = from_pretty('''
           id I   name T   amount D(10,2)
      +    7      ann      10.00
      U-   7      ann      10.00
      U+   7      "ann b"  20.00
      -    8      .        .
    ''')

The first line names the columns and their types (letters: `testing/cells.py`). Every other
line is one change: `+` insert, `-` delete, `U-` and `U+` the two halves of an update, then one
value per column. A dot is null. How many spaces there are means nothing.

With a `schema` the first line holds names only; columns that it leaves out are null.
`rows_from_pretty` reads rows without a change in front. `to_pretty` draws either back, and
reading what it drew gives an equal table.
"""

import itertools
import json

import pyarrow as pa

from headwater.errors import SchemaError
from headwater.model.change import ChangeType
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Schema
from headwater.model.types import DataType
from headwater.testing.cells import (
    Scanner,
    read_type,
    read_value,
    type_of_arrow,
    write_type,
    write_value,
    write_word,
)

SIGNS: dict[str, ChangeType] = {
    "+": ChangeType.INSERT,
    "-": ChangeType.DELETE,
    "U-": ChangeType.UPDATE_PREIMAGE,
    "U+": ChangeType.UPDATE_POSTIMAGE,
}
_SIGN_OF = {change.value: sign for sign, change in SIGNS.items()}


def from_pretty(text: str, schema: Schema | None = None) -> pa.Table:
    """Read changes: the columns, and `_change_type` after them."""
    return _read(text, schema, changes=True)


def rows_from_pretty(text: str, schema: Schema | None = None) -> pa.Table:
    """Read rows that have no change in front."""
    return _read(text, schema, changes=False)


def to_pretty(table: pa.Table, schema: Schema | None = None) -> str:
    """Draw changes, or rows where there is no `_change_type`.

    With `schema` the types are drawn as the schema has them; Arrow alone cannot tell a uuid
    from a varchar.
    """
    names = [name for name in table.column_names if name != CHANGE_TYPE]
    drawn: list[list[str]] = []
    if CHANGE_TYPE in table.column_names:
        signs = [_sign(change) for change in table[CHANGE_TYPE].to_pylist()]
        drawn.append(["", *signs])
    for name in names:
        type_ = schema[name].type if schema else type_of_arrow(table.schema.field(name).type)
        header = f"{write_word(name)} {write_type(type_)}"
        drawn.append([header, *(write_value(cell, type_) for cell in table[name])])
    widths = [max(map(len, column)) for column in drawn]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*drawn, strict=True)
    )
    return "\n".join(lines) + "\n"


def columns_from_pretty(header: str) -> tuple[tuple[str, DataType], ...]:
    """Read `id I  name T` as names and types."""
    scanner = Scanner(header)
    columns = []
    try:
        while not scanner.done:
            name, _ = scanner.word()
            if scanner.done:
                raise ValueError(f'column "{name}" has no type')
            columns.append((name, read_type(scanner)))
    except (ValueError, SchemaError) as error:
        raise SchemaError(
            "the first line of a drawn table cannot be read",
            detail=f"{error} (in {header.strip()!r})",
            hint="It holds a name and a type for each column, such as: id I  name T.",
        ) from None
    return tuple(columns)


def columns_to_pretty(columns: tuple[tuple[str, DataType], ...]) -> str:
    """The opposite of `columns_from_pretty`."""
    return "  ".join(f"{write_word(name)} {write_type(type_)}" for name, type_ in columns)


def _sign(change: str | None) -> str:
    if change is None or change not in _SIGN_OF:
        raise SchemaError(
            f"{change!r} is no change type", detail=f"Change types: {', '.join(_SIGN_OF)}."
        )
    return _SIGN_OF[change]


def _read(text: str, schema: Schema | None, *, changes: bool) -> pa.Table:
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise SchemaError(
            "a drawn table is empty", hint="Its first line names columns and types: id I  name T."
        )
    drawn = _names_of_schema(lines[0][1], schema) if schema else columns_from_pretty(lines[0][1])
    if not drawn:
        raise SchemaError("a drawn table needs at least one column")
    if twice := {name for name, count in _counts(drawn) if count > 1}:
        raise SchemaError(f"a column is drawn twice: {', '.join(sorted(twice))}")
    columns: dict[str, list[object]] = {name: [] for name, _ in drawn}
    signs: list[str] = []
    for number, line in lines[1:]:
        scanner = Scanner(line)
        if changes:
            signs.append(_read_sign(scanner, number))
        for name, type_ in drawn:
            columns[name].append(_read_cell(scanner, name, type_, number))
        if not scanner.done:
            raise SchemaError(
                f"line {number} has more values than columns",
                detail=f"After the last column comes {line[scanner.at :].strip()!r}.",
                hint="Put text with spaces in double quotes.",
            )
    arrays: dict[str, pa.Array] = {
        name: pa.array(columns[name], type=type_.arrow) for name, type_ in drawn
    }
    if schema:
        count = len(lines) - 1
        arrays = {
            column.name: arrays.get(column.name, pa.nulls(count, column.type.arrow))
            for column in schema.columns
        }
    if changes:
        arrays[CHANGE_TYPE] = pa.array(signs, type=pa.string())
    return pa.table(arrays)


def _counts(drawn: tuple[tuple[str, DataType], ...]) -> list[tuple[str, int]]:
    names = sorted(name for name, _ in drawn)
    return [(name, len(list(group))) for name, group in itertools.groupby(names)]


def _names_of_schema(header: str, schema: Schema) -> tuple[tuple[str, DataType], ...]:
    scanner = Scanner(header)
    columns = []
    while not scanner.done:
        name, _ = scanner.word()
        if name not in schema.names:
            raise SchemaError(
                f'column "{name}" is not in the schema',
                detail=f"Columns: {', '.join(schema.names)}.",
                hint="With a schema, the first line holds names without types.",
            )
        columns.append((name, schema[name].type))
    return tuple(columns)


def _read_sign(scanner: Scanner, number: int) -> str:
    scanner.skip_spaces()
    sign, _ = scanner.word()
    if sign not in SIGNS:
        raise SchemaError(
            f"line {number} begins with {sign!r}, which is no change",
            detail=f"Changes: {', '.join(SIGNS)}.",
            hint="Use rows_from_pretty for rows without changes.",
        )
    return SIGNS[sign].value


def _read_cell(scanner: Scanner, name: str, type_: DataType, number: int) -> object:
    try:
        value: object = read_value(scanner, type_)
    except json.JSONDecodeError as error:
        raise SchemaError(
            f'line {number}, column "{name}": quoted text does not end or has a bad escape',
            detail=str(error),
        ) from None
    except ValueError as error:
        raise SchemaError(f'line {number}, column "{name}": {error}') from None
    return value
