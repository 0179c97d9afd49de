"""What a prepared statement that writes takes and gives, before it has values.

The type of a parameter comes from what stands beside it:

    INSERT ... VALUES ($1), SET x = $1     the column
    x = $1, $1 < x, x IN ($1), ...         the column on the other side
    x = ANY ($1)                           an array of it
    $1::type                               that type
    LIMIT $1                               bigint

Anywhere else any text will do, and its type is None.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from headwater.model import types
from headwater.model.schema import Column
from headwater.model.types import DataType
from headwater.pgwire.session import ResultColumn
from headwater.runtime.names import CatalogRelations
from headwater.session.context import Context
from headwater.session.writes.assigning import literal
from headwater.session.writes.insert import values_of
from headwater.session.writes.returning import plan_returning
from headwater.session.writes.scene import DataChange, Scene, reading_of, set_scene
from headwater.sql.data_statements import identifier, object_name
from headwater.sql.expression.problem import Text
from headwater.sql.expression.written_types import written_type
from headwater.sql.relations import Relations
from headwater.sql.statement import Delete, Insert, Update

Columns = Mapping[str, DataType]


async def describe_write(
    context: Context, statement: DataChange, *, text: str | None = None
) -> tuple[tuple[DataType | None, ...], tuple[ResultColumn, ...] | None]:
    """The types of `$1`, `$2`, ... and the columns of RETURNING."""
    snapshot = await context.snapshot()
    scene = set_scene(context, snapshot, statement, reading_of(context, statement, (), text))
    relations = CatalogRelations(snapshot, context.path)
    found: dict[int, DataType | None] = {}
    for tree, beside in _trees(scene, statement):
        for number, type_ in parameter_types(tree, relations, beside, scene.reading.text):
            found[number] = found.get(number) or type_
    parameters = tuple(found.get(number) for number in range(1, max(found, default=0) + 1))
    items = [_with_types(item, parameters) for item in statement.returning]
    # Parameters that nothing gives a type are null while the clause is planned.
    nulls = replace(scene, reading=replace(scene.reading, parameters=(None,) * len(parameters)))
    returning = plan_returning(nulls, items)
    return parameters, returning.columns if returning is not None else None


def parameter_types(
    tree: exp.Expr, relations: Relations, columns: Columns, text: Text
) -> Iterator[tuple[int, DataType | None]]:
    """Each parameter of a tree with its type; `columns` are in sight beside those of FROM."""
    for node in tree.find_all(exp.Parameter):
        yield _number(node), _type_of(node, relations, columns, text)


def _trees(scene: Scene, statement: DataChange) -> Iterator[tuple[exp.Expr, Columns]]:
    """The parts of a statement that may hold parameters, and the columns in sight of each.

    A value that goes into a column is put beside it: the same rule then finds its type.
    """
    own = {column.name: column.type for column in scene.target.columns}
    match statement:
        case Insert():
            yield from _inserted(scene, statement, own)
        case Update():
            for name, node in statement.assignments:
                if node is not None:
                    yield _beside(scene.target.column(name), node), own
            if statement.where is not None:
                yield exp.Paren(this=statement.where.copy()), own
        case Delete():
            if statement.where is not None:
                yield exp.Paren(this=statement.where.copy()), own
    for item in statement.returning:
        yield exp.Paren(this=item.copy()), own


def _inserted(scene: Scene, statement: Insert, own: Columns) -> Iterator[tuple[exp.Expr, Columns]]:
    given = scene.target.named(statement.columns)
    rows = values_of(statement.query)
    if rows is not None:
        for row in rows:
            for column, node in zip(given, row, strict=False):
                yield _beside(column, node), own
    elif statement.query is not None:
        if isinstance(statement.query, exp.Select):
            for column, item in zip(given, statement.query.expressions, strict=False):
                inner = item.this if isinstance(item, exp.Alias) else item
                yield _beside(column, inner), own
        yield exp.Paren(this=statement.query.copy()), {}


def _beside(column: Column, node: exp.Expr) -> exp.Expr:
    name = exp.Column(this=exp.to_identifier(column.name, quoted=True))
    return exp.EQ(this=name, expression=node.copy())


def _number(node: exp.Parameter) -> int:
    return int(node.this.this)


def _type_of(  # noqa: PLR0911
    node: exp.Expr, relations: Relations, columns: Columns, text: Text
) -> DataType | None:
    parent: Any = node.parent
    while isinstance(parent, exp.Paren | exp.Neg):
        node, parent = parent, parent.parent
    match parent:
        case exp.Cast():
            return written_type(parent.args["to"], text)[0]
        case exp.Limit() | exp.Offset():
            return types.BIGINT
        case exp.Any() | exp.All() if isinstance(parent.parent, exp.Binary):
            other = _other(parent.parent, parent)
            element = _column_type(other, relations, columns)
            return types.list_of(element) if element is not None else None
        case exp.In() | exp.Between():
            others = [parent.this, *parent.expressions]
            others += [parent.args.get("low"), parent.args.get("high")]
            return _first(others, node, relations, columns)
        case exp.Binary():
            return _column_type(_other(parent, node), relations, columns)
        case exp.Like() | exp.ILike() | exp.DPipe():
            return types.VARCHAR
        case _:
            return None


def _other(parent: Any, node: exp.Expr) -> exp.Expr:
    other: exp.Expr = parent.expression if parent.this is node else parent.this
    return other


def _first(
    nodes: Sequence[exp.Expr | None], own: exp.Expr, relations: Relations, columns: Columns
) -> DataType | None:
    for node in nodes:
        if node is not None and node is not own:
            type_ = _column_type(node, relations, columns)
            if type_ is not None:
                return type_
    return None


def _column_type(node: exp.Expr, relations: Relations, columns: Columns) -> DataType | None:
    """The type of a column, of a cast, or of a sum of those."""
    while isinstance(node, exp.Paren | exp.Neg):
        node = node.this
    if isinstance(node, exp.Cast):
        return written_type(node.args["to"], Text(""))[0]
    if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Div | exp.Mod):
        return _first([node.this, node.expression], node, relations, columns)
    if not isinstance(node, exp.Column):
        return None
    name, table = identifier(node.this), node.args.get("table")
    scope: Any = node.parent_select
    while scope is not None:
        for alias, found in _sources(scope, relations):
            if (table is None or identifier(table) == alias) and name in found:
                return found[name]
        scope = scope.parent_select
    return columns.get(name)


def _sources(select: Any, relations: Relations) -> Iterator[tuple[str, Columns]]:
    """The relations of a FROM clause by the names they have there."""
    clause = select.args.get("from_")
    joined = [join.this for join in select.args.get("joins") or []]
    for source in ([clause.this] if clause is not None else []) + joined:
        if isinstance(source, exp.Table) and isinstance(source.this, exp.Identifier):
            relation = relations.find(object_name(source))
            if relation is not None:
                alias = source.args.get("alias")
                shown = identifier(alias.this) if alias is not None else relation.name
                yield shown, {column.name: column.type for column in relation.columns}


def _with_types(item: exp.Expr, parameters: Sequence[DataType | None]) -> exp.Expr:
    """The expression with nulls of the right types in the place of parameters."""

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Parameter):
            return node
        type_ = parameters[_number(node) - 1]
        return literal(None, type_) if type_ is not None else node

    return item.transform(replaced)
