"""Leave out columns that nothing above reads: a smaller plan, the same rows."""

from dataclasses import replace

from headwater.sql.algebra import (
    Aggregate,
    Expression,
    Filter,
    Generate,
    Join,
    JoinKind,
    Opaque,
    Plan,
    Project,
    Scan,
    SetOperation,
    TopN,
    UnionAll,
    Values,
    WindowFunctions,
)


def pruned(plan: Plan, needed: frozenset[str]) -> Plan:  # noqa: PLR0911
    """The plan with only the needed columns, its key, and what these are made of."""
    needed = needed | frozenset(plan.key)
    match plan:
        case Scan():
            return _scan(plan, needed)
        case Values() | Opaque():
            return plan
        case Filter(input=inner, predicate=predicate):
            return replace(plan, input=pruned(inner, needed | predicate.columns))
        case Project(input=inner, expressions=expressions):
            kept = tuple(each for each in expressions if each.name in needed)
            return replace(
                plan, input=pruned(inner, _read(each.expression for each in kept)),
                expressions=kept,
            )  # fmt: skip
        case Join():
            return _join(plan, needed)
        case Aggregate(input=inner, group=group, calls=calls):
            kept_calls = tuple(call for call in calls if call.name in needed)
            columns = _read(call.expression for call in kept_calls)
            return replace(plan, input=pruned(inner, columns | set(group)), calls=kept_calls)
        case UnionAll():
            return _union(plan, needed)
        case SetOperation(left=left, right=right):
            return replace(
                plan,
                left=pruned(left, frozenset(output.name for output in left.outputs)),
                right=pruned(right, frozenset(output.name for output in right.outputs)),
            )
        case WindowFunctions(input=inner, partition=partition, calls=named):
            wanted = tuple(call for call in named if call.name in needed)
            below = needed | _read(call.expression for call in wanted) | set(partition)
            inside = pruned(inner, below & frozenset(output.name for output in inner.outputs))
            return replace(plan, input=inside, calls=wanted) if wanted else inside
        case TopN(input=inner, partition=partition, order=order):
            columns = _read(each.expression for each in order)
            return replace(plan, input=pruned(inner, needed | columns | set(partition)))
        case Generate(input=inner, expression=expression):
            below = needed & frozenset(output.name for output in inner.outputs)
            return replace(plan, input=pruned(inner, below | expression.columns))


def _read(expressions: "object") -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for each in expressions:  # type: ignore[attr-defined]
        assert isinstance(each, Expression)
        found |= each.columns
    return found


def _scan(plan: Scan, needed: frozenset[str]) -> Scan:
    columns = tuple(pair for pair in plan.columns if pair[0] in needed)
    outputs = tuple(output for output in plan.outputs if output.name in needed)
    if not columns:
        return replace(plan, columns=plan.columns[:1], outputs=plan.outputs[:1])
    return replace(plan, columns=columns, outputs=outputs)


def _join(plan: Join, needed: frozenset[str]) -> Join:
    for one, other in plan.on:
        needed |= one.columns | other.columns
    if plan.residual is not None:
        needed |= plan.residual.columns
    left_names = frozenset(output.name for output in plan.left.outputs)
    right_names = frozenset(output.name for output in plan.right.outputs)
    right = plan.right
    if plan.kind in (JoinKind.SEMI, JoinKind.ANTI):
        right = _without_key(right)
    return replace(
        plan, left=pruned(plan.left, needed & left_names),
        right=pruned(right, needed & right_names),
    )  # fmt: skip


def _without_key(plan: Plan) -> Plan:
    """The partners of a semi join are only looked for: they need not be told apart."""
    return replace(plan, key=()) if isinstance(plan, Project) else plan


def _union(plan: UnionAll, needed: frozenset[str]) -> UnionAll:
    outputs = [output for output in plan.outputs if output.name != plan.tag]
    keep = [place for place, output in enumerate(outputs) if output.name in needed]
    if not keep:
        keep = [0]
    inputs = tuple(
        pruned(each, frozenset(names[place] for place in keep))
        for each, names in zip(plan.inputs, plan.columns, strict=True)
    )
    tag = tuple(output for output in plan.outputs if output.name == plan.tag)
    return replace(
        plan, inputs=inputs, outputs=(*(outputs[place] for place in keep), *tag),
        columns=tuple(tuple(names[place] for place in keep) for names in plan.columns),
    )  # fmt: skip
