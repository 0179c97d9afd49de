"""Random tables, random changes and random plans of all operators, several deep."""

from decimal import Decimal
from random import Random
from typing import Any

from headwater.model.schema import Schema
from headwater.model.types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    INTEGER,
    VARCHAR,
    DataType,
    Kind,
    decimal,
    list_of,
)
from headwater.sql.algebra import AggregateCall, JoinKind, Output, Plan, SetKind
from headwater.testing.oracle import Key, Row, key_of
from views_build import Builder, names_of, schema_of

MONEY = decimal(10, 2)
SCHEMAS: dict[int, Schema] = {
    1: schema_of(("id",), id=INTEGER, a=INTEGER, b=BIGINT, s=VARCHAR, m=MONEY, f=DOUBLE),
    2: schema_of(("id", "s"), id=INTEGER, s=VARCHAR, a=INTEGER, day=DATE, yes=BOOLEAN),
    3: schema_of(("id",), id=BIGINT, a=INTEGER, s=VARCHAR, many=list_of(INTEGER)),
}

_POOLS: dict[DataType, list[Any]] = {
    INTEGER: [None, -1, 0, 1, 2, 3, 2**31 - 1, -(2**31)],
    BIGINT: [None, 0, 1, 2, 2**62, -(2**63)],
    VARCHAR: [None, "", "a", "b", "A", "it's", "\u00e9"],
    MONEY: [
        None,
        Decimal("0.00"),
        Decimal("0.01"),
        Decimal("-99999999.99"),
        Decimal("99999999.99"),
    ],
    DOUBLE: [None, 0.0, -0.0, 1.5, -2.25, float("nan"), float("inf")],
    BOOLEAN: [None, True, False],
    list_of(INTEGER): [None, [], [1], [2, None, 2], [3, 1]],
}


def value(random: Random, type_: DataType) -> Any:
    if type_ == DATE:
        from datetime import date

        return random.choice([None, date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29)])
    return random.choice(_POOLS[type_])


def row(random: Random, schema: Schema) -> Row:
    made = {column.name: value(random, column.type) for column in schema.columns}
    for name in schema.key:
        kind = schema[name].type.kind
        made[name] = (
            random.choice(("a", "b", "A", "")) if kind is Kind.VARCHAR else random.randrange(12)
        )
    return made


def rows(random: Random, schema: Schema, most: int) -> dict[Key, Row]:
    made = [row(random, schema) for _ in range(random.randrange(most))]
    return {key_of(each, schema.key): each for each in made}


def changed(random: Random, before: dict[Key, Row], schema: Schema, most: int) -> dict[Key, Row]:
    """The rows after some inserts, updates and deletes."""
    after = dict(before)
    if random.random() < 0.03:
        return {}
    for _ in range(random.randrange(most)):
        match random.choice(("put", "put", "touch", "delete", "delete")):
            case "put":
                new = row(random, schema)
                after[key_of(new, schema.key)] = new
            case "touch" if after:
                at = random.choice(list(after))
                column = random.choice([c for c in schema.columns if c.name not in schema.key])
                after[at] = {**after[at], column.name: value(random, column.type)}
            case "delete" if after:
                del after[random.choice(list(after))]
    return after


class Planner:
    """Makes random plans out of a seed."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.build = Builder()

    def plan(self, depth: int) -> Plan:
        """A plan at most so deep."""
        if depth <= 0 or self.random.random() < 0.05:
            return self.scan()
        makers = {
            self.filter: 3, self.project: 2, self.join: 5, self.aggregate: 4, self.distinct: 1,
            self.union: 2, self.set: 1, self.window: 2, self.top: 2, self.generate: 1,
            self.opaque: 0.5, self.values: 0.4,
        }  # fmt: skip
        return self.random.choices(list(makers), list(makers.values()))[0](depth)

    def scan(self) -> Plan:
        number = self.random.choice(list(SCHEMAS))
        return self.build.scan(number, SCHEMAS[number])

    def some(self, plan: Plan, *kinds: Kind) -> str | None:
        names = [o.name for o in plan.outputs if not kinds or o.type.kind in kinds]
        return self.random.choice(names) if names else None

    def plain(self, plan: Plan) -> list[str]:
        """Columns that can be grouped and compared by."""
        return [o.name for o in plan.outputs if o.type.can_be_key]

    def condition(self, plan: Plan) -> str:
        name = self.random.choice(names_of(plan))
        kind = {o.name: o.type.kind for o in plan.outputs}[name]
        choices = [f"{name} is not null", f"{name} is null"]
        if kind in (Kind.INTEGER, Kind.BIGINT):
            choices += [f"{name} > 0", f"{name} % 2 = 0", f"{name} <= 2"] * 2
        if kind is Kind.VARCHAR:
            choices += [f"{name} in ('a', 'b')", f"upper({name}) = 'A'"] * 2
        if kind is Kind.DOUBLE:
            choices += [f"{name} > 0", f"not ({name} <= 1)"]
        return self.random.choice(choices)

    def filter(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        return self.build.filter(below, self.condition(below))

    def project(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        terms: dict[str, tuple[str, DataType]] = {}
        moved: dict[str, str] = {}
        for output in below.outputs:
            if output.name not in below.key and self.random.random() < 0.3:
                continue
            moved[output.name] = self.build.fresh(f"p{output.name.rstrip('0123456789')}")
            terms[moved[output.name]] = (output.name, output.type)
        if (name := self.some(below, Kind.INTEGER, Kind.BIGINT)) is not None:
            terms[self.build.fresh("x")] = (f"cast(coalesce({name}, 7) % 5 as bigint)", BIGINT)
        if (name := self.some(below, Kind.VARCHAR)) is not None:
            terms[self.build.fresh("x")] = (f"lower({name})", VARCHAR)
        key = [moved[name] for name in below.key]
        if self.random.random() < 0.15:
            key = []
        return self.build.project(below, key, **terms)

    def join(self, depth: int) -> Plan:
        left, right = self.plan(depth - 1), self.plan(self.random.randrange(depth))
        kind = self.random.choice(list(JoinKind))
        pairs = [
            (a.name, b.name)
            for a in left.outputs
            for b in right.outputs
            if a.type == b.type and a.type.can_be_key and a.type.kind is not Kind.DOUBLE
        ]
        on = self.random.sample(pairs, min(len(pairs), self.random.choice((1, 1, 1, 2))))
        if on and self.random.random() < 0.2:
            # A computed side can be searched only by asking Spark for its values.
            types = {o.name: o.type for o in left.outputs}
            a, b = on[0]
            if types[a] == VARCHAR:
                on[0] = (f"lower({a})::varchar", b)
        residual = None
        a, b = self.some(left, Kind.INTEGER), self.some(right, Kind.INTEGER)
        if a and b and self.random.random() < 0.2:
            residual = f"coalesce({a}, 0) <= coalesce({b}, 1)"
        safe = self.random.random() < 0.25
        return self.build.join(kind, left, right, on, null_safe=safe, residual=residual)

    def calls(self, below: Plan) -> list[AggregateCall]:
        where = self.condition(below) if self.random.random() < 0.25 else None
        build, made = self.build, []
        if self.random.random() < 0.7:
            made.append(build.call(below, "count", None, BIGINT))
        if (name := self.some(below, Kind.INTEGER)) is not None:
            made.append(build.call(below, "sum", name, BIGINT, where=where))
            made.append(build.call(below, "avg", name, DOUBLE))
        if (name := self.some(below, Kind.DECIMAL)) is not None:
            types = {o.name: o.type for o in below.outputs}
            if types[name] == MONEY:
                made.append(build.call(below, "avg", name, decimal(14, 6), where=where))
                made.append(build.call(below, "sum", name, decimal(20, 2)))
        if (name := self.some(below)) is not None:
            made.append(build.call(below, "count", name, BIGINT, where=where))
        if self.random.random() < 0.4 and (name := self.random.choice(self.plain(below) or [""])):
            type_ = {o.name: o.type for o in below.outputs}[name]
            function = self.random.choice(("min", "max", "count", "array_agg"))
            if function == "count":
                made.append(build.call(below, "count", name, BIGINT, distinct=True))
            elif function == "array_agg":
                text = f"sort_array(collect_list({name}))"
                made.append(build.call(below, function, name, list_of(type_), text=text))
            elif type_.kind is not Kind.BOOLEAN:
                made.append(build.call(below, function, name, type_))
        if (name := self.some(below, Kind.DOUBLE)) is not None and self.random.random() < 0.3:
            made.append(build.call(below, "sum", name, DOUBLE))
        return (
            self.random.sample(made, min(len(made), self.random.choice((1, 2, 3)))) if made else []
        )

    def aggregate(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        calls = self.calls(below)
        wanted = self.random.choice((0, 1, 1, 2)) if calls else 1
        group = self.random.sample(self.plain(below), min(wanted, len(self.plain(below))))
        if not calls and not group:
            return below
        return self.build.aggregate(below, group, *calls)

    def distinct(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        plain = self.plain(below)
        group = self.random.sample(plain, min(len(plain), self.random.choice((1, 2, 3))))
        return self.build.aggregate(below, group) if group else below

    def alike(self, depth: int) -> tuple[Plan, Plan]:
        """Two plans with columns of the same types."""
        left, right = self.plan(depth - 1), self.plan(depth - 1)
        sides: tuple[list[str], list[str]] = ([], [])
        free = list(right.outputs)
        for output in left.outputs:
            match = next((other for other in free if other.type == output.type), None)
            if match is not None:
                sides[0].append(output.name)
                sides[1].append(match.name)
                free.remove(match)
        made = []
        for plan, names in zip((left, right), sides, strict=True):
            types = {o.name: o.type for o in plan.outputs}
            moved = {name: self.build.fresh("q") for name in names}
            key = [moved[name] for name in plan.key] if set(plan.key) <= set(names) else []
            terms = {new: (old, types[old]) for old, new in moved.items()}
            made.append(self.build.project(plan, key, **terms))
        return made[0], made[1]

    def union(self, depth: int) -> Plan:
        left, right = self.alike(depth)
        if not left.outputs:
            return self.scan()
        return self.build.union(left, right, tag=self.random.random() < 0.5)

    def set(self, depth: int) -> Plan:
        left, right = self.alike(depth)
        if not left.outputs:
            return self.scan()
        kind, every = self.random.choice(list(SetKind)), self.random.random() < 0.5
        return self.build.set(kind, left, right, every=every)

    def window(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        partition = self.random.sample(self.plain(below), min(1, len(self.plain(below))))
        if self.random.random() < 0.1:
            partition = []
        within = f"partition by {', '.join(partition)} " if partition else ""
        total = ", ".join(f"{name} nulls last" for name in names_of(below))
        calls = [
            (f"cast(row_number() over ({within}order by {total}) as bigint)", BIGINT),
            (f"count(*) over ({within.strip()})", BIGINT),
        ]
        if (name := self.some(below, Kind.INTEGER)) is not None:
            calls.append((f"sum({name}) over ({within.strip()})", BIGINT))
        return self.build.window(below, partition, *self.random.sample(calls, 1))

    def top(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        plain = self.plain(below)
        partition = self.random.sample(plain, min(self.random.choice((0, 1, 1)), len(plain)))
        order = self.random.sample(plain, min(self.random.choice((1, 2)), len(plain)))
        limit = self.random.choice((None, 1, 2, 5))
        return self.build.top(
            below, partition, order, limit=limit, offset=self.random.choice((0, 0, 1)),
            with_ties=bool(limit and order and self.random.random() < 0.2),
        )  # fmt: skip

    def generate(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        outer = self.random.random() < 0.5
        for output in below.outputs:
            if output.type == list_of(INTEGER):
                return self.build.generate(below, output.name, INTEGER, outer=outer)
        if (name := self.some(below, Kind.INTEGER)) is None:
            return below
        text = f"filter(array({name}, 5), y -> y > 1)"
        return self.build.generate(below, text, INTEGER, outer=outer)

    def opaque(self, depth: int) -> Plan:
        below = self.plan(depth - 1)
        names = {o.name: self.build.fresh("o") for o in below.outputs}
        terms = ", ".join(f"{old} as {new}" for old, new in names.items())
        outputs = [Output(names[o.name], o.type) for o in below.outputs]
        first = names_of(below)[0]
        return self.build.opaque(
            [below], f"select {terms} from {{0}} where {first} is not null", outputs
        )

    def values(self, depth: int) -> Plan:
        made = self.build.values([INTEGER, VARCHAR], ["1", "'a'"], ["null", "'b'"], ["1", "'a'"])
        kind = self.random.choice((JoinKind.INNER, JoinKind.LEFT, JoinKind.FULL))
        other = self.plan(depth - 1)
        pairs = [(m.name, o.name) for m in made.outputs for o in other.outputs if m.type == o.type]
        if not pairs:
            return made
        return self.build.join(kind, made, other, [self.random.choice(pairs)])
