"""The relational algebra that queries are planned into.

A plan is a tree of frozen nodes. Each node says what rows it gives from the rows of its inputs,
and nothing about how: the views room has a batch meaning and a delta rule for each.

Names    Every column in a plan has a name of its own, unique in the whole plan, so that any two
         inputs can be put side by side. Only the top of a plan has the names that the user sees.
Texts    Expressions are Spark SQL over the columns of the node's inputs, with every difference
         between PostgreSQL and Spark already translated.
Keys     `key` names columns that identify a row of the node's output, without hidden help from
         its order. Empty means that the output may hold equal rows; it is then a multiset.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from headwater.model.ids import TableId
from headwater.model.types import BIGINT, DataType


@dataclass(frozen=True, slots=True)
class Output:
    """A column that a node gives."""

    name: str
    type: DataType
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class Expression:
    """A Spark SQL text, its type, and the input columns that it reads."""

    text: str
    type: DataType
    columns: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Named:
    """An expression with the name that its value gets."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class Ordering:
    """One term of an ORDER BY, with nothing left to a default."""

    expression: Expression
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The rows of a stored relation; `columns` maps output names to stored ones."""

    table: TableId
    columns: tuple[tuple[str, str], ...]
    outputs: tuple[Output, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Rows that the query itself names."""

    rows: tuple[tuple[Expression, ...], ...]
    outputs: tuple[Output, ...]
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The rows for which the predicate is true."""

    input: "Plan"
    predicate: Expression

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The input's."""
        return self.input.outputs

    @property
    def key(self) -> tuple[str, ...]:
        """The input's."""
        return self.input.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Each row, computed from one row of the input."""

    input: "Plan"
    expressions: tuple[Named, ...]
    key: tuple[str, ...]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The expressions'."""
        return tuple(Output(each.name, each.expression.type) for each in self.expressions)


class JoinKind(StrEnum):
    """Which rows without a partner stay, and which sides come out."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    SEMI = "semi"
    ANTI = "anti"


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Pairs of rows whose `on` terms are equal and for which `residual` is true.

    Without `on` terms it is a product. Null equals nothing, except in terms marked null-safe.
    """

    kind: JoinKind
    left: "Plan"
    right: "Plan"
    on: tuple[tuple[Expression, Expression], ...]
    null_safe: bool = False
    residual: Expression | None = None
    key: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Both sides', or the left side's alone for SEMI and ANTI."""
        if self.kind in (JoinKind.SEMI, JoinKind.ANTI):
            return self.left.outputs
        return (*self.left.outputs, *self.right.outputs)


SUM_STATE = "_hw_sum_state"
COUNT_STATE = "_hw_count_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """One aggregate: `expression` is the whole call as Spark SQL, DISTINCT and FILTER included.

    `function` and `argument` are its parts, for rules that merge partial states. `finish` is the
    value of an average as Spark SQL over its states, the columns `SUM_STATE` and `COUNT_STATE`.
    """

    name: str
    function: str
    expression: Expression
    argument: Expression | None = None
    distinct: bool = False
    filter: Expression | None = None
    finish: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """One row per group; without `group` exactly one row, also over nothing."""

    input: "Plan"
    group: tuple[str, ...]
    calls: tuple[AggregateCall, ...]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The group's columns, then the calls'."""
        by_name = {output.name: output for output in self.input.outputs}
        calls = (Output(call.name, call.expression.type) for call in self.calls)
        return (*(by_name[name] for name in self.group), *calls)

    @property
    def key(self) -> tuple[str, ...]:
        """The group's columns."""
        return self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionAll:
    """The rows of all inputs; `tag`, if named, holds the number of the input."""

    inputs: tuple["Plan", ...]
    outputs: tuple[Output, ...]
    columns: tuple[tuple[str, ...], ...]
    """For each input: its columns in the order of `outputs` without the tag."""
    tag: str | None = None
    key: tuple[str, ...] = ()


class SetKind(StrEnum):
    """What two multisets give."""

    INTERSECT = "intersect"
    EXCEPT = "except"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetOperation:
    """INTERSECT or EXCEPT, with or without ALL; columns pair up by place."""

    kind: SetKind
    all: bool
    left: "Plan"
    right: "Plan"
    outputs: tuple[Output, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """All columns, unless equal rows are kept."""
        return () if self.all else tuple(output.name for output in self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFunctions:
    """Each row with the values of window functions over its partition.

    Calls of different windows are stacked nodes, so all calls here share `partition`.
    """

    input: "Plan"
    partition: tuple[str, ...]
    calls: tuple[Named, ...]

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The input's, then the calls'."""
        calls = (Output(call.name, call.expression.type) for call in self.calls)
        return (*self.input.outputs, *calls)

    @property
    def key(self) -> tuple[str, ...]:
        """The input's."""
        return self.input.key


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN:
    """The first rows of each partition; ties are broken by the input's key."""

    input: "Plan"
    partition: tuple[str, ...]
    order: tuple[Ordering, ...]
    limit: int | None
    offset: int = 0
    with_ties: bool = False

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The input's."""
        return self.input.outputs

    @property
    def key(self) -> tuple[str, ...]:
        """The input's."""
        return self.input.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """Each row once per element of a list: UNNEST and set-returning functions.

    `expression` gives an array of structs with the fields of `generated`; `outer` keeps rows
    whose array is empty or null. `ordinality` names the element's place, from 1.
    """

    input: "Plan"
    expression: Expression
    generated: tuple[Output, ...]
    ordinality: str
    outer: bool = False

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The input's, the element's, and its place."""
        return (*self.input.outputs, *self.generated, Output(self.ordinality, BIGINT))

    @property
    def key(self) -> tuple[str, ...]:
        """The input's, and the place."""
        return (*self.input.key, self.ordinality) if self.input.key else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """A query without a rule: Spark SQL over its inputs, which it names `{0}`, `{1}`, ..."""

    inputs: tuple["Plan", ...]
    sql: str
    outputs: tuple[Output, ...]
    reason: str
    key: tuple[str, ...] = ()


Plan = (
    Scan
    | Values
    | Filter
    | Project
    | Join
    | Aggregate
    | UnionAll
    | SetOperation
    | WindowFunctions
    | TopN
    | Generate
    | Opaque
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """FOR SYSTEM_TIME AS OF: an epoch, or a moment (with a time zone, or in UTC)."""

    epoch: int | None = None
    moment: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A planned query: the tree, and what the user calls its columns.

    `visible` pairs the user's names with the plan's columns, in order. Columns of the plan that
    are not visible are there for the key alone. `order` and `limit` are for reading only.
    """

    plan: Plan
    visible: tuple[tuple[str, str], ...]
    order: tuple[Ordering, ...] = ()
    limit: int | None = None
    offset: int = 0
    as_of: AsOf | None = None
    """The one moment at which all relations are read; None is the last epoch."""


def inputs_of(plan: Plan) -> tuple[Plan, ...]:
    """The nodes right below."""
    match plan:
        case Scan() | Values():
            return ()
        case Join(left=left, right=right) | SetOperation(left=left, right=right):
            return (left, right)
        case UnionAll(inputs=inputs) | Opaque(inputs=inputs):
            return inputs
        case _:
            return (plan.input,)


def tables_of(plan: Plan) -> frozenset[TableId]:
    """The stored relations that a plan reads."""
    if isinstance(plan, Scan):
        return frozenset({plan.table})
    return frozenset().union(*(tables_of(each) for each in inputs_of(plan)))
