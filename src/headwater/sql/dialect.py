"""The grammar: sqlglot's RisingWave dialect, made to keep what the user wrote.

sqlglot is made for translating between dialects: it turns calls it knows into nodes of its own
and so forgets which PostgreSQL function was called. Here every call stays a name with arguments,
so that `expression/` can say exactly what PostgreSQL would do. Only calls with a syntax of their
own (`CAST(a AS b)`, `EXTRACT(a FROM b)`, ...) keep their nodes.

Every node knows where it stands in the text, and every error says where it was seen.
"""

import re
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.risingwave import RisingWave
from sqlglot.errors import ErrorLevel, TokenError
from sqlglot.errors import ParseError as GrammarError
from sqlglot.parsers.postgres import PostgresParser
from sqlglot.parsers.risingwave import RisingWaveParser
from sqlglot.tokenizer_core import Token, TokenType

from headwater.errors import ParseError
from headwater.sql.place import error_at

_OWN_SYNTAX = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")


_UNITS = frozenset({"YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"})


def _arrow(node: type[exp.Expr]) -> Any:
    return lambda parser, this, path: parser.expression(node(this=this, expression=path))


class _Parser(RisingWaveParser):
    """Calls stay calls, and nodes know their places."""

    FUNCTIONS: ClassVar[dict[str, Any]] = {}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: RisingWaveParser.FUNCTION_PARSERS[name] for name in _OWN_SYNTAX
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: parser
        for name, parser in RisingWaveParser.NO_PAREN_FUNCTION_PARSERS.items()
        if name in ("ANY", "CASE")
    }
    JSON_OPERATORS: ClassVar[dict[Any, Any]] = {
        **PostgresParser.JSON_OPERATORS,
        TokenType.ARROW: _arrow(exp.JSONExtract),
        TokenType.DARROW: _arrow(exp.JSONExtractScalar),
    }
    LAMBDAS: ClassVar[dict[Any, Any]] = {
        TokenType.FARROW: lambda parser, names: parser.expression(
            exp.Kwarg(this=exp.var(names[0].name), expression=parser._parse_assignment())
        ),
    }

    def expression(self, instance: Any, token: Any = None, comments: Any = None) -> Any:
        """Note the place of the last token, unless the node has one already."""
        made = super().expression(instance, token, comments)
        if "start" not in made.meta and self._prev:
            made.update_positions(self._prev)
        return made

    def _parse_type(self, parse_interval: bool = True, fallback_to_identifier: bool = False) -> Any:
        """A literal with its type in front is whole before an operator such as `::` follows."""
        index = self._index
        first = self._curr.token_type
        if (
            not fallback_to_identifier
            and first in self.TYPE_TOKENS
            and first is not TokenType.INTERVAL
        ):
            data_type = self._parse_types(check_func=True, allow_identifiers=False)
            if isinstance(data_type, exp.DataType) and self._match(TokenType.STRING, advance=False):
                literal = self._parse_primary()
                cast = self.expression(exp.Cast(this=literal, to=data_type))
                return self._parse_column_ops(cast)
            self._retreat(index)
        return super()._parse_type(parse_interval, fallback_to_identifier)

    def _parse_interval(
        self, require_interval: bool = True, parse_function_unit: bool = True
    ) -> Any:
        """The text of an interval stays as it is written, with the unit behind it, if any."""
        index = self._index
        if not self._match(TokenType.INTERVAL) or not self._match(TokenType.STRING):
            self._retreat(index)
            return None
        value = exp.Literal.string(self._prev.text).update_positions(self._prev)
        unit = None
        if self._curr and self._curr.text.upper() in _UNITS:
            self._advance()
            unit = exp.var(self._prev.text.upper())
            if self._match_text_seq("TO"):
                if not self._curr or self._curr.text.upper() not in _UNITS:
                    self.raise_error("a unit of time is missing", self._curr)
                self._advance()
                unit = exp.var(self._prev.text.upper())
        return self.expression(exp.Interval(this=value, unit=unit))

    def raise_error(self, message: str, token: Any = None) -> None:
        """Raise at once, with the offset of the token."""
        seen = token or self._curr or None
        error = GrammarError(message)
        error.seen = (  # type: ignore[attr-defined]
            (seen.start, self.sql[seen.start : seen.end + 1]) if seen else None
        )
        raise error


class Grammar(RisingWave):
    """PostgreSQL and RisingWave as Headwater reads them."""

    INDEX_OFFSET = 0

    class Tokenizer(RisingWave.Tokenizer):
        """No word swallows the rest of its statement."""

        COMMANDS: ClassVar[set[Any]] = set()
        # `oid` and `regclass` are names of types like any other, or `oid[]` would not be one.
        KEYWORDS: ClassVar[dict[str, Any]] = {
            word: token
            for word, token in RisingWave.Tokenizer.KEYWORDS.items()
            if token is not TokenType.OBJECT_IDENTIFIER
        }

    Parser = _Parser


_GRAMMAR = Grammar()


def tokens_of(text: str) -> list[Token]:
    """The tokens of a text, or an error that shows where a quote or comment is left open."""
    try:
        return _whole_numbers(list(_GRAMMAR.tokenize(text)), text)
    except TokenError as problem:
        raise error_at(
            ParseError,
            "the text ends inside a quoted string, a quoted name or a comment",
            text,
            len(text),
            hint="Look for a quote without a partner.",
        ) from problem


_NUMBER = re.compile(
    r"(?:[0-9]+(?:_[0-9]+)*)?\.?(?:[0-9]+(?:_[0-9]+)*)?(?:e[+-]?[0-9]+)?|0o_?[0-7]+(?:_[0-7]+)*",
    re.IGNORECASE,
)


def _whole_numbers(tokens: list[Token], text: str) -> list[Token]:
    """`1_000` and `0o17` are one number each, and `1x` is none (not `1 AS x`)."""
    found: list[Token] = []
    for token in tokens:
        last = found[-1] if found else None
        if (
            last is None
            or last.token_type is not TokenType.NUMBER
            or token.start != last.end + 1
            or not (token.text[:1].isalnum() or token.text[:1] == "_")
        ):
            found.append(token)
            continue
        whole = text[last.start : token.end + 1]
        if not _NUMBER.fullmatch(whole):
            raise error_at(
                ParseError, f'trailing junk after numeric literal at or near "{whole}"', text,
                last.start,
            )  # fmt: skip
        plain = whole.replace("_", "")
        digits = str(int(plain, 8)) if plain[:2].lower() == "0o" else plain
        found[-1] = Token(TokenType.NUMBER, digits, last.line, last.col, last.start, token.end)
    return found


def parse_tokens(tokens: list[Token], text: str, into: type[exp.Expr] | None = None) -> exp.Expr:
    """The tree of these tokens, which must be all of one statement or expression."""
    parser = _GRAMMAR.parser(error_level=ErrorLevel.IMMEDIATE)
    end = tokens[-1].end + 1 if tokens else len(text)
    try:
        if into is None:
            trees = parser.parse(tokens, text)
        else:
            trees = parser.parse_into(into, tokens, text)
    except GrammarError as problem:
        raise _shown(problem, text, end) from problem
    except RecursionError as problem:
        raise error_at(
            ParseError,
            "the statement is nested too deeply",
            text,
            tokens[0].start,
            hint="Write long lists with IN, and deep subqueries as WITH clauses.",
            sqlstate="54001",
        ) from problem
    found = [tree for tree in trees if tree is not None]
    if len(found) != 1:
        raise error_at(ParseError, "something is missing here", text, end)
    if isinstance(found[0], exp.Command):
        raise error_at(
            ParseError, f'syntax error at or near "{tokens[0].text}"', text, tokens[0].start
        )
    return found[0]


def _shown(problem: GrammarError, text: str, end: int) -> ParseError:
    cause: BaseException | None = problem
    while cause is not None and not hasattr(cause, "seen"):
        cause = cause.__cause__
    seen = getattr(cause, "seen", None)
    if seen is None:
        return error_at(ParseError, "syntax error at end of input", text, end)
    start, word = seen
    return error_at(ParseError, f'syntax error at or near "{word}"', text, start)
