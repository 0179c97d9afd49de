"""Queries, INSERT, UPDATE and DELETE: read by sqlglot, then checked for what would be lost.

sqlglot's tree may hold clauses that a value here has no room for; each is refused by name, so
that nothing the user wrote is silently dropped.
"""

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from headwater.errors import NotSupported, ParseError
from headwater.sql.statement import (
    Delete,
    Insert,
    ObjectName,
    Select,
    Statement,
    Update,
    Written,
)
from headwater.sql.token_reader import TokenReader


def identifier(node: exp.Expr) -> str:
    """A name as PostgreSQL folds it."""
    if isinstance(node, exp.Identifier):
        return str(node.this) if node.args.get("quoted") else str(node.this).lower()
    return identifier(node.this)


def object_name(table: exp.Table) -> ObjectName:
    """The name of a table in a tree."""
    schema, database = table.args.get("db"), table.args.get("catalog")
    return ObjectName(
        identifier(table.this),
        identifier(schema) if schema else None,
        identifier(database) if database else None,
    )


def read_query(reader: TokenReader, written: Written) -> Statement:
    """A SELECT, VALUES, WITH or TABLE."""
    start = reader.offset
    tokens = reader.rest()
    query = reader.tree(tokens)
    if isinstance(query, exp.Subquery) and not query.args.get("with_"):
        query = query.unnest() if not query.args.get("alias") else query
    if isinstance(query, exp.Insert | exp.Update | exp.Delete):
        raise reader.error_at(
            NotSupported,
            "WITH before a data change is not supported",
            start,
            hint="Write the WITH clause inside the query.",
        )
    if not isinstance(query, exp.Query | exp.Values | exp.Table):
        raise reader.error_at(ParseError, "this is not a query", start)
    return Select(text=written.text, place=written.place, query=query)  # type: ignore[arg-type]


def read_insert(reader: TokenReader, written: Written) -> Statement:
    """INSERT INTO t [(columns)] VALUES | SELECT | DEFAULT VALUES [RETURNING ...]."""
    reader.expect("INSERT", "INTO")
    table = reader.object_name()
    columns: tuple[str, ...] = ()
    if reader.before("(") and not (
        reader.before("SELECT", ahead=1)
        or reader.before("WITH", ahead=1)
        or reader.before("VALUES", ahead=1)
        or reader.before("(", ahead=1)
    ):
        columns = reader.names()
    query = None
    if not reader.take("DEFAULT", "VALUES"):
        start = reader.offset
        body = reader.until("RETURNING", "ON")
        # A query may hold ON in its joins: only ON CONFLICT ends it.
        while not reader.done and reader.before("ON") and not reader.before("ON", "CONFLICT"):
            reader.at += 1
            body = [*body, reader.tokens[reader.at - 1], *reader.until("RETURNING", "ON")]
        query = reader.tree(body)
        if not isinstance(query, exp.Query | exp.Values):
            raise reader.error_at(ParseError, "expected VALUES or a query", start)
    if reader.before("ON", "CONFLICT"):
        raise reader.error(
            NotSupported,
            "INSERT ... ON CONFLICT is not supported",
            hint="Say what a conflict does in CREATE TABLE ... ON CONFLICT DO UPDATE | NOTHING.",
        )
    return Insert(
        text=written.text,
        place=written.place,
        table=table,
        columns=columns,
        query=query,
        returning=_returning(reader),
    )


def _returning(reader: TokenReader) -> tuple[exp.Expr, ...]:
    if not reader.take("RETURNING"):
        return ()
    token = reader.peek(-1)
    assert token is not None
    # RETURNING has the grammar of a select list, so it is read as one.
    select = type(token)(TokenType.SELECT, "SELECT", token.line, token.col, token.start, token.end)
    return tuple(reader.tree([select, *reader.rest()]).expressions)


def _alias(reader: TokenReader, *stops: str) -> str | None:
    if reader.take("AS"):
        return reader.name()
    if reader.done or any(reader.before(stop) for stop in stops):
        return None
    return reader.name()


def read_update(reader: TokenReader, written: Written) -> Statement:
    """UPDATE t [alias] SET c = e, ... [WHERE p] [RETURNING ...]."""
    reader.expect("UPDATE")
    table = reader.object_name()
    alias = _alias(reader, "SET")
    reader.expect("SET")
    assignments: list[tuple[str, exp.Expr | None]] = []
    while True:
        assignments.extend(_assignment(reader))
        if not reader.take(","):
            break
    if reader.before("FROM"):
        raise reader.error(
            NotSupported,
            "UPDATE ... FROM is not supported",
            hint="Use a subquery in SET, or WHERE key IN (SELECT ...).",
        )
    return Update(
        text=written.text,
        place=written.place,
        table=table,
        alias=alias,
        assignments=tuple(assignments),
        where=_where(reader),
        returning=_returning(reader),
    )


def _assignment(reader: TokenReader) -> list[tuple[str, exp.Expr | None]]:
    if reader.before("("):
        names = reader.names()
        reader.expect("=")
        reader.take("ROW")
        reader.expect("(")
        values: list[exp.Expr | None] = []
        while True:
            values.append(_assigned(reader, ",", ")"))
            if not reader.take(","):
                break
        reader.expect(")")
        if len(names) != len(values):
            raise reader.error(ParseError, "number of columns does not match number of values")
        return list(zip(names, values, strict=True))
    name = reader.name("a column")
    reader.expect("=")
    return [(name, _assigned(reader, ",", "WHERE", "RETURNING", "FROM"))]


def _assigned(reader: TokenReader, *stops: str) -> exp.Expr | None:
    tokens = reader.until(*stops)
    if len(tokens) == 1 and tokens[0].text.upper() == "DEFAULT":
        return None
    return reader.tree(tokens, exp.Expr)  # type: ignore[no-any-return]


def _where(reader: TokenReader) -> exp.Expr | None:
    if not reader.take("WHERE"):
        return None
    return reader.tree(reader.until("RETURNING"), exp.Expr)  # type: ignore[no-any-return]


def read_delete(reader: TokenReader, written: Written) -> Statement:
    """DELETE FROM t [alias] [WHERE p] [RETURNING ...]."""
    reader.expect("DELETE", "FROM")
    table = reader.object_name()
    alias = _alias(reader, "WHERE", "RETURNING", "USING")
    if reader.before("USING"):
        raise reader.error(
            NotSupported,
            "DELETE ... USING is not supported",
            hint="Use WHERE key IN (SELECT ...).",
        )
    return Delete(
        text=written.text,
        place=written.place,
        table=table,
        alias=alias,
        where=_where(reader),
        returning=_returning(reader),
    )
