"""COPY streams, read: text, CSV and binary data cut into rows, whatever pieces it arrives in.

Rows become columns of strings in PostgreSQL's input spelling, null where the stream says so.
A row with too few or too many columns is refused with 22P04 and its line number. Memory is
bounded by one piece of the stream plus the longest row.
"""

import re
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from headwater.model.types import DataType
from headwater.pgwire.messages import utf8
from headwater.pgwire.oids import oid_of
from headwater.pgwire.parameters import binary_text
from headwater.pgwire.session import CopyOptions
from headwater.pgwire.violation import WireError

SIGNATURE = b"PGCOPY\n\xff\r\n\x00"
MOST_ROW_BYTES = 64 << 20

_SIMPLE = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9A-Fa-f]{1,2})|(.))", re.DOTALL)

Row = Sequence[str | None]


class CopyReader(Protocol):
    """Pieces in, rows out."""

    def feed(self, data: bytes) -> list[Row]:
        """The rows that are whole now."""
        ...

    def finish(self) -> list[Row]:
        """The rows that the end of the stream completes."""
        ...


def reader_of(options: CopyOptions, types: Sequence[DataType]) -> CopyReader:
    """The reader for a stream's format."""
    if options.format == "binary":
        return BinaryReader(types)
    if options.format == "csv":
        return CsvReader(options, len(types))
    return TextReader(options, len(types))


def as_batch(rows: Sequence[Row], names: Sequence[str]) -> pa.RecordBatch:
    """Rows as columns of strings."""
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    schema = pa.schema([pa.field(name, pa.string()) for name in names])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Lines:
    """Cuts bytes into lines."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[str]:
        end = data.rfind(b"\n") + 1
        whole = b"".join([*self._rest, data[:end]]) if end else b""
        if end:
            self._rest, self._held = [], 0
        if end < len(data):
            self._rest.append(data[end:])
            self._held += len(data) - end
        if self._held > MOST_ROW_BYTES:
            raise WireError("a line of the COPY data is too long", "54000")
        return utf8(whole).split("\n")[:-1] if end else []

    def finish(self) -> list[str]:
        rest = b"".join(self._rest)
        self._rest = []
        return [utf8(rest)] if rest else []


class TextReader:
    r"""COPY's own text format: columns by tabs, specials by backslashes, null as \N."""

    def __init__(self, options: CopyOptions, columns: int) -> None:
        self._lines = _Lines()
        self._delimiter = options.delimiter or "\t"
        self._null = "\\N" if options.null is None else options.null
        self._columns = columns
        self._skip_header = options.header
        self._line = 0
        self._pending = ""
        self._ended = False

    def feed(self, data: bytes) -> list[Row]:
        """The rows that are whole now."""
        return self._rows(self._lines.feed(data))

    def finish(self) -> list[Row]:
        """The rows that the end of the stream completes."""
        return self._rows(self._lines.finish())

    def _rows(self, lines: list[str]) -> list[Row]:
        rows: list[Row] = []
        for whole in lines:
            self._line += 1
            line = whole.removesuffix("\r")
            if self._pending or _ends_escaped(line):
                # A line break that is escaped belongs to the value.
                line = self._pending + line
                self._pending = line + "\n" if _ends_escaped(line) else ""
                if self._pending:
                    continue
            if line == "\\.":
                self._ended = True
            if self._ended:
                continue
            if self._skip_header:
                self._skip_header = False
                continue
            rows.append(self._split(line))
        return rows

    def _split(self, line: str) -> Row:
        parts = line.split(self._delimiter)
        if "\\" in line:
            parts = _rejoined(parts, self._delimiter)
            row: Row = [None if part == self._null else _unescaped(part) for part in parts]
        else:
            row = [None if part == self._null else part for part in parts]
        if len(row) != self._columns and not (self._columns == 0 and line == ""):
            raise _wrong_count(self._line, len(row), self._columns)
        return row[: self._columns]


class CsvReader:
    """Comma-separated values: quotes make a value text, without them empty is null."""

    def __init__(self, options: CopyOptions, columns: int) -> None:
        self._lines = _Lines()
        self._delimiter = options.delimiter or ","
        self._quote = options.quote
        self._null = options.null or ""
        self._columns = columns
        self._skip_header = options.header
        self._line = 0
        self._pending: list[str] = []
        self._pending_bytes = 0
        self._open = False
        self._ended = False
        quote, escape = re.escape(self._quote), re.escape(options.escape or self._quote)
        inside = f"[^{quote}{escape}]+|{escape}[{quote}{escape}]"
        if quote != escape:
            inside += f"|{escape}(?![{quote}{escape}])"
        bare = f"[^{quote}{re.escape(self._delimiter)}]+"
        self._piece = re.compile(f"{quote}((?:{inside})*){quote}|({bare})", re.DOTALL)
        self._unescape = re.compile(f"{escape}([{quote}{escape}])")
        self._closing = re.compile(f"(?:{inside})*{quote}")
        self._simple_quotes = quote == escape

    def feed(self, data: bytes) -> list[Row]:
        """The rows that are whole now."""
        return self._rows(self._lines.feed(data))

    def finish(self) -> list[Row]:
        """The rows that the end of the stream completes."""
        rows = self._rows(self._lines.finish())
        if self._open and not self._ended:
            raise WireError("unterminated CSV quoted field", "22P04")
        return rows

    def _rows(self, lines: list[str]) -> list[Row]:
        rows: list[Row] = []
        for line in lines:
            self._line += 1
            if self._ended:
                continue
            self._pending.append(line)
            self._pending_bytes += len(line)
            if self._pending_bytes > MOST_ROW_BYTES:
                raise WireError("a row of the COPY data is too long", "54000")
            self._open = self._open_after(line)
            if self._open:
                continue
            row = "\n".join(self._pending).removesuffix("\r")
            self._pending, self._pending_bytes = [], 0
            if row == "\\.":
                self._ended = True
            elif self._skip_header:
                self._skip_header = False
            else:
                rows.append(self._split(row))
        return rows

    def _open_after(self, line: str) -> bool:
        """Whether a quoted value goes on after this line."""
        if self._simple_quotes:
            return self._open ^ bool(line.count(self._quote) % 2)
        inside, at = self._open, 0
        while True:
            if inside:
                closing = self._closing.match(line, at)
                if closing is None:
                    return True
                at = closing.end()
            opening = line.find(self._quote, at)
            if opening < 0:
                return False
            inside, at = True, opening + 1

    def _split(self, line: str) -> Row:
        row: list[str | None] = []
        if self._quote not in line:
            row = [None if part == self._null else part for part in line.split(self._delimiter)]
        else:
            at = 0
            while True:
                value, at = self._value(line, at)
                row.append(value)
                if at >= len(line):
                    break
                at += len(self._delimiter)
        if len(row) != self._columns:
            raise _wrong_count(self._line, len(row), self._columns)
        return row

    def _value(self, line: str, at: int) -> tuple[str | None, int]:
        """A value, which may be quoted in parts, and where its delimiter is."""
        parts: list[str] = []
        quoted = False
        while at < len(line) and not line.startswith(self._delimiter, at):
            match = self._piece.match(line, at)
            if match is None:
                raise WireError("unterminated CSV quoted field", "22P04")
            if match[1] is not None:
                quoted = True
                parts.append(self._unescape.sub(r"\1", match[1]))
            else:
                parts.append(match[2])
            at = match.end()
        value = "".join(parts)
        return (None if not quoted and value == self._null else value), at


class BinaryReader:
    """COPY's binary format, each value spelled out by the type of its column."""

    def __init__(self, types: Sequence[DataType]) -> None:
        self._types = [(oid_of(type_), type_) for type_ in types]
        self._buffer = bytearray()
        self._started = False
        self._ended = False
        self._row = 0

    def feed(self, data: bytes) -> list[Row]:
        """The rows that are whole now."""
        self._buffer += data
        if not self._started and not self._start():
            return []
        rows: list[Row] = []
        at = 0
        while not self._ended and (found := self._next(at)) is not None:
            row, at = found
            rows.append(row)
        del self._buffer[:at]
        if len(self._buffer) > MOST_ROW_BYTES:
            raise WireError("a row of the COPY data is too long", "54000")
        return rows

    def finish(self) -> list[Row]:
        """Nothing: binary data says itself where it ends."""
        if not self._ended and (self._buffer or not self._started):
            raise WireError("unexpected end of COPY data", "22P04")
        return []

    def _start(self) -> bool:
        if len(self._buffer) < 19:
            return False
        if not self._buffer.startswith(SIGNATURE):
            raise WireError("COPY file signature not recognized", "22P04")
        extension = int.from_bytes(self._buffer[15:19], "big")
        if extension > 65_536:
            raise WireError("invalid COPY file header", "22P04")
        if len(self._buffer) < 19 + extension:
            return False
        del self._buffer[: 19 + extension]
        self._started = True
        return True

    def _next(self, at: int) -> tuple[Row, int] | None:
        if len(self._buffer) < at + 2:
            return None
        count = int.from_bytes(self._buffer[at : at + 2], "big", signed=True)
        at += 2
        if count == -1:
            self._ended = True
            self._buffer.clear()
            return None
        self._row += 1
        if count != len(self._types):
            raise _wrong_count(self._row, count, len(self._types))
        row: list[str | None] = []
        for oid, type_ in self._types:
            if len(self._buffer) < at + 4:
                self._row -= 1
                return None
            size = int.from_bytes(self._buffer[at : at + 4], "big", signed=True)
            at += 4
            if size == -1:
                row.append(None)
                continue
            if size < 0:
                raise WireError("invalid size of a value in the COPY data", "22P04")
            if len(self._buffer) < at + size:
                self._row -= 1
                return None
            row.append(binary_text(bytes(self._buffer[at : at + size]), oid, type_))
            at += size
        return row, at


def _ends_escaped(line: str) -> bool:
    """Whether an odd number of backslashes ends the line."""
    return line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _rejoined(parts: Sequence[str], delimiter: str) -> list[str]:
    """The parts, with those put together again whose delimiter was escaped."""
    whole: list[str] = []
    for part in parts:
        if whole and _ends_escaped(whole[-1]):
            whole[-1] += delimiter + part
        else:
            whole.append(part)
    return whole


def _unescaped(part: str) -> str:
    """The value of a part; several escaped bytes may make up one character."""
    return utf8(_ESCAPE.sub(_special, part.encode())) if "\\" in part else part


def _special(match: "re.Match[bytes]") -> bytes:
    octal, hexadecimal, char = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal:
        return bytes([int(hexadecimal, 16)])
    return _SIMPLE.get(char, char)


def _wrong_count(line: int, found: int, wanted: int) -> WireError:
    if found > wanted:
        return WireError(
            "extra data after last expected column", "22P04", detail=f"COPY line {line}"
        )
    return WireError(
        f"missing data for column {found + 1} of {wanted}", "22P04", detail=f"COPY line {line}"
    )
