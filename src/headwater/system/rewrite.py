"""From a catalog query in PostgreSQL's words to one that the embedded database runs.

    1. values       parameters become literals, which fit wherever PostgreSQL's unknown fits
    2. names        folded as PostgreSQL folds them, then quoted
    3. tables       each becomes the one relation that it means; foreign ones are refused
    4. expressions  casts, calls, operators and subscripts, from the inside out
    5. columns      each gets the name that PostgreSQL would give it

The tree that comes in is left as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headwater.errors import BindError, NotSupported
from headwater.system import calls, relations
from headwater.system.calls import call, cast, number, text
from headwater.system.casts import cast_to, elements
from headwater.system.forms import VECTORS, Forms, Output, name_of, output_name
from headwater.system.relations import NAMESPACES, SystemRelation


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A query for the embedded database, what it reads, and its columns as far as known."""

    sql: str
    needs: frozenset[str]
    outputs: list[Output] | None


def rewrite(query: exp.Expr, parameters: Sequence[object] = ()) -> Rewritten:
    """The query for the embedded database."""
    tree = query.copy()
    _put_values(tree, parameters)
    _name_columns(tree)
    _type_nulls(tree)
    forms = Forms(tree)
    work = _Work(forms, tree)
    outputs = forms.outputs
    for node in reversed(list(tree.walk())):
        rule = _RULES.get(type(node))
        if rule is not None:
            new = rule(node, work)
            if new is not node:
                tree = _put(node, new, tree)
    for identifier in tree.find_all(exp.Identifier):
        identifier.set("this", name_of(identifier))
        identifier.set("quoted", True)
    sql = tree.sql(dialect="duckdb", identify=True, comments=False)
    return Rewritten(sql=sql, needs=frozenset(work.needs), outputs=outputs)


def _put(node: exp.Expr, new: exp.Expr, tree: exp.Expr) -> exp.Expr:
    if node is tree:
        return new
    node.replace(new)
    return tree


class _Work:
    """What the rules share."""

    def __init__(self, forms: Forms, tree: exp.Expr) -> None:
        self.forms = forms
        self.needs: set[str] = set()
        self.shows_hidden = any(name_of(each.this) in _HIDDEN for each in tree.find_all(exp.Column))


def literal(value: object) -> exp.Expr:
    """A parameter's value as it would stand in a query."""
    match value:
        case None:
            return exp.Null()
        case bool():
            return exp.true() if value else exp.false()
        case list() | tuple():
            return exp.Array(expressions=[literal(each) for each in value])
        case int() | float():
            return exp.Literal.number(value)
        case bytes():
            return text(value.decode("utf-8", "replace"))
        case _:
            return text(str(value))


def _put_values(tree: exp.Expr, parameters: Sequence[object]) -> None:
    for node in list(tree.find_all(exp.Parameter)):
        place = int(str(node.this.this))
        value = parameters[place - 1] if place <= len(parameters) else None
        new = literal(value)
        if value is None and isinstance(node.parent, exp.Select | exp.Alias):
            new = cast(new, "VARCHAR")
        elif isinstance(value, str) and isinstance(node.parent, exp.Limit | exp.Offset):
            new = cast(new, "BIGINT")
        node.replace(new)


def _type_nulls(tree: exp.Expr) -> None:
    """A column that is null and nothing else is text in PostgreSQL."""
    for query in tree.find_all(exp.Select, exp.SetOperation):
        if isinstance(query.parent, exp.SetOperation):
            continue
        branches = [each.expressions for each in _branches(query)]
        if len({len(each) for each in branches}) == 1:
            for column in zip(*branches, strict=True):
                values = [each.this if isinstance(each, exp.Alias) else each for each in column]
                if all(isinstance(value, exp.Null) for value in values):
                    for value in values:
                        value.replace(cast(exp.Null(), "TEXT"))


def _branches(query: exp.Expr) -> list[exp.Expr]:
    """The SELECTs whose rows are put together."""
    if isinstance(query, exp.SetOperation):
        return [*_branches(query.this), *_branches(query.expression)]
    return [query.unnest()] if isinstance(query, exp.Subquery) else [query]


def _name_columns(tree: exp.Expr) -> None:
    for select in tree.find_all(exp.Select):
        for projection in list(select.expressions):
            plain = isinstance(projection, exp.Alias | exp.Star | exp.Column)
            if not plain or _is_keyword(projection):
                alias = exp.Alias(alias=exp.to_identifier(output_name(projection), quoted=True))
                projection.replace(alias)
                alias.set("this", projection)


_KEYWORD_CALLS = {"user": "hw_user", "current_role": "hw_user"}


def _is_keyword(node: exp.Expr) -> bool:
    """Whether a lone word is a function: `user` is not a column unless it is quoted."""
    return (
        isinstance(node, exp.Column)
        and not node.args.get("table")
        and isinstance(node.this, exp.Identifier)
        and not node.this.args.get("quoted")
        and str(node.this.this).lower() in _KEYWORD_CALLS
    )


def _table(node: exp.Expr, work: _Work) -> exp.Expr:
    if not isinstance(node.this, exp.Identifier):
        return _rows_of_function(node, node.this, work)
    namespace, name = name_of(node.args.get("db")), name_of(node.this)
    if not namespace and name in work.forms.cte_names:
        return node
    relation = relations.find(namespace or None, name)
    if relation is None:
        raise _no_such_table(namespace, name)
    work.needs.add(relation.key)
    node.set("this", exp.to_identifier(relation.key, quoted=True))
    node.set("db", None)
    node.set("catalog", None)
    if not node.args.get("alias"):
        node.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
    return _with_hidden_columns(node, relation) if work.shows_hidden else node


_HIDDEN = ("tableoid", "xmin", "ctid")


def _with_hidden_columns(table: exp.Expr, relation: SystemRelation) -> exp.Expr:
    values = (cast(number(relation.oid), "UINTEGER"), number(0), text("(0,0)"))
    plain = exp.Table(this=exp.to_identifier(relation.key, quoted=True))
    inner = exp.Select(expressions=[exp.Star()]).from_(plain)
    for name, value in zip(_HIDDEN, values, strict=True):
        inner = inner.select(exp.alias_(value, name, quoted=True))
    made = exp.Subquery(this=inner, alias=table.args.get("alias"))
    made.set("joins", table.args.get("joins"))
    return made


def _no_such_table(namespace: str, name: str) -> BindError:
    shown = f"{namespace}.{name}" if namespace else name
    close = relations.nearest(namespace or None, name)
    hint = f'Did you mean "{close}"?' if close else ""
    return BindError(f'relation "{shown}" does not exist', hint=hint, sqlstate="42P01")


def _rows_of_function(node: exp.Expr, function: exp.Expr, work: _Work) -> exp.Expr:
    """A function in FROM; its arguments are rewritten already, and so perhaps is the call."""
    name = str(function.name or function.this).lower() if function is not None else ""
    if name in calls.ROW_FUNCTIONS:
        key = calls.ROW_FUNCTIONS[name]
        work.needs.add(key)
        alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name, quoted=True))
        return exp.Table(this=exp.to_identifier(key, quoted=True), alias=alias)
    if name == calls.KEYWORDS:
        return exp.Table(
            this=exp.to_identifier(calls.KEYWORDS, quoted=True), alias=node.args.get("alias")
        )
    if name in calls.EMPTY_SETS:
        empty = exp.Select().where(exp.false())
        for column, type_ in calls.EMPTY_SETS[name]:
            empty = empty.select(exp.alias_(cast(exp.Null(), type_), column, quoted=True))
        return exp.Subquery(this=empty, alias=_alias(node, name, name_columns=False))
    rows = exp.Select(expressions=[function])
    if name == "unnest" and node.args.get("ordinality"):
        rows = rows.select(_places(function.expressions[0]))
    return _lateral(node, rows, name)


def _places(array: exp.Expr) -> exp.Expr:
    """1, 2, ... for the elements of an array."""
    return call("unnest", call("generate_series", number(1), call("len", array.copy())))


def _alias(node: exp.Expr, name: str, *, name_columns: bool = True) -> exp.TableAlias:
    given = node.args.get("alias")
    table = given.this if given is not None and given.this is not None else exp.to_identifier(name)
    columns = list(given.args.get("columns") or ()) if given is not None else []
    if not columns and name_columns:
        # A function that gives one column calls it what the function is called.
        columns = [exp.to_identifier(name_of(table), quoted=True)]
    return exp.TableAlias(this=table.copy(), columns=columns)


def _lateral(node: exp.Expr, rows: exp.Select, name: str) -> exp.Expr:
    return exp.Lateral(this=exp.Subquery(this=rows), alias=_alias(node, name))


def _lateral_source(node: exp.Expr, work: _Work) -> exp.Expr:
    inner = node.this
    if isinstance(inner, exp.Anonymous):
        return _rows_of_function(node, inner, work)
    return node


def _unnest(node: exp.Expr, _work: _Work) -> exp.Expr:
    arrays = [_listed(each) for each in node.expressions]
    if len(arrays) == 1:
        node.set("expressions", arrays)
        return node
    # Arrays side by side: each is a column, and so is the place.
    rows = exp.Select(expressions=[call("unnest", each) for each in arrays])
    alias, place = node.args.get("alias"), node.args.get("offset")
    if place is not None and alias is not None:
        rows = rows.select(_places(arrays[0]))
        alias.append("columns", place)
    return exp.Lateral(this=exp.Subquery(this=rows), alias=alias)


def _listed(node: exp.Expr) -> exp.Expr:
    """An array; a text between braces is one too."""
    inner = node.this if isinstance(node, exp.Paren) else node
    if isinstance(inner, exp.Literal) and inner.is_string:
        return exp.Array(expressions=elements(str(inner.this)))
    return inner


def _no_such_function(name: str) -> BindError:
    return BindError(
        f"function {name}() does not exist in queries over system tables",
        sqlstate="42883",
        hint="Read the system table first, and compute with its rows in another statement.",
    )


def _call(node: exp.Expr, work: _Work) -> exp.Expr:
    name = str(node.name or node.this).lower()
    arguments = list(node.expressions)
    if name.startswith("hw_") or name == "all":
        return node
    is_source = isinstance(node.parent, exp.Table | exp.Lateral) and node.arg_key == "this"
    if is_source and (name in calls.EMPTY_SETS or name in calls.ROW_FUNCTIONS):
        return node
    if name == calls.KEYWORDS and is_source:
        return node
    if name == "generate_subscripts":
        return _subscripts(arguments[0], work)
    if name == "unnest":
        return call("unnest", *(_listed(each) for each in arguments))
    if name in calls.BY_RELATION and arguments:
        arguments[0] = _relation_argument(arguments[0])
    new = calls.rewritten(name, arguments)
    if new is None:
        raise _no_such_function(name)
    if name in _GIVES:
        work.forms.note(new, _GIVES[name])
    return new


_GIVES = {"to_regclass": "regclass", "to_regtype": "regtype", "current_schemas": "name[]"}


def _relation_argument(node: exp.Expr) -> exp.Expr:
    inner = node.this if isinstance(node, exp.Paren) else node
    if (isinstance(inner, exp.Literal) and inner.is_string) or isinstance(inner, exp.DPipe):
        return call("hw_regclass", inner)
    return node


def _subscripts(array: exp.Expr, work: _Work) -> exp.Expr:
    length = call("len", array)
    if work.forms.of(array) in VECTORS:
        return call("unnest", call("range", number(0), length))
    return call("unnest", call("generate_series", number(1), length))


def _dot(node: exp.Expr, _work: _Work) -> exp.Expr:
    left: exp.Expr = node.this
    right: exp.Expr = node.expression
    if isinstance(left, exp.Identifier):
        if name_of(left) in NAMESPACES:
            return right
        raise NotSupported(f"functions of schema {name_of(left)} are not supported here")
    field = text(name_of(right))
    inner = left.this if isinstance(left, exp.Paren) else left
    name = str(inner.name).lower() if isinstance(inner, exp.Anonymous) else ""
    if name in calls.EMPTY_SETS:
        types = dict(calls.EMPTY_SETS[name])
        return calls.none_of(types.get(name_of(right), "VARCHAR"))
    return call("struct_extract", inner, field)


def _bracket(node: exp.Expr, work: _Work) -> exp.Expr:
    first = node.expressions[0]
    if isinstance(first, exp.Slice):
        node.set("offset", 1)
        return node
    inner = node.this.this if isinstance(node.this, exp.Paren) else node.this
    if work.forms.of(inner) in VECTORS:
        # Vectors count from 0.
        first = exp.Add(this=exp.Paren(this=first), expression=number(1))
    return call("list_extract", inner, first)


def _column(node: exp.Expr, work: _Work) -> exp.Expr:
    if _is_keyword(node):
        return call(_KEYWORD_CALLS[str(node.this.this).lower()])
    # `pg_catalog.pg_class.relname` names the table as it is aliased here.
    node.set("db", None)
    node.set("catalog", None)
    return node


_COMPARED: dict[str, type[exp.Binary]] = {
    "~": exp.RegexpLike, "~*": exp.RegexpILike, "~~": exp.Like, "~~*": exp.ILike, "=": exp.EQ,
    "<>": exp.NEQ, "<": exp.LT, ">": exp.GT, "<=": exp.LTE, ">=": exp.GTE, "||": exp.DPipe,
    "+": exp.Add, "-": exp.Sub, "*": exp.Mul, "&": exp.BitwiseAnd, "|": exp.BitwiseOr,
}  # fmt: skip


def _operator(node: exp.Expr, _work: _Work) -> exp.Expr:
    name = str(node.args["operator"]).rpartition(".")[2]
    negated = name.startswith("!")
    kind = _COMPARED.get(name.removeprefix("!"))
    if kind is None:
        raise NotSupported(f"operator {name} is not supported in queries over system tables")
    made = exp.Paren(this=kind(this=node.this, expression=node.expression))
    return exp.Not(this=made) if negated else made


def _comparison(node: exp.Expr, _work: _Work) -> exp.Expr:
    """`= ANY (array)` and its kin; a query after ANY is left to the database."""
    right = node.expression
    every = isinstance(right, exp.Anonymous) and str(right.this).upper() == "ALL"
    if not every and not isinstance(right, exp.Any):
        return node
    inner = right.expressions[0] if every else right.this
    array = _listed(inner)
    if isinstance(array, exp.Query) or isinstance(array, exp.Subquery):
        return node
    if isinstance(node, exp.EQ) and not every:
        return _one_of(node.this, array)
    if isinstance(node, exp.NEQ) and every:
        return exp.Not(this=exp.Paren(this=_one_of(node.this, array)))
    if not isinstance(array, exp.Array):
        raise NotSupported("this comparison with the elements of an array is not supported here")
    parts = [type(node)(this=node.this.copy(), expression=each) for each in array.expressions]
    joined = exp.and_(*parts) if every else exp.or_(*parts)
    return exp.Paren(this=joined)


def _one_of(value: exp.Expr, array: exp.Expr) -> exp.Expr:
    if not isinstance(array, exp.Array):
        return call("list_contains", array, value)
    # Literals in a list take the type of the value, as PostgreSQL's unknown does.
    return exp.In(this=value, expressions=array.expressions) if array.expressions else exp.false()


def _regular_expression(node: exp.Expr, work: _Work) -> exp.Expr:
    compared = _comparison(node, work)
    if compared is not node:
        return compared
    flags = [text("i")] if isinstance(node, exp.RegexpILike) else []
    return call("regexp_matches", cast(node.this, "VARCHAR"), node.expression, *flags)


def _joined(node: exp.Expr, work: _Work) -> exp.Expr:
    """`||` of arrays, where null is an array without elements."""
    for side in (node.this, node.expression):
        inner = side.this if isinstance(side, exp.Paren) else side
        is_query = isinstance(inner, exp.Anonymous) and str(inner.this).lower() == "array"
        if is_query or isinstance(inner, exp.Array) or (work.forms.of(inner) or "").endswith("[]"):
            return call("list_concat", node.this, node.expression)
    return node


def _group(node: exp.Expr, work: _Work) -> exp.Expr:
    """A name in GROUP BY that no table has is one that the SELECT gives."""
    select = node.parent
    if not isinstance(select, exp.Select):
        return node
    given = [output_name(each) for each in select.expressions]
    for each in list(node.expressions):
        name = name_of(each) if isinstance(each, exp.Column) and not each.table else ""
        if name in given and not work.forms.has_column(select, name):
            each.replace(number(given.index(name) + 1))
    return node


def _collate(node: exp.Expr, _work: _Work) -> exp.Expr:
    inner: exp.Expr = node.this
    return inner


def _session_word(node: exp.Expr, _work: _Work) -> exp.Expr:
    return call(_WORDS[type(node)])


_WORDS: dict[type[exp.Expr], str] = {
    exp.CurrentUser: "hw_user",
    exp.SessionUser: "hw_user",
    exp.CurrentSchema: "hw_schema",
    exp.CurrentCatalog: "hw_database",
}


def _escape_string(node: exp.Expr, _work: _Work) -> exp.Expr:
    """E'...' has its meaning already."""
    return text(str(node.this))


def _cast(node: exp.Expr, work: _Work) -> exp.Expr:
    return cast_to(node, work.forms)


_RULES: dict[type[exp.Expr], Callable[[exp.Expr, _Work], exp.Expr]] = {
    exp.Table: _table,
    exp.Lateral: _lateral_source,
    exp.Unnest: _unnest,
    exp.Anonymous: _call,
    exp.Dot: _dot,
    exp.Bracket: _bracket,
    exp.Column: _column,
    exp.Operator: _operator,
    exp.Collate: _collate,
    exp.DPipe: _joined,
    exp.Group: _group,
    exp.ByteString: _escape_string,
    exp.Cast: _cast,
    exp.RegexpLike: _regular_expression,
    exp.RegexpILike: _regular_expression,
    **dict.fromkeys(
        (exp.EQ, exp.NEQ, exp.LT, exp.GT, exp.LTE, exp.GTE, exp.Like, exp.ILike), _comparison
    ),
    **dict.fromkeys(_WORDS, _session_word),
}
