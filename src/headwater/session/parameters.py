"""How many parameters a statement has."""

from dataclasses import fields

from sqlglot import exp

from headwater.sql import statement as st


def parameter_count(statement: st.Statement) -> int:
    """The highest n of `$n` in a statement."""
    return max((number for tree in _trees(statement) for number in _numbers(tree)), default=0)


def _trees(value: object) -> "list[exp.Expr]":
    if isinstance(value, exp.Expr):
        return [value]
    if isinstance(value, tuple):
        return [tree for each in value for tree in _trees(each)]
    if isinstance(value, st.Written | st.ColumnDefinition):
        return [tree for field in fields(value) for tree in _trees(getattr(value, field.name))]
    return []


def _numbers(tree: "exp.Expr") -> "list[int]":
    found = []
    for node in tree.find_all(exp.Parameter):
        text = node.this.name if isinstance(node.this, exp.Expr) else str(node.this)
        if text.isdigit():
            found.append(int(text))
    return found
