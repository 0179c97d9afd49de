r"""Regular expressions: PostgreSQL's, as Java's.

Both flavours share most of their signs. Translated are `$` (the very end), the dot (any
character), `\y \Y \m \M \Z`, character classes and what Java reads differently inside brackets.
A pattern has to be a constant, so that a wrong one is an error when the query is planned.

Where text is taken out (not only looked for), PostgreSQL takes the longest match of an
alternation and Java the first: alternatives are put in order where they are plain texts, allowed
where they begin differently, and refused otherwise. So is a mix of greedy and lazy quantifiers.
"""

import re
from dataclasses import dataclass

from headwater.sql.expression.problem import Text
from headwater.sql.expression.typed import Typed, string_literal

_CLASSES = {
    "alpha": "a-zA-Z", "digit": "0-9", "alnum": "a-zA-Z0-9", "space": r"\s", "upper": "A-Z",
    "lower": "a-z", "punct": r"\p{Punct}", "xdigit": "0-9a-fA-F", "blank": r" \t",
    "cntrl": r"\p{Cntrl}", "print": r"\p{Print}", "graph": r"\p{Graph}", "word": r"\w",
}  # fmt: skip
_ESCAPES = {
    "y": r"\b", "Y": r"\B", "m": r"\b(?=\w)", "M": r"\b(?<=\w)", "Z": r"\z", "A": r"\A",
    "a": r"\x07", "e": r"\x1b", "B": r"\\", "b": r"\x08", "v": r"\x0B",
}  # fmt: skip
_PLAIN_ESCAPES = set("dDwWsSnrtf0123456789xuc")
_LITERAL = re.compile(r"[^\\.^$|?*+(){}\[\]]+")


class _Unknown(Exception):
    """Something that has no certain counterpart."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression in Java's spelling, and how many groups it captures."""

    java: str
    groups: int
    flags: str

    @property
    def text(self) -> str:
        """As a Spark literal."""
        return string_literal(f"(?{self.flags}){self.java}" if self.flags else self.java)

    def with_prefix(self) -> str:
        """A pattern that matches everything up to and including the first match, as a literal."""
        shifted = re.sub(r"(?<!\\)((?:\\\\)*)\\([1-9])",
                         lambda m: f"{m[1]}\\{int(m[2]) + 1}", self.java)  # fmt: skip
        flags = f"(?{self.flags})" if self.flags else ""
        return string_literal(f"{flags}\\A((?s:.*?))(?:{shifted})")

    @property
    def may_be_empty(self) -> bool:
        """Whether it may match nothing at all."""
        plain = self.java.replace(r"\z", r"\Z").replace(r"\p{Punct}", "!").replace("++", "+")
        try:
            return re.match(plain, "") is not None
        except re.error:
            return True


def pattern_of(
    value: Typed, text: Text, node: object, *, flags: str = "", taken_out: bool = False
) -> Pattern:
    """The pattern that a constant is; `taken_out` when the matched text matters."""
    constant = value.literal if value.type is None else value.constant
    if constant is None:
        text.refuse(
            "a regular expression must be a constant", node, hint="Use LIKE, or position()."
        )
    found = re.match(r"\(\?([a-z]+)\)", constant)
    if found:
        constant, flags = constant[found.end() :], flags + found[1]
    constant = constant.removeprefix("***:")
    if constant.startswith("***=") or "q" in flags:
        return Pattern(re.escape(constant.removeprefix("***=")), 0, _java_flags(flags, text, node))
    try:
        java, groups = _Translation(constant, lines="n" in flags or "m" in flags).run()
        if taken_out:
            java = _certain(java)
    except (_Unknown, IndexError):
        text.refuse(f"the regular expression {constant!r} is not supported", node)
    return Pattern(java, groups, _java_flags(flags, text, node))


def _java_flags(flags: str, text: Text, node: object) -> str:
    if not set(flags) <= set("gicnmsq"):
        text.refuse(f"the regular expression flags {flags!r} are not supported", node)
    java = "md" if "n" in flags or "m" in flags else "s"
    return java + ("i" if "i" in flags else "")


class _Translation:
    """One walk over a pattern."""

    def __init__(self, pattern: str, *, lines: bool) -> None:
        self.pattern, self.lines = pattern, lines
        self.at, self.groups = 0, 0

    def run(self) -> tuple[str, int]:
        """Java's spelling, and the number of groups."""
        out = ""
        while self.at < len(self.pattern):
            out += self._one()
        try:
            re.compile(out.replace(r"\z", r"\Z").replace(r"\p{", "[{").replace("Punct}", "Punct}]"))
        except re.error:
            raise _Unknown from None
        return out, self.groups

    def _one(self) -> str:
        sign = self.pattern[self.at]
        if sign == "\\":
            return self._escape()
        if sign == "[":
            return self._brackets()
        self.at += 1
        if sign == "$" and not self.lines:
            return r"\z"
        if sign == "(":
            return self._group()
        if sign == "{" and not self.pattern[self.at : self.at + 1].isdigit():
            return r"\{"
        if sign in "*+?}" and self.pattern[self.at : self.at + 1] in ("+", "*"):
            raise _Unknown
        return sign

    def _escape(self) -> str:
        letter = self.pattern[self.at + 1]
        self.at += 2
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        if letter.isalnum() and letter not in _PLAIN_ESCAPES:
            raise _Unknown
        return "\\" + letter

    def _group(self) -> str:
        rest = self.pattern[self.at :]
        for start in ("?:", "?=", "?!", "?<=", "?<!"):
            if rest.startswith(start):
                self.at += len(start)
                return "(" + start
        if rest.startswith("?"):
            raise _Unknown
        self.groups += 1
        return "("

    def _brackets(self) -> str:
        self.at += 1
        out = "["
        if self.pattern[self.at] == "^":
            out += "^"
            self.at += 1
        first = True
        while first or self.pattern[self.at] != "]":
            out += self._in_brackets()
            first = False
        self.at += 1
        return out + "]"

    def _in_brackets(self) -> str:
        found = re.match(r"\[:(\w+):\]", self.pattern[self.at :])
        if found:
            if found[1] not in _CLASSES:
                raise _Unknown
            self.at += found.end()
            return _CLASSES[found[1]]
        sign = self.pattern[self.at]
        if sign == "\\":
            return self._escape()
        self.at += 1
        if sign == "[" and self.pattern[self.at] in ".=:":
            raise _Unknown
        return "\\" + sign if sign in "[]&~" else sign


def _certain(java: str) -> str:
    """The pattern, if both flavours take the same text out with it."""
    bare = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "x", java)
    lazy = len(re.findall(r"(?:[*+?}])\?", bare))
    greedy = len(re.findall(r"[*+?}](?!\?)", re.sub(r"[*+?}]\?|\(\?", "", bare)))
    if lazy and greedy:
        raise _Unknown
    return _ordered(java) if "|" in bare else java


def _ordered(java: str) -> str:
    """Alternatives of plain texts, longest first; others must begin differently."""
    opening = re.search(r"\((?:\?:)?([^()]*)\)", java)
    start, end = (opening.start(1), opening.end(1)) if opening else (0, len(java))
    body = java[start:end]
    if "|" not in body or "|" in java[:start] + java[end:]:
        raise _Unknown
    parts = body.split("|")
    if all(_LITERAL.fullmatch(part) for part in parts):
        parts.sort(key=len, reverse=True)
    elif len({part[:1] for part in parts}) < len(parts) or any(
        part[:1] in "\\.[(^" for part in parts
    ):
        raise _Unknown
    return java[:start] + "|".join(parts) + java[end:]


def similar(value: str, escape: str = "\\") -> str:
    """A pattern of SIMILAR TO as a regular expression of PostgreSQL's."""
    out, at = "", 0
    while at < len(value):
        sign = value[at]
        at += 1
        if sign == escape and at < len(value):
            out += re.escape(value[at])
            at += 1
        elif sign == "[":
            end = value.index("]", at + 1)
            out += value[at - 1 : end + 1]
            at = end + 1
        else:
            out += {"%": ".*", "_": ".", ".": r"\.", "^": r"\^", "$": r"\$"}.get(sign, sign)
    return f"^(?:{out})$"
