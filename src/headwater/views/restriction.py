"""Which columns of a node can restrict what is read below it, and under which names."""

from collections.abc import Sequence

from headwater.sql.algebra import (
    Aggregate,
    Expression,
    Output,
    Plan,
    Project,
    SetOperation,
    TopN,
    UnionAll,
    WindowFunctions,
    inputs_of,
)
from headwater.views.spelling import plain_column


def restricting(plan: Plan) -> list[dict[str, str]]:
    """For each input of a node that works by key: output columns with their names there."""
    match plan:
        case Aggregate(group=names) | WindowFunctions(partition=names) | TopN(partition=names):
            return [{name: name for name in names}]
        case SetOperation():
            return [
                {
                    out.name: column.name
                    for out, column in zip(plan.outputs, side.outputs, strict=True)
                    if out.type == column.type
                }
                for side in (plan.left, plan.right)
            ]
        case _:
            return [{} for _ in inputs_of(plan)]


def branch_names(plan: UnionAll, number: int) -> dict[str, str]:
    """A union's columns with their names in one input, where the type is the same."""
    untagged = [output for output in plan.outputs if output.name != plan.tag]
    types = {output.name: output.type for output in plan.inputs[number].outputs}
    return {
        output.name: column
        for output, column in zip(untagged, plan.columns[number], strict=True)
        if types[column] == output.type
    }


def passed_names(project: Project) -> dict[str, str]:
    """Input columns that a projection passes through, with their new names."""
    found = {}
    for each in project.expressions:
        if (name := plain_column(each.expression)) is not None:
            found[name] = each.name
    return found


def project_names(project: Project) -> dict[str, str]:
    """A projection's columns that are input columns, with their names there."""
    found = {}
    for each in project.expressions:
        if (name := plain_column(each.expression)) is not None:
            found[each.name] = name
    return found


def searchable(
    on: Sequence[tuple[Expression, Expression]], outputs: Sequence[Output]
) -> dict[str, Expression]:
    """Columns that the second terms name, with the expression whose values they are found by."""
    by_name = {output.name: output for output in outputs}
    found: dict[str, Expression] = {}
    for source, target in on:
        name = plain_column(target)
        if name is not None and name in by_name:
            type_ = by_name[name].type
            if type_.can_be_key and source.type == type_:
                found.setdefault(name, source)
    return found
