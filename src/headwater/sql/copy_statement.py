"""COPY t [(columns)] FROM STDIN and COPY t | (query) TO STDOUT, with their options."""

from headwater.errors import NotSupported
from headwater.sql.data_statements import read_query
from headwater.sql.statement import Copy, ObjectName, Select, Statement, Written
from headwater.sql.token_reader import TokenReader

_FLAGS = ("HEADER", "CSV", "BINARY", "FREEZE")


def read_copy(reader: TokenReader, written: Written) -> Statement:
    """COPY, in the new spelling with parentheses and in the old one without."""
    reader.expect("COPY")
    table: ObjectName | None = None
    columns: tuple[str, ...] = ()
    query = None
    if reader.take("("):
        found = read_query(TokenReader(reader.until(")"), reader.text), written)
        assert isinstance(found, Select)
        query = found.query
        reader.expect(")")
    else:
        table = reader.object_name()
        if reader.before("("):
            columns = reader.names()
    incoming = query is None and reader.take("FROM")
    if not incoming:
        reader.expect("TO")
    if not reader.take("STDIN" if incoming else "STDOUT"):
        raise reader.error(
            NotSupported,
            "only COPY FROM STDIN and COPY TO STDOUT are supported",
            hint="With psql, \\copy reads and writes files of the client.",
        )
    return Copy(
        text=written.text,
        place=written.place,
        table=table,
        columns=columns,
        query=query,
        incoming=incoming,
        options=_options(reader),
    )


def _options(reader: TokenReader) -> tuple[tuple[str, str], ...]:
    reader.take("WITH")
    found: list[tuple[str, str]] = []
    if reader.take("("):
        while True:
            name = reader.word("an option").lower()
            plain = reader.before(",") or reader.before(")")
            found.append((name, "true" if plain else reader.value()))
            if not reader.take(","):
                break
        reader.expect(")")
        return tuple(found)
    while not reader.done:
        name = reader.word("an option").upper()
        if name in _FLAGS:
            found.append(("header", "true") if name == "HEADER" else ("format", name.lower()))
        else:
            reader.take("AS")
            found.append((name.lower(), reader.string()))
    return tuple(found)
