"""CREATE of tables, views, indexes, sources, sinks and schemas."""

from collections.abc import Callable

from sqlglot import exp

from headwater.errors import NotSupported, ParseError
from headwater.sql.sink_format import SinkFormat
from headwater.sql.statement import (
    ColumnDefinition,
    Conflict,
    CreateIndex,
    CreateMaterializedView,
    CreateSchema,
    CreateSink,
    CreateSource,
    CreateTable,
    CreateView,
    Include,
    ObjectName,
    Options,
    Statement,
    Written,
)
from headwater.sql.token_reader import TokenReader
from headwater.sql.type_names import read_type

_COLUMN_WORDS = (
    "NOT", "NULL", "DEFAULT", "PRIMARY", "GENERATED", "AS", "UNIQUE", "REFERENCES", "CHECK",
    "CONSTRAINT", "COLLATE",
)  # fmt: skip


def read_create(reader: TokenReader, written: Written) -> Statement:
    """CREATE of any kind."""
    reader.expect("CREATE")
    replace = reader.take("OR", "REPLACE")
    for words, read in _KINDS:
        if reader.take(*words):
            if replace and read not in (_view, _materialized_view):
                raise reader.error(
                    NotSupported,
                    f"CREATE OR REPLACE {' '.join(words)} is not supported",
                    hint="DROP it first.",
                )
            return read(reader, written, replace)
    token = reader.peek()
    what = token.text.upper() if token else ""
    if what in _REFUSED:
        raise reader.error(NotSupported, f"CREATE {what} is not supported", hint=_REFUSED[what])
    raise reader.error(ParseError)


def _if_not_exists(reader: TokenReader) -> bool:
    return reader.take("IF", "NOT", "EXISTS")


def read_options(reader: TokenReader) -> Options:
    """WITH (name = value, ...), if it comes next; a name given twice is refused."""
    if not reader.take("WITH"):
        return ()
    return options_in_parentheses(reader)


def options_in_parentheses(reader: TokenReader) -> Options:
    """(name = value, ...)."""
    found: dict[str, str] = {}
    reader.expect("(")
    while not reader.before(")"):
        offset = reader.offset
        name = reader.name("an option")
        while reader.take("."):
            name += "." + reader.name("an option")
        reader.expect("=")
        if name in found:
            raise reader.error_at(ParseError, f'option "{name}" is given twice', offset)
        found[name] = _option_value(reader)
        if not reader.take(","):
            break
    reader.expect(")")
    return tuple(found.items())


def _option_value(reader: TokenReader) -> str:
    tokens = reader.until(",", ")")
    if not tokens:
        raise reader.error(ParseError, hint="Expected a value.")
    if len(tokens) == 1:
        return str(tokens[0].text)
    return reader.text[tokens[0].start : tokens[-1].end + 1]


def _query(reader: TokenReader, *stops: str) -> exp.Query:
    reader.expect("AS")
    offset = reader.offset
    query = reader.tree(reader.until(*stops) if stops else reader.rest())
    if isinstance(query, exp.Subquery):
        query = query.unnest()
    if not isinstance(query, exp.Query | exp.Values | exp.Table):
        raise reader.error_at(ParseError, "expected a query", offset)
    return query  # type: ignore[return-value]


def _table(reader: TokenReader, written: Written, _: bool) -> Statement:
    if_not_exists = _if_not_exists(reader)
    name = reader.object_name()
    columns: list[ColumnDefinition] = []
    key: list[str] = []
    all_columns = False
    if reader.take("("):
        if reader.take("*"):
            all_columns = True
            if reader.take(","):
                read_columns(reader, columns, key)
            reader.expect(")")
        else:
            read_columns(reader, columns, key)
            reader.expect(")")
    made = _TableClauses()
    made.read(reader)
    query = _query(reader) if reader.before("AS") else None
    if not columns and not all_columns and query is None and made.source is None:
        raise reader.error(ParseError, hint="A table needs columns.")
    if made.includes and made.source is None:
        message = "INCLUDE is only supported for tables of a source"
        hint = "CREATE TABLE t (*) INCLUDE TIMESTAMP AS changed_at FROM source TABLE 'name'"
        raise reader.error_at(NotSupported, message, made.includes[0].offset, hint=hint)
    return CreateTable(
        text=written.text, place=written.place, name=name, columns=tuple(columns),
        key=tuple(key), conflict=made.conflict, append_only=made.append_only,
        if_not_exists=if_not_exists, options=made.options, includes=tuple(made.includes),
        all_columns=all_columns, source=made.source, upstream=made.upstream, query=query,
        format=made.format,
    )  # fmt: skip


class _TableClauses:
    """The clauses after the columns, in any order."""

    def __init__(self) -> None:
        self.conflict: Conflict | None = None
        self.append_only = False
        self.options: Options = ()
        self.includes: list[Include] = []
        self.source: ObjectName | None = None
        self.upstream: str | None = None
        self.format = ""

    def read(self, reader: TokenReader) -> None:
        """Read clauses until none follows."""
        while not reader.done and not reader.before("AS"):
            if reader.take("APPEND", "ONLY"):
                self.append_only = True
            elif reader.take("ON", "CONFLICT"):
                self.conflict = _conflict(reader)
            elif reader.before("WITH"):
                self.options = (*self.options, *read_options(reader))
            elif reader.take("INCLUDE"):
                offset = reader.offset
                kind = reader.word("what the source knows of a row").lower()
                name = reader.name() if reader.take("AS") else ""
                self.includes.append(Include(kind, name, offset))
            elif reader.take("FROM"):
                self.source = reader.object_name()
                reader.expect("TABLE")
                self.upstream = reader.string()
            elif reader.before("FORMAT"):
                self.format = read_format(reader)
            else:
                raise reader.error(ParseError)


def _conflict(reader: TokenReader) -> Conflict:
    reader.take("DO")
    if reader.take("UPDATE"):
        partial = reader.take("IF", "NOT", "NULL")
        return Conflict.UPDATE_IF_NOT_NULL if partial else Conflict.UPDATE
    if reader.take("OVERWRITE"):
        return Conflict.UPDATE
    if reader.take("NOTHING") or reader.take("IGNORE"):
        return Conflict.NOTHING
    if reader.take("ERROR"):
        return Conflict.ERROR
    raise reader.error(ParseError, hint="Expected UPDATE, NOTHING, IGNORE or OVERWRITE.")


def read_columns(reader: TokenReader, columns: list[ColumnDefinition], key: list[str]) -> None:
    """Columns and constraints, separated by commas, up to the closing parenthesis."""
    while True:
        offset = reader.offset
        if reader.take("CONSTRAINT"):
            reader.name()
        if reader.before("PRIMARY", "KEY"):
            reader.expect("PRIMARY", "KEY")
            _set_key(reader, key, reader.names(), offset)
        elif reader.before("WATERMARK", "FOR"):
            raise reader.error(NotSupported, "watermarks are not supported")
        elif reader.before("UNIQUE", "(") or reader.before("FOREIGN", "KEY"):
            raise reader.error(NotSupported, "only PRIMARY KEY constraints are supported")
        elif reader.before("CHECK", "("):
            raise reader.error(NotSupported, "CHECK constraints are not supported")
        else:
            column, is_key = read_column(reader)
            if any(column.name == other.name for other in columns):
                raise reader.error_at(
                    ParseError,
                    f'column "{column.name}" specified more than once',
                    offset,
                    sqlstate="42701",
                )
            columns.append(column)
            if is_key:
                _set_key(reader, key, (column.name,), offset)
        if not reader.take(","):
            break
    known = {column.name for column in columns}
    for name in key:
        if columns and name not in known:
            message = f'column "{name}" named in key does not exist'
            raise reader.error_at(ParseError, message, reader.offset, sqlstate="42703")


def _set_key(reader: TokenReader, key: list[str], names: tuple[str, ...], offset: int) -> None:
    if key:
        raise reader.error_at(
            ParseError, "multiple primary keys are not allowed", offset, sqlstate="42P16"
        )
    key.extend(names)


def read_column(reader: TokenReader) -> tuple[ColumnDefinition, bool]:
    """A column, and whether it says PRIMARY KEY itself."""
    name = reader.name("a column")
    written = read_type(reader)
    nullable, is_key = True, False
    default: exp.Expr | None = None
    generated: exp.Expr | None = None
    while not (reader.done or reader.before(",") or reader.before(")")):
        if reader.take("CONSTRAINT"):
            reader.name()
        if reader.take("NOT", "NULL"):
            nullable = False
        elif reader.take("NULL"):
            nullable = True
        elif reader.take("PRIMARY", "KEY"):
            is_key, nullable = True, False
        elif reader.take("DEFAULT"):
            default = reader.tree(reader.until(",", *_COLUMN_WORDS), exp.Expr)
        elif reader.take("GENERATED", "ALWAYS", "AS", "("):
            generated = reader.tree(reader.until(")"), exp.Expr)
            reader.expect(")")
            if not reader.take("STORED"):
                reader.take("VIRTUAL")
        elif reader.before("GENERATED"):
            raise reader.error(NotSupported, "identity columns are not supported")
        elif reader.take("AS"):
            generated = reader.tree(reader.until(",", *_COLUMN_WORDS), exp.Expr)
        else:
            raise _refused_constraint(reader)
    return (
        ColumnDefinition(
            name=name, type=written.type, nullable=nullable, default=default,
            generated=generated, length=written.length,
        ),
        is_key,
    )  # fmt: skip


def _refused_constraint(reader: TokenReader) -> ParseError:
    for words in ("UNIQUE", "REFERENCES", "CHECK", "COLLATE"):
        if reader.before(words):
            return reader.error(NotSupported, f"{words} on a column is not supported")
    return reader.error(ParseError)


def read_format(reader: TokenReader) -> str:
    """FORMAT a ENCODE b (...), as text: the connectors read it."""
    tokens = reader.until("AS", "WITH") if reader.before("FORMAT") else []
    return reader.text[tokens[0].start : tokens[-1].end + 1] if tokens else ""


def _sink_format(reader: TokenReader) -> SinkFormat:
    """FORMAT a ENCODE b (...) of a sink."""
    if not reader.take("FORMAT"):
        return SinkFormat()
    form = reader.name("a format").lower()
    reader.expect("ENCODE")
    encode = reader.name("an encoding").lower()
    options = options_in_parentheses(reader) if reader.before("(") else ()
    if reader.before("KEY"):
        raise reader.error(
            NotSupported, "KEY ENCODE is not supported", hint="Keys are JSON of the key's columns."
        )
    return SinkFormat(format=form, encode=encode, options=options)


def _columns_of_view(reader: TokenReader) -> tuple[str, ...]:
    return reader.names() if reader.before("(") else ()


def _view(reader: TokenReader, written: Written, replace: bool) -> Statement:
    if replace and reader.before("IF", "NOT", "EXISTS"):
        raise reader.error(ParseError, hint="Choose between OR REPLACE and IF NOT EXISTS.")
    if_not_exists = _if_not_exists(reader)
    name = reader.object_name()
    columns = _columns_of_view(reader)
    options = read_options(reader)
    return CreateView(
        text=written.text,
        place=written.place,
        name=name,
        columns=columns,
        or_replace=replace,
        if_not_exists=if_not_exists,
        options=options,
        query=_query(reader),
    )


def _materialized_view(reader: TokenReader, written: Written, replace: bool) -> Statement:
    if replace and reader.before("IF", "NOT", "EXISTS"):
        raise reader.error(ParseError, hint="Choose between OR REPLACE and IF NOT EXISTS.")
    if_not_exists = _if_not_exists(reader)
    name = reader.object_name()
    columns = _columns_of_view(reader)
    options = read_options(reader)
    return CreateMaterializedView(
        text=written.text,
        place=written.place,
        name=name,
        columns=columns,
        or_replace=replace,
        if_not_exists=if_not_exists,
        options=options,
        query=_query(reader),
    )


def _index(reader: TokenReader, written: Written, _: bool, unique: bool = False) -> Statement:
    reader.take("CONCURRENTLY")
    if_not_exists = _if_not_exists(reader)
    name = None if reader.before("ON") else reader.object_name()
    reader.expect("ON")
    table = reader.object_name()
    if reader.take("USING"):
        reader.word("an access method")
    reader.expect("(")
    columns = []
    while True:
        columns.append(reader.tree(reader.until(",", ")"), exp.Ordered))
        if not reader.take(","):
            break
    reader.expect(")")
    include = reader.names() if reader.take("INCLUDE") else ()
    if reader.take("DISTRIBUTED", "BY"):
        reader.expect("(")
        reader.until(")")
        reader.expect(")")
    if reader.before("WHERE"):
        raise reader.error(NotSupported, "partial indexes are not supported")
    return CreateIndex(
        text=written.text,
        place=written.place,
        name=name,
        table=table,
        columns=tuple(columns),
        include=include,
        unique=unique,
        if_not_exists=if_not_exists,
        options=read_options(reader),
    )


def _unique_index(reader: TokenReader, written: Written, replace: bool) -> Statement:
    return _index(reader, written, replace, unique=True)


def _source(reader: TokenReader, written: Written, _: bool) -> Statement:
    if_not_exists = _if_not_exists(reader)
    name = reader.object_name()
    columns: list[ColumnDefinition] = []
    key: list[str] = []
    if reader.take("("):
        if not reader.take("*"):
            read_columns(reader, columns, key)
        reader.expect(")")
    options = read_options(reader)
    return CreateSource(
        text=written.text,
        place=written.place,
        name=name,
        options=options,
        key=tuple(key),
        columns=tuple(columns),
        if_not_exists=if_not_exists,
        format=read_format(reader),
    )


def _sink(reader: TokenReader, written: Written, _: bool) -> Statement:
    if_not_exists = _if_not_exists(reader)
    name = reader.object_name()
    into = None
    into_columns: tuple[str, ...] = ()
    if reader.take("INTO"):
        into = reader.object_name()
        into_columns = reader.names() if reader.before("(") else ()
    relation = reader.object_name() if reader.take("FROM") else None
    query, query_text = None, ""
    if relation is None:
        tokens_before = reader.at
        reader.expect("AS")
        # A query may begin with WITH; the sink's own WITH comes after it.
        if reader.before("WITH"):
            reader.at += 1
        body = reader.until("WITH", "FORMAT")
        reader.at = tokens_before + 1
        size = len(body) + (1 if reader.before("WITH") else 0)
        tokens = reader.tokens[reader.at : reader.at + size]
        query = reader.tree(tokens)
        query_text = reader.text[tokens[0].start : tokens[-1].end + 1]
        reader.at += size
    options = read_options(reader)
    return CreateSink(
        text=written.text,
        place=written.place,
        name=name,
        options=options,
        into=into,
        into_columns=into_columns,
        from_relation=relation,
        query=query,
        query_text=query_text,
        if_not_exists=if_not_exists,
        format=_sink_format(reader),
    )


def _schema(reader: TokenReader, written: Written, _: bool) -> Statement:
    if_not_exists = _if_not_exists(reader)
    name = reader.object_name()
    if reader.take("AUTHORIZATION"):
        reader.name()
    return CreateSchema(
        text=written.text, place=written.place, name=name.name, if_not_exists=if_not_exists
    )


_Reader = Callable[[TokenReader, Written, bool], Statement]
_KINDS: tuple[tuple[tuple[str, ...], _Reader], ...] = (
    (("TABLE",), _table),
    (("MATERIALIZED", "VIEW"), _materialized_view),
    (("VIEW",), _view),
    (("UNIQUE", "INDEX"), _unique_index),
    (("INDEX",), _index),
    (("SOURCE",), _source),
    (("SINK",), _sink),
    (("SCHEMA",), _schema),
)

_REFUSED = {
    "DATABASE": "There is one database, dev.",
    "USER": "There is one user, root.",
    "ROLE": "There is one user, root.",
    "FUNCTION": "Functions of your own are not supported.",
    "AGGREGATE": "Aggregates of your own are not supported.",
    "TYPE": "Use struct<...> in a column.",
    "SEQUENCE": "Give rows their keys when they are inserted.",
    "TEMP": "Use a view.",
    "TEMPORARY": "Use a view.",
    "TRIGGER": "Use a materialized view.",
    "EXTENSION": "There are no extensions.",
    "SUBSCRIPTION": "Read a table's changes instead.",
    "CONNECTION": "Write the options in CREATE SOURCE or CREATE SINK.",
    "SECRET": "Write the options in CREATE SOURCE or CREATE SINK.",
}
