"""COPY streams, written: each row one message, as text, CSV or binary."""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.pgwire.answers import BINARY, TEXT, message
from headwater.pgwire.copy_stream import SIGNATURE
from headwater.pgwire.rows import cells, line_messages, sized_rows
from headwater.pgwire.session import CopyOptions, ResultColumn

TRAILER = b"\xff\xff"

_ESCAPES = (
    ("\\", "\\\\"),
    ("\b", "\\b"),
    ("\f", "\\f"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    ("\v", "\\v"),
)


class CopyWriter:
    """Batches in, messages out: `head` once, `rows` for each batch, `end` once."""

    def __init__(self, options: CopyOptions, columns: Sequence[ResultColumn], zone: str) -> None:
        self._options = options
        self._columns = columns
        self._zone = zone
        self._code = BINARY if options.format == "binary" else TEXT
        self._csv = options.format == "csv"
        self._delimiter = options.delimiter or ("," if self._csv else "\t")
        self._null = options.null if options.null is not None else "" if self._csv else "\\N"
        self._head = SIGNATURE + bytes(8) if self._code == BINARY else b""

    @property
    def code(self) -> int:
        """The format of all columns, as a number."""
        return self._code

    def head(self) -> bytes:
        """The line with the names, where one is wanted."""
        if not self._options.header or self._code == BINARY:
            return b""
        names = pa.array([column.name for column in self._columns], pa.string())
        line = self._delimiter.join(self._spelled(names).to_pylist()) + "\n"
        return message(b"d", line.encode())

    def rows(self, batch: pa.RecordBatch) -> bytes | memoryview:
        """The rows of a batch."""
        formats = [self._code] * len(self._columns)
        encoded = cells(batch, self._columns, formats, self._zone)
        if self._code == BINARY:
            messages = sized_rows(encoded, batch.num_rows, b"d")
            return self._with_head(messages)
        texts = [
            self._spelled(column.cast(pa.string())).fill_null(self._null) for column in encoded
        ]
        if not texts:
            empty = message(b"d", b"\n")
            return empty * int(batch.num_rows)
        lines = pc.binary_join_element_wise(*texts, self._delimiter)
        return line_messages(pc.binary_join_element_wise(lines, "\n", "").cast(pa.binary()))

    def end(self) -> bytes:
        """What binary data says at its end."""
        if self._code != BINARY:
            return b""
        head, self._head = self._head, b""
        return message(b"d", head, TRAILER)

    def _with_head(self, messages: memoryview) -> bytes | memoryview:
        """Readers expect the signature in the same message as the first row."""
        if not self._head or not messages:
            return messages
        first = int.from_bytes(messages[1:5], "big") + 1
        head, self._head = self._head, b""
        return message(b"d", head, bytes(messages[5:first])) + bytes(messages[first:])

    def _spelled(self, texts: pa.Array) -> pa.Array:
        return self._csv_spelled(texts) if self._csv else self._text_spelled(texts)

    def _text_spelled(self, texts: pa.Array) -> pa.Array:
        for char, escaped in _ESCAPES:
            texts = pc.replace_substring(texts, char, escaped)
        if self._delimiter != "\t":
            texts = pc.replace_substring(texts, self._delimiter, "\\" + self._delimiter)
        return texts

    def _csv_spelled(self, texts: pa.Array) -> pa.Array:
        quote, escape = self._options.quote, self._options.escape or self._options.quote
        special = "".join(re.escape(char) for char in (quote, self._delimiter))
        # Alone on its line, a backslash and a dot would end the stream.
        end = r"|^\\\.$" if len(self._columns) == 1 else ""
        needed = pc.match_substring_regex(texts, f"[{special}\r\n]{end}")
        needed = pc.or_(needed, pc.equal(texts, self._null))
        quoted = texts
        for char in dict.fromkeys((escape, quote)):
            quoted = pc.replace_substring(quoted, char, escape + char)
        return pc.if_else(needed, pc.binary_join_element_wise(quote, quoted, quote, ""), texts)
