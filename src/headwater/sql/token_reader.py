"""A reader over tokens, for the statements that sqlglot's grammar does not have.

Words are compared by their text, so it does not matter which words sqlglot takes for keywords,
nor that it takes some pairs (`PRIMARY KEY`) for one: the reader sees two words of one token.
"""

from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from headwater.errors import ParseError
from headwater.sql.dialect import parse_tokens
from headwater.sql.place import Problem, error_at
from headwater.sql.statement import ObjectName

_OPEN = {"(", "[", "CASE"}
_CLOSE = {")", "]", "END"}


class _Part:
    """One word of a token that has several."""

    __slots__ = ("end", "first", "start", "text", "token_type", "whole")

    def __init__(self, whole: Token, text: str, start: int, first: bool) -> None:
        self.whole = whole
        self.text = text
        self.token_type = whole.token_type
        self.start = start
        self.end = start + len(text) - 1
        self.first = first


def _words(token: Token) -> list[Any]:
    if _quoted(token) or not _word(token.text) or len(parts := token.text.split()) == 1:
        return [token]
    found, at = [], 0
    for place, part in enumerate(parts):
        at = token.text.index(part, at)
        found.append(_Part(token, part, token.start + at, place == 0))
        at += len(part)
    return found


class TokenReader:
    """The tokens of one statement, and how far they are read."""

    def __init__(self, tokens: list[Token], text: str) -> None:
        self.tokens = [word for token in tokens for word in _words(token)]
        self.text = text
        self.at = 0
        self._open_angles = 0

    def peek(self, ahead: int = 0) -> Any:
        """The next token, or one further on."""
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else None

    @property
    def done(self) -> bool:
        """Whether everything is read."""
        return self.at >= len(self.tokens)

    @property
    def offset(self) -> int:
        """Where the next token begins in the text."""
        token = self.peek()
        if token is not None:
            return int(token.start)
        return int(self.tokens[-1].end) + 1 if self.tokens else len(self.text)

    def before(self, *words: str, ahead: int = 0) -> bool:
        """Whether the next tokens are these words."""
        for place, word in enumerate(words):
            token = self.peek(ahead + place)
            if token is None or _quoted(token) or token.text.upper() != word.upper():
                return False
        return True

    def take(self, *words: str) -> bool:
        """Read these words, if they come next."""
        if not self.before(*words):
            return False
        self.at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Read these words; anything else is a syntax error."""
        for word in words:
            if not self.take(word):
                raise self.error(ParseError, hint=f"Expected {word}.")

    def name(self, what: str = "a name") -> str:
        """An identifier: folded to lower case unless quoted."""
        token = self.peek()
        if token is None or token.token_type in (TokenType.STRING, TokenType.NUMBER):
            raise self.error(ParseError, hint=f"Expected {what}.")
        if token.token_type is not TokenType.IDENTIFIER and not _word(token.text):
            raise self.error(ParseError, hint=f"Expected {what}.")
        self.at += 1
        text = str(token.text)
        return text if token.token_type is TokenType.IDENTIFIER else text.lower()

    def word(self, what: str) -> str:
        """An unquoted word."""
        token = self.peek()
        if token is None or not _word(token.text):
            raise self.error(ParseError, hint=f"Expected {what}.")
        self.at += 1
        return str(token.text)

    def object_name(self) -> ObjectName:
        """A name with up to two qualifiers."""
        parts = [self.name()]
        while self.take("."):
            parts.append(self.name())
        if len(parts) > 3:
            raise self.error(ParseError, f"too many parts in the name {'.'.join(parts)}")
        padded: list[str | None] = [None] * (3 - len(parts)) + list(parts)
        return ObjectName(parts[-1], padded[1], padded[0])

    def names(self) -> tuple[str, ...]:
        """Names between parentheses."""
        self.expect("(")
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        self.expect(")")
        return tuple(found)

    def string(self) -> str:
        """A quoted string."""
        token = self.peek()
        if token is None or token.token_type is not TokenType.STRING:
            raise self.error(ParseError, hint="Expected a quoted string.")
        self.at += 1
        return str(token.text)

    def at_number(self) -> bool:
        """Whether a number comes next."""
        token = self.peek()
        return token is not None and token.token_type is TokenType.NUMBER

    def number(self) -> int:
        """A whole number."""
        token = self.peek()
        if token is None or token.token_type is not TokenType.NUMBER or not token.text.isdigit():
            raise self.error(ParseError, hint="Expected a whole number.")
        self.at += 1
        return int(token.text)

    def value(self) -> str:
        """A setting's value: a string, a number with sign, or words, as text."""
        sign = "-" if self.take("-") else ""
        token = self.peek()
        if token is None:
            raise self.error(ParseError, hint="Expected a value.")
        self.at += 1
        if token.token_type is TokenType.STRING:
            return str(token.text)
        return sign + str(token.text)

    def close_angle(self) -> None:
        """Read one `>`, also when two or three stand together."""
        if self._open_angles:
            self._open_angles -= 1
            return
        if self.take(">"):
            return
        if self.take(">>"):
            self._open_angles = 1
            return
        self.expect(">")

    def rest(self) -> list[Any]:
        """All tokens that are left."""
        left = self.tokens[self.at :]
        self.at = len(self.tokens)
        return left

    def until(self, *words: str) -> list[Any]:
        """The tokens before the first of these words (or commas) outside of parentheses and CASE.

        The FROM of ``IS DISTINCT FROM`` begins no clause.
        """
        start, depth, last = self.at, 0, ""
        while (token := self.peek()) is not None:
            if depth == 0 and any(self.before(word) for word in words):
                if not (self.before("FROM") and last == "DISTINCT"):
                    break
            word = "" if _quoted(token) else token.text.upper()
            if last != ".":
                depth += (word in _OPEN) - (word in _CLOSE)
            if depth < 0:
                break
            self.at, last = self.at + 1, word
        return self.tokens[start : self.at]

    def tree(self, tokens: list[Any], into: type[exp.Expr] | None = None) -> Any:
        """What sqlglot makes of these tokens."""
        if not tokens:
            raise self.error(ParseError)
        whole = [token for token in tokens if not isinstance(token, _Part) or token.first]
        return parse_tokens(
            [token.whole if isinstance(token, _Part) else token for token in whole],
            self.text,
            into,
        )

    def end(self) -> None:
        """Refuse what is left over."""
        if not self.done:
            raise self.error(ParseError)

    def error(self, kind: type[Problem], message: str = "", *, hint: str = "") -> Problem:
        """An error at the next token."""
        if not message:
            token = self.peek()
            message = (
                f'syntax error at or near "{self.text[token.start : token.end + 1]}"'
                if token
                else "syntax error at end of input"
            )
        return error_at(kind, message, self.text, self.offset, hint=hint)

    def error_at(
        self,
        kind: type[Problem],
        message: str,
        offset: int | None,
        *,
        hint: str = "",
        sqlstate: str = "",
    ) -> Problem:
        """An error at a place read before."""
        return error_at(kind, message, self.text, offset, hint=hint, sqlstate=sqlstate)


def _quoted(token: Token) -> bool:
    return token.token_type in (TokenType.STRING, TokenType.IDENTIFIER)


def _word(text: str) -> bool:
    return bool(text) and (text[0].isalpha() or text[0] == "_")
