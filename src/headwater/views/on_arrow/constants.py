"""Constants that only Spark can compute, such as a date minus an interval: asked for once.

A query has such a constant in its text, epoch after epoch. `with_constants` puts a call of
`CONSTANT` in its place, and says which values are still to be asked for (`Unknown`). Only
functions that are listed here make constants: what depends on the clock or on chance never does.
"""

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp

_PLAIN = (
    exp.Literal, exp.Boolean, exp.Cast, exp.TryCast, exp.DataType, exp.DataTypeParam, exp.Paren,
    exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div,
)  # fmt: skip
_FUNCTIONS = ("make_interval",)
_MOST = 10_000
CONSTANT = "_hw_constant"
"""The function that stands for a constant; its argument is the constant's text."""

CONSTANTS: dict[str, pa.Scalar | None] = {}
"""By text: the value that Spark gave; None when it is none that Arrow can take over."""


class Unknown(Exception):
    """Texts whose values have to be asked for."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__(", ".join(texts))
        self.texts = tuple(texts)


def with_constants(tree: exp.Expr) -> exp.Expr:
    """The tree with known constants in place; raises `Unknown` when some are not known yet."""
    unknown: list[str] = []
    for node in _constants(tree):
        text = node.sql("spark")
        if text not in CONSTANTS:
            unknown.append(text)
        elif node.parent is not None:
            node.replace(exp.Anonymous(this=CONSTANT, expressions=[exp.Literal.string(text)]))
    if unknown:
        raise Unknown(unknown)
    return tree


def known_in(tree: exp.Expr) -> dict[str, "pa.Scalar | None"]:
    """The constants of a tree whose values are known here, for another process."""
    texts = [node.sql("spark") for node in _constants(tree)]
    return {text: CONSTANTS[text] for text in texts if text in CONSTANTS}


def _constants(tree: exp.Expr) -> list[exp.Expr]:
    found = []
    for call in list(tree.find_all(exp.Anonymous, exp.MakeInterval)):
        if not _is_listed(call):
            continue
        node: exp.Expr = call
        while isinstance(node.parent, _PLAIN) and _is_constant(node.parent):
            node = node.parent
        if _is_constant(node):
            found.append(node)
    return found


def remember(text: str, value: "pa.Scalar | None") -> None:
    """Keep a value that Spark gave."""
    if len(CONSTANTS) >= _MOST:
        CONSTANTS.pop(next(iter(CONSTANTS)))
    CONSTANTS[text] = value


def _is_listed(node: exp.Expr) -> bool:
    return isinstance(node, exp.MakeInterval) or node.name.lower() in _FUNCTIONS


def _is_constant(node: exp.Expr) -> bool:
    return all(
        isinstance(each, _PLAIN)
        or (isinstance(each, exp.Anonymous | exp.MakeInterval) and _is_listed(each))
        for each in node.walk()
    )
