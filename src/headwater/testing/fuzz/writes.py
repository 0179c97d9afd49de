"""Random INSERT, UPDATE and DELETE: single rows, many rows, whole tables, transactions."""

from random import Random

from headwater.model.types import Kind
from headwater.testing.fuzz.expressions import Expressions, Value
from headwater.testing.fuzz.schema import Table
from headwater.testing.fuzz.values import literal, quoted_text

_BULK = 120


def filling(random: Random, table: Table, rows: int) -> str:
    """An INSERT of that many rows; the keys of some may be the same."""
    values = ", ".join(_row(random, table, rows) for _ in range(max(1, rows)))
    return f"INSERT INTO {table.name} VALUES {values}"


def statements(random: Random, table: Table) -> list[str]:
    """What one writer does before the next epoch."""
    if random.random() < 0.15:
        inner = [_statement(random, table) for _ in range(random.choice((2, 3)))]
        return ["BEGIN", *inner, random.choice(("COMMIT", "COMMIT", "ROLLBACK"))]
    return [_statement(random, table)]


def _statement(random: Random, table: Table) -> str:
    kind = random.random()
    if table.append_only or kind < 0.40:
        return filling(random, table, random.choice((1, 1, 2, 5, 12)))
    if kind < 0.45:
        return _bulk(random, table)
    if kind < 0.75:
        return _update(random, table)
    if kind < 0.97:
        return f"DELETE FROM {table.name} WHERE {_where(random, table)}"
    return f"DELETE FROM {table.name}"


def _row(random: Random, table: Table, rows: int) -> str:
    values = []
    for column, type_ in zip(table.columns, table.types, strict=True):
        if column.name in table.key:
            values.append(_key(random, type_.kind, rows) or literal(random, type_, nulls=0))
        else:
            values.append(literal(random, type_, tame=column.tame))
    return f"({', '.join(values)})"


def _key(random: Random, kind: Kind, rows: int) -> str:
    """A key: often a new one, sometimes one that is there."""
    number = random.randrange(max(40, 3 * rows))
    if kind in (Kind.INTEGER, Kind.BIGINT):
        return str(number)
    return quoted_text(f"k{number}") if kind is Kind.VARCHAR and random.random() < 0.9 else ""


def _bulk(random: Random, table: Table) -> str:
    """Many rows from a query."""
    first = random.randrange(1000, 5000)
    terms = []
    for column, type_ in zip(table.columns, table.types, strict=True):
        if column.name in table.key and type_.kind is Kind.VARCHAR:
            terms.append("'b' || g")
        elif column.family == "int":
            terms.append("g % 9" if column.name not in table.key else "g")
        else:
            nulls = 0.0 if column.name in table.key else 0.2
            terms.append(f"({literal(random, type_, nulls=nulls)})::{type_.postgres}")
    size = random.choice((20, _BULK))
    source = f"generate_series({first}, {first + size}) AS s(g)"
    return f"INSERT INTO {table.name} SELECT {', '.join(terms)} FROM {source}"


def _update(random: Random, table: Table) -> str:
    e = _expressions(random, table)
    pairs = list(zip(table.columns, table.types, strict=True))
    free = [pair for pair in pairs if pair[0].name not in table.key] or pairs
    chosen = random.sample(free, min(len(free), random.choice((1, 1, 2))))
    if random.random() < 0.05:
        chosen = [random.choice(pairs)]
    settings = []
    for column, type_ in chosen:
        computed = column.family in ("int", "text", "dec", "date", "bool")
        if computed and random.random() < 0.5:
            value = e.small(1) if column.family == "int" else e.of(column.family, 1).sql
        else:
            nulls = 0.0 if column.name in table.key else 0.15
            value = literal(random, type_, tame=column.tame, nulls=nulls)
        settings.append(f"{column.name} = {value}")
    where = f" WHERE {_where(random, table)}" if random.random() < 0.95 else ""
    return f"UPDATE {table.name} SET {', '.join(settings)}{where}"


def _where(random: Random, table: Table) -> str:
    e = _expressions(random, table)
    if random.random() < 0.5:
        # Few rows, as most statements of a user change.
        column = e.column("int", "text")
        if column is not None:
            return f"{column.sql} = {e.constant(column.family).sql}"
    return e.condition(1)


def _expressions(random: Random, table: Table) -> Expressions:
    return Expressions(random, [Value(c.name, c.family, c.tame) for c in table.columns])
