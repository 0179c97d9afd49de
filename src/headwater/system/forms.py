"""What PostgreSQL's type of a column is, found by following the column to its table.

The embedded database knows fewer types than PostgreSQL: `name`, `"char"` and `text` are one to it,
and a `regclass` is a number. Where a query passes a column on, through subqueries and WITH
clauses, the type it has in PostgreSQL is known all the same; where it computes something, the
computed type will do.
"""

from collections.abc import Iterator

from sqlglot import exp

from headwater.system import relations
from headwater.system.relations import SystemRelation

Output = tuple[str, str | None]
"""A column's name, and PostgreSQL's short name of its type if that is known."""

REG_TYPES = {
    "regclass": "hw_regclass",
    "regtype": "hw_regtype",
    "regproc": "hw_regproc",
    "regprocedure": "hw_regproc",
    "regnamespace": "hw_regnamespace",
    "regrole": "hw_regrole",
}
VECTORS = frozenset({"int2vector", "oidvector"})
NUMBERS = frozenset({"oid", "int2", "int4", "int8", "xid", *REG_TYPES})
TEXTS = frozenset({"text", "varchar", "name", "char", "bpchar", "cstring", "unknown"})

_SPELLED = {
    "integer": "int4", "int": "int4", "smallint": "int2", "bigint": "int8", "boolean": "bool",
    "real": "float4", "float": "float4", "double": "float8", "double precision": "float8",
    "character varying": "varchar", "string": "varchar", "character": "bpchar", "json": "jsonb",
    "sql_identifier": "name", "character_data": "varchar", "yes_or_no": "varchar",
    "cardinal_number": "int4", "time_stamp": "timestamptz", "decimal": "numeric",
}  # fmt: skip


def type_name(written: exp.Expr) -> str:
    """PostgreSQL's short name of a type that a query spells."""
    if isinstance(written, exp.DataType) and written.this is exp.DType.ARRAY:
        return f"{type_name(written.expressions[0])}[]" if written.expressions else "text[]"
    kind = written.args.get("kind") if isinstance(written, exp.DataType) else None
    if isinstance(kind, exp.Expr):
        last = kind.expression if isinstance(kind, exp.Dot) else kind
        name = str(last.name or last.this).lower()
    elif isinstance(kind, str):
        name = kind.rpartition(".")[2].strip('"').lower()
    else:
        name = written.sql("postgres").lower().partition("(")[0].strip()
    return _SPELLED.get(name, name)


def name_of(node: exp.Expr | None) -> str:
    """A name as PostgreSQL folds it; nothing for no name."""
    while node is not None and not isinstance(node, exp.Identifier):
        node = node.args.get("this") if isinstance(node.args.get("this"), exp.Expr) else None
    if node is None:
        return ""
    return str(node.this) if node.args.get("quoted") else str(node.this).lower()


class Forms:
    """The types of the columns of one query."""

    def __init__(self, tree: exp.Expr) -> None:
        self._ctes = {name_of(cte.args["alias"]): cte for cte in tree.find_all(exp.CTE)}
        self._outputs: dict[int, list[Output] | None] = {}
        self._sources: dict[int, dict[str, list[Output] | None]] = {}
        self._known: dict[int, str | None] = {}
        self._kept: list[exp.Expr] = [tree]
        self.outputs = self.of_query(tree)
        for column in tree.find_all(exp.Column):
            self._known[id(column)] = self._of_column(column)
            self._kept.append(column)

    @property
    def cte_names(self) -> frozenset[str]:
        """The names that WITH clauses give."""
        return frozenset(self._ctes)

    def note(self, node: exp.Expr, form: str | None) -> exp.Expr:
        """Remember the type of a node that stands for another one now."""
        self._known[id(node)] = form
        self._kept.append(node)
        return node

    def of(self, node: exp.Expr | None) -> str | None:  # noqa: PLR0911  one per kind
        """The type of an expression, if it is known."""
        if node is None:
            return None
        if id(node) in self._known:
            return self._known[id(node)]
        match node:
            case exp.Cast():
                return type_name(node.args["to"])
            case exp.Paren() | exp.Alias() | exp.Collate():
                return self.of(node.this)
            case exp.Column():
                return self._of_column(node)
            case exp.Subquery():
                inner = self.of_query(node.this)
                return inner[0][1] if inner else None
            case _:
                return None

    def has_column(self, select: exp.Select, name: str) -> bool:
        """Whether what a SELECT reads from has a column of that name, as far as is known."""
        found = self._sources_of(select).values()
        return any(columns is None or name in dict(columns) for columns in found)

    def of_query(self, query: exp.Expr) -> list[Output] | None:
        """The columns that a query gives, or None where a star hides what they are."""
        if id(query) not in self._outputs:
            # A recursive query asks for itself: its first part decides.
            self._outputs[id(query)] = None
            self._outputs[id(query)] = self._columns(query)
            self._kept.append(query)
        return self._outputs[id(query)]

    def _columns(self, query: exp.Expr) -> list[Output] | None:
        match query:
            case exp.SetOperation():
                return self.of_query(query.this)
            case exp.Subquery():
                return self.of_query(query.this)
            case exp.Select():
                found: list[Output] = []
                for projection in query.expressions:
                    several = self._projected(query, projection)
                    if several is None:
                        return None
                    found += several
                return found
            case _:
                return None

    def _projected(self, select: exp.Select, projection: exp.Expr) -> list[Output] | None:
        if isinstance(projection, exp.Star):
            found: list[Output] = []
            for columns in self._sources_of(select).values():
                if columns is None or _merges(select):
                    return None
                found += columns
            return found
        if isinstance(projection, exp.Column) and isinstance(projection.this, exp.Star):
            return self._sources_of(select).get(name_of(projection.args.get("table")))
        return [(output_name(projection), self.of(projection))]

    def _sources_of(self, select: exp.Select) -> dict[str, list[Output] | None]:
        if id(select) not in self._sources:
            found: dict[str, list[Output] | None] = {}
            self._sources[id(select)] = found
            for source in sources(select):
                alias, columns = self._source(source)
                found[alias] = columns
        return self._sources[id(select)]

    def _source(self, source: exp.Expr) -> tuple[str, list[Output] | None]:
        alias = source.args.get("alias")
        renamed = [name_of(each) for each in alias.args.get("columns") or ()] if alias else []
        columns: list[Output] | None = None
        name = name_of(alias) if alias else ""
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            name = name or name_of(source.this)
            columns = self._named(source)
        elif isinstance(source, exp.Subquery):
            columns = self.of_query(source.this)
        elif isinstance(source, exp.Lateral) and isinstance(source.this, exp.Subquery):
            columns = self.of_query(source.this.this)
        return name, _renamed(columns, renamed)

    def _named(self, table: exp.Table) -> list[Output] | None:
        namespace, name = name_of(table.args.get("db")), name_of(table.this)
        if not namespace and name in self._ctes:
            cte = self._ctes[name]
            renamed = [name_of(each) for each in cte.args["alias"].args.get("columns") or ()]
            return _renamed(self.of_query(cte.this), renamed)
        relation = relations.find(namespace or None, name)
        return None if relation is None else outputs_of(relation)

    def _of_column(self, column: exp.Column) -> str | None:
        table, name = name_of(column.args.get("table")), name_of(column.this)
        select = column.find_ancestor(exp.Select)
        while isinstance(select, exp.Select):
            for alias, columns in self._sources_of(select).items():
                if table in ("", alias):
                    for each, form in columns or ():
                        if each == name:
                            return form
            select = select.find_ancestor(exp.Select)
        return None


def outputs_of(relation: SystemRelation) -> list[Output]:
    """The columns of a system relation."""
    return [(column.name, column.form) for column in relation.columns]


def sources(select: exp.Select) -> Iterator[exp.Expr]:
    """What a SELECT reads from, in order."""
    start = select.args.get("from_")
    if start is not None:
        yield from _flat(start.this)
    for join in select.args.get("joins") or ():
        yield from _flat(join.this)


def _flat(source: exp.Expr) -> Iterator[exp.Expr]:
    """A table, or the tables of a join in parentheses."""
    if isinstance(source, exp.Subquery) and isinstance(source.this, exp.Table):
        yield from _flat(source.this)
    else:
        yield source
    for join in source.args.get("joins") or ():
        yield from _flat(join.this)


def _merges(select: exp.Select) -> bool:
    """Whether a join makes one column of two, which a star then shows once."""
    return any(
        join.args.get("using") or join.args.get("method") == "NATURAL"
        for join in select.args.get("joins") or ()
    )


def _renamed(columns: list[Output] | None, names: list[str]) -> list[Output] | None:
    if columns is None:
        return None
    return [
        (names[place] if place < len(names) else name, form)
        for place, (name, form) in enumerate(columns)
    ]


_NAMELESS = "?column?"


def output_name(node: exp.Expr) -> str:
    """The name that PostgreSQL gives to a column that has no alias."""
    return _figured(node)[0]


def _figured(node: exp.Expr) -> tuple[str, bool]:  # noqa: PLR0911  one per kind of expression
    """A name, and whether it is good enough to stay under a cast."""
    match node:
        case exp.Alias():
            return name_of(node.args["alias"]), True
        case exp.Column() | exp.Identifier():
            return name_of(node), True
        case exp.Anonymous():
            return str(node.name or node.this).lower(), True
        case exp.Dot():
            return _figured(node.expression)
        case exp.Cast():
            name, good = _figured(node.this)
            return (name, True) if good else (type_name(node.args["to"]).rstrip("[]"), False)
        case exp.Case():
            default = node.args.get("default")
            name, good = ("", False) if default is None else _figured(default)
            return (name, True) if good else ("case", False)
        case exp.Subquery():
            first = node.this.find(exp.Select)
            return _figured(first.expressions[0]) if first is not None else (_NAMELESS, False)
        case exp.Paren() | exp.Bracket() | exp.Filter() | exp.Window() | exp.Collate():
            return _figured(node.this)
        case exp.Trim():
            where = {"LEADING": "ltrim", "TRAILING": "rtrim"}
            return where.get(str(node.args.get("position")), "btrim"), True
        case exp.Exists() | exp.Array() | exp.Substring() | exp.Extract():
            return type(node).__name__.lower(), True
        case _:
            return _SPECIAL.get(type(node), _NAMELESS), type(node) in _SPECIAL


_SPECIAL: dict[type[exp.Expr], str] = {
    exp.CurrentUser: "current_user",
    exp.SessionUser: "session_user",
    exp.CurrentSchema: "current_schema",
    exp.CurrentCatalog: "current_catalog",
    exp.CurrentTimestamp: "current_timestamp",
    exp.CurrentDate: "current_date",
    exp.CurrentTime: "current_time",
    exp.Localtimestamp: "localtimestamp",
    exp.StrPosition: "position",
}
