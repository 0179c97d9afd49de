"""Which statements the system tables answer alone.

A query over system tables and users' tables at once is refused: the rows of the latter are on
Spark, those of the former are not, and such a query is nearly always a mistake in a name.
"""

from sqlglot import exp

from headwater.errors import NotSupported
from headwater.system import calls, relations
from headwater.system.forms import REG_TYPES, name_of, type_name

_SESSION_WORDS = (exp.CurrentUser, exp.SessionUser, exp.CurrentSchema, exp.CurrentCatalog)


def reads_only_system(statement: exp.Expr) -> bool:
    """Whether a query reads system tables alone, or only asks about the session.

    Raises `NotSupported` for one that reads system tables and others.
    """
    if not isinstance(statement, exp.Query):
        return False
    ours, others = _tables(statement)
    if ours and others:
        raise NotSupported(
            f"a query cannot read system tables and {others[0]} at once",
            detail=f"System tables in it: {', '.join(sorted(set(ours)))}.",
            hint="Read the system tables in a statement of their own.",
        )
    if ours:
        return True
    if others or statement.find(exp.From) is not None:
        return False
    return _only_words(statement)


def _tables(statement: exp.Expr) -> tuple[list[str], list[str]]:
    """The system tables of a query, and the other ones."""
    named = {name_of(cte.args["alias"]) for cte in statement.find_all(exp.CTE)}
    ours, others = [], []
    for table in statement.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            function = str(table.this.name or table.this.this).lower() if table.this else ""
            if calls.is_catalog(function):
                ours.append(f"{function}()")
            continue
        namespace, name = name_of(table.args.get("db")), name_of(table.this)
        if not namespace and name in named:
            continue
        relation = relations.find(namespace or None, name)
        if relation is not None:
            ours.append(relation.key)
        elif namespace in relations.NAMESPACES:
            # It does not exist, and this is where that is said best.
            ours.append(f"{namespace}.{name}")
        else:
            others.append(f'"{name}"')
    return ours, others


def _only_words(statement: exp.Expr) -> bool:
    """Whether a query without FROM asks about the session, or only says constants."""
    asks = False
    for node in statement.walk():
        if isinstance(node, exp.Anonymous):
            name = str(node.name or node.this).lower()
            if not calls.is_served(name):
                return False
            asks = asks or calls.is_catalog(name)
        elif isinstance(node, _SESSION_WORDS):
            asks = True
        elif isinstance(node, exp.Cast) and type_name(node.args["to"]) in REG_TYPES:
            asks = True
    return asks or _only_constants(statement)


def _only_constants(statement: exp.Expr) -> bool:
    clauses = {name for name, value in statement.args.items() if value}
    if not isinstance(statement, exp.Select) or clauses != {"expressions"}:
        return False
    return bool(statement.expressions) and all(_constant(each) for each in statement.expressions)


def _constant(node: exp.Expr) -> bool:
    if isinstance(node, exp.Alias):
        return _constant(node.this)
    return isinstance(node, exp.Literal | exp.Boolean | exp.Null)
