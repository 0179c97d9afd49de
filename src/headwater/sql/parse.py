"""Text to statements.

A text may hold many statements between semicolons. The first words of each decide who reads it:
queries and data changes go to sqlglot whole, everything else is read here word by word, with
sqlglot for the queries, expressions and defaults inside. So every statement of RisingWave that
sqlglot does not know has an exact syntax error too.
"""

import itertools
import re
from collections.abc import Callable

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from headwater.errors import NotSupported, ParseError
from headwater.sql.alter_statements import read_alter, read_comment, read_drop
from headwater.sql.copy_statement import read_copy
from headwater.sql.create_statements import read_create
from headwater.sql.data_statements import read_delete, read_insert, read_query, read_update
from headwater.sql.dialect import parse_tokens, tokens_of
from headwater.sql.place import Place, error_at
from headwater.sql.session_statements import (
    read_cancel,
    read_describe,
    read_discard,
    read_reset,
    read_savepoint,
    read_set,
    read_show,
    read_transaction,
    read_wait,
)
from headwater.sql.statement import Explain, Flush, Options, Recover, Statement, Written
from headwater.sql.token_reader import TokenReader

Read = Callable[[TokenReader, Written], Statement]

_LONGEST = 10 << 20
_MOST_TOKENS = 250_000
_SURELY_FEW = 200_000
_QUOTED = re.compile(r"'[^']*'")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_BEGINS_LIST = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.SELECT})
_ENDS_LIST = frozenset(
    {
        TokenType.COMMA,
        TokenType.R_PAREN,
        TokenType.R_BRACKET,
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.ORDER_BY,
        TokenType.HAVING,
        TokenType.LIMIT,
    }
)


def parse(text: str) -> list[Statement]:
    """All statements of a text, in order; empty ones are left out."""
    if len(text) > _LONGEST:
        raise ParseError(
            f"the text is {len(text):,} characters long",
            detail=f"At most {_LONGEST:,} are read at once.",
            hint="Load rows with COPY, or send the statements one by one.",
            sqlstate="54000",
        )
    # Counted before anything is taken apart, which takes seconds for megabytes of numbers.
    if len(text) > _SURELY_FEW and len(_TOKEN.findall(_QUOTED.sub("''", text))) > _MOST_TOKENS:
        raise ParseError(
            f"the text has more than {_MOST_TOKENS:,} words and signs",
            hint="Load rows with COPY, or send the statements one by one.",
            sqlstate="54000",
        )
    return [_read(tokens, text) for tokens in _split(tokens_of(text)) if tokens]


def parse_one(text: str) -> Statement:
    """The only statement of a text."""
    statements = parse(text)
    if len(statements) != 1:
        raise ParseError(f"expected one statement, found {len(statements)}")
    return statements[0]


def parse_expression(text: str) -> exp.Expr:
    """One expression, for example a stored default."""
    return parse_tokens(tokens_of(text), text, exp.Expr)


def _split(tokens: list[Token]) -> list[list[Token]]:
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.token_type is TokenType.SEMICOLON:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _refuse_stray_comma(tokens: list[Token], text: str) -> None:
    """Refuse a list with nothing before, between or after its commas; sqlglot skips those."""
    for before, token in itertools.pairwise(tokens):
        comma = before.token_type is TokenType.COMMA and token.token_type in _ENDS_LIST
        if comma or (token.token_type is TokenType.COMMA and before.token_type in _BEGINS_LIST):
            raise error_at(ParseError, f'syntax error at or near "{token.text}"', text, token.start)
    if tokens[-1].token_type is TokenType.COMMA:
        raise error_at(ParseError, "syntax error at end of input", text, tokens[-1].end + 1)


def _read(tokens: list[Token], text: str) -> Statement:
    _refuse_stray_comma(tokens, text)
    start, end = tokens[0].start, tokens[-1].end + 1
    place = Place(start, end, text.count("\n", 0, start) + 1)
    # Positions in errors count from the beginning of the whole text, as drivers expect.
    return _statement(TokenReader(tokens, text), Written(text=text[start:end], place=place))


def _statement(reader: TokenReader, written: Written) -> Statement:
    first = reader.peek()
    word = first.text.upper() if first is not None else ""
    if word == "EXPLAIN":
        return _explain(reader, written)
    read = _READERS.get(word)
    if read is None:
        if word in _REFUSED:
            raise reader.error(NotSupported, f"{word} is not supported", hint=_REFUSED[word])
        raise reader.error(ParseError)
    try:
        statement = read(reader, written)
    except RecursionError as problem:
        raise error_at(
            ParseError,
            "the statement is nested too deeply",
            reader.text,
            written.place.start,
            sqlstate="54001",
        ) from problem
    reader.end()
    return statement


def _explain(reader: TokenReader, written: Written) -> Explain:
    reader.expect("EXPLAIN")
    options: list[tuple[str, str]] = []
    if reader.take("("):
        while True:
            name = reader.word("an option").lower()
            plain = reader.before(",") or reader.before(")")
            options.append((name, "true" if plain else reader.value().lower()))
            if not reader.take(","):
                break
        reader.expect(")")
    for name in ("ANALYZE", "VERBOSE", "INCREMENTAL", "LOGICAL", "PHYSICAL", "TRACE"):
        if reader.take(name):
            options.append((name.lower(), "true"))
    inner_start = reader.offset
    inner = Written(
        text=reader.text[inner_start : written.place.end],
        place=Place(inner_start, written.place.end, written.place.line),
    )
    made: Options = tuple(options)
    return Explain(
        text=written.text, place=written.place, options=made, statement=_statement(reader, inner)
    )


def _flush(reader: TokenReader, written: Written) -> Statement:
    reader.expect("FLUSH")
    return Flush(text=written.text, place=written.place)


def _recover(reader: TokenReader, written: Written) -> Statement:
    reader.expect("RECOVER")
    return Recover(text=written.text, place=written.place)


_READERS: dict[str, Read] = {
    **dict.fromkeys(("SELECT", "WITH", "VALUES", "(", "TABLE"), read_query),
    "INSERT": read_insert,
    "UPDATE": read_update,
    "DELETE": read_delete,
    "CREATE": read_create,
    "ALTER": read_alter,
    "DROP": read_drop,
    "COMMENT": read_comment,
    "SET": read_set,
    "SHOW": read_show,
    "RESET": read_reset,
    **dict.fromkeys(("DESCRIBE", "DESC"), read_describe),
    "FLUSH": _flush,
    "WAIT": read_wait,
    "RECOVER": _recover,
    "CANCEL": read_cancel,
    **dict.fromkeys(("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT"), read_transaction),
    **dict.fromkeys(("SAVEPOINT", "RELEASE"), read_savepoint),
    "COPY": read_copy,
    **dict.fromkeys(("DISCARD", "DEALLOCATE", "CLOSE", "UNLISTEN"), read_discard),
}

_REFUSED = {
    "TRUNCATE": "Use DELETE FROM t.",
    "MERGE": "Use INSERT into a table that is created with ON CONFLICT DO UPDATE.",
    "GRANT": "There are no privileges; every session is its own superuser.",
    "REVOKE": "There are no privileges; every session is its own superuser.",
    "VACUUM": "Storage is cleaned by itself.",
    "ANALYZE": "Statistics are kept by itself.",
    "PREPARE": "Use the protocol's prepared statements.",
    "EXECUTE": "Use the protocol's prepared statements.",
    "DECLARE": "Use the protocol's portals.",
    "FETCH": "Use the protocol's portals.",
    "LOCK": "Readers never block writers.",
    "DO": "There is no procedural language.",
    "CALL": "There are no procedures.",
    "LISTEN": "Read a table's changes instead.",
    "NOTIFY": "Read a table's changes instead.",
}
