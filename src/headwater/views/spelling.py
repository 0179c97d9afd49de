"""Spark SQL texts: how names, lists of columns and conditions are written."""

from collections.abc import Iterable, Sequence

from headwater.model.reserved import RESERVED_PREFIX
from headwater.model.spelling import quoted
from headwater.sql.algebra import Expression, Output

WEIGHT = f"{RESERVED_PREFIX}weight"
"""The column of a delta that says whether a row comes (+1) or goes (-1)."""
SIDES = f"{RESERVED_PREFIX}sides"
"""The column of looked-up rows: 1 there before the epoch, 2 there after it, 3 both."""
LEFT = f"{RESERVED_PREFIX}l"
RIGHT = f"{RESERVED_PREFIX}r"
NOTHING = f"{RESERVED_PREFIX}nothing"
"""The column of a query that has rows and no columns, such as what EXISTS looks for."""


def listed(names: Iterable[str]) -> str:
    """Names as a list of columns."""
    return ", ".join(quoted(name) for name in names)


def select_list(terms: Sequence[str]) -> str:
    """What is selected; a node without columns still has rows, which only a column can carry."""
    return ", ".join(terms) or f"1 as {NOTHING}"


def names_of(outputs: Iterable[Output]) -> tuple[str, ...]:
    """The names of a node's columns."""
    return tuple(output.name for output in outputs)


def null(output: Output) -> str:
    """A column of nulls that stands in for another."""
    return f"cast(null as {output.type.spark}) as {quoted(output.name)}"


def plain_column(expression: Expression) -> str | None:
    """The column that an expression is, when it is nothing more than one."""
    if len(expression.columns) != 1:
        return None
    (name,) = expression.columns
    return name if expression.text.strip() in (name, quoted(name)) else None


def both(conditions: Sequence[str]) -> str:
    """All of them."""
    return " and ".join(f"({each})" for each in conditions) or "true"


def in_one_task(sql: str) -> str:
    """The same rows in one partition: what is joined or grouped there needs no shuffle."""
    return f"select /*+ COALESCE(1) */ * from ({sql})"


def union_all(parts: Sequence[str], *, local: bool = False) -> str:
    """The rows of all queries, whose columns pair up by place."""
    if len(parts) == 1:
        return parts[0]
    together = " union all ".join(f"(select * from ({part}))" for part in parts)
    return in_one_task(together) if local else together
