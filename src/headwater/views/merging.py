"""Aggregates whose state can be merged: the state's columns, and the way to and from them.

    call                       state                          value
    count(*), count(x)         how many                       how many
    sum(x), x exact            how many, and their sum        the sum, null for none
    avg(x), x exact            how many, and their sum        sum / how many, null for none
    min(x), max(x), x exact    how many, the first value,     the first value
                               and how many have it at least

A state is a sum over rows, so rows that go are subtracted, and the state of a group is its
stored state plus the contributions of the changed rows. A group without rows is gone; an
aggregate without groups always has its one row. Sums of floating point numbers depend on the
order of the rows and have no place here; neither have DISTINCT calls.

The first value of a min or max is known as long as rows are known that have it. When the last
of them goes while others are left, the state is in doubt: only the group's rows can tell.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.model.reserved import HIDDEN_PREFIX
from headwater.model.spelling import quoted
from headwater.model.types import BIGINT, INTEGER, MAX_PRECISION, DataType, Kind, decimal
from headwater.sql.algebra import COUNT_STATE, SUM_STATE, Aggregate, AggregateCall, Output
from headwater.views.spelling import WEIGHT, listed, names_of, select_list

ROWS = f"{HIDDEN_PREFIX}rows"
"""How many rows a group has."""
ONLY = f"{HIDDEN_PREFIX}only"
"""The key of an aggregate without groups."""

_WHOLE = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT})
_ORDERED = _WHOLE | {Kind.DECIMAL, Kind.VARCHAR, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ}
_EXTREMES = frozenset({"min", "max"})
_WIDE = decimal(MAX_PRECISION, 0)


def cannot_merge(call: AggregateCall) -> str | None:
    """Why the state of a call cannot be merged; None when it can."""
    if call.distinct:
        return f"{call.function}(distinct) needs all values of a group"
    match call.function:
        case "count":
            return None
        case "sum" | "avg":
            kind = call.argument.type.kind if call.argument else None
            exact = kind is Kind.DECIMAL or (
                kind in _WHOLE
                and (call.function == "sum" or call.finish is not None or kind is not Kind.BIGINT)
            )
            return None if exact else f"{call.function} of {kind} is not exact"
        case "min" | "max":
            kind = call.argument.type.kind if call.argument else None
            return None if kind in _ORDERED else f"{call.function} of {kind} is not kept"
        case _:
            return f"{call.function} cannot take a row back"


@dataclass(frozen=True, slots=True)
class Merging:
    """The state of one aggregate node."""

    node: Aggregate

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies a state."""
        return self.node.group or (ONLY,)

    @property
    def states(self) -> tuple[Output, ...]:
        """The columns of a state, without the group's."""
        found = [Output(ROWS, BIGINT)]
        for number, call in enumerate(self.node.calls):
            found.append(Output(_count(number), BIGINT))
            if call.function in _EXTREMES:
                assert call.argument is not None
                found.append(Output(_first(number), call.argument.type))
                found.append(Output(_having(number), BIGINT))
            elif call.function != "count":
                found.append(Output(_sum(number), _sum_type(call)))
        return tuple(found)

    @property
    def extremes(self) -> dict[int, str]:
        """The calls, by number, whose states may be in doubt."""
        calls = enumerate(self.node.calls)
        return {number: call.function for number, call in calls if call.function in _EXTREMES}

    @property
    def columns(self) -> tuple[Output, ...]:
        """The columns of a stored state."""
        if not self.node.group:
            return (Output(ONLY, INTEGER), *self.states)
        by_name = {output.name: output for output in self.node.input.outputs}
        return (*(by_name[name] for name in self.node.group), *self.states)

    def contributions(self, sql: str, *, weighted: bool) -> str:
        """What each row of the input adds to its group's state."""
        weight = quoted(WEIGHT) if weighted else "1L"
        terms = [f"cast({weight} as bigint) as {quoted(ROWS)}"]
        for number, call in enumerate(self.node.calls):
            counted = [] if call.argument is None else [f"({call.argument.text}) is not null"]
            if call.filter is not None:
                counted.append(f"({call.filter.text})")
            when = " and ".join(counted) or "true"
            terms.append(
                f"cast(case when {when} then {weight} else 0 end as bigint) as "
                f"{quoted(_count(number))}"
            )
            if call.function in _EXTREMES:
                assert call.argument is not None
                value = f"cast(({call.argument.text}) as {call.argument.type.spark})"
                terms.append(f"case when {when} then {value} end as {quoted(_first(number))}")
                terms.append(
                    f"cast(case when {when} then {weight} else 0 end as bigint) as "
                    f"{quoted(_having(number))}"
                )
            elif call.function != "count":
                assert call.argument is not None
                value = f"cast(({call.argument.text}) as {_sum_type(call).spark})"
                signed = f"case when {weight} > 0 then {value} else -{value} end"
                terms.append(f"case when {when} then {signed} end as {quoted(_sum(number))}")
        return f"select {', '.join([self._group(), *terms])} from ({sql})"

    def summed(self, sql: str) -> str:
        """One state per group from the contributions of all its rows, or from any if sums only."""
        own = {}
        for number, function in self.extremes.items():
            first = f"{function}({quoted(_first(number))})"
            own[_first(number)] = first
            own[_having(number)] = f"case when {first} is null then 0L else 1L end"
        return self._summed(sql, own)

    def ranked(self, sql: str) -> str:
        """One state per group from its state and contributions, with exact numbers of firsts."""
        places, own = [], {}
        for number, function in self.extremes.items():
            first, place = quoted(_first(number)), f"_hw_place_{number}"
            way = "asc" if function == "min" else "desc"
            places.append(
                f"rank() over (partition by {listed(self.key)} order by {first} {way} nulls last) "
                f"as {place}"
            )
            some = f"case when coalesce(sum({quoted(_count(number))}), 0) > 0 then"
            met = f"case when {place} = 1 and {first} is not null then {quoted(_having(number))}"
            own[_first(number)] = f"{some} {function}({first}) end"
            own[_having(number)] = f"{some} coalesce(sum({met} else 0L end), 0L) else 0L end"
        return self._summed(f"select *, {', '.join(places)} from ({sql})", own)

    def in_doubt(self, number: int) -> str:
        """Whether a ranked state does not tell the first value of a call."""
        return f"{quoted(_count(number))} > 0 and {quoted(_having(number))} <= 0"

    def _summed(self, sql: str, own: Mapping[str, str]) -> str:
        terms = []
        for output in self.states:
            total = own.get(output.name, f"coalesce(sum({quoted(output.name)}), 0)")
            terms.append(f"cast({total} as {output.type.spark}) as {quoted(output.name)}")
        states = f"select {', '.join([listed(self.key), *terms])} from ({sql})"
        if self.node.group:
            return f"{states} group by {listed(self.key)}"
        # Also over no rows at all there is one state.
        terms.insert(0, f"0 as {quoted(ONLY)}")
        return f"select {', '.join(terms)} from ({sql})"

    def alive(self, sql: str) -> str:
        """The states of groups that have rows."""
        if not self.node.group:
            return sql
        return f"select * from ({sql}) where {quoted(ROWS)} > 0"

    def values(self, sql: str, extra: tuple[str, ...] = ()) -> str:
        """The aggregate's output from states; `extra` state columns stay."""
        terms = [quoted(name) for name in self.node.group]
        terms += [
            f"{_value(number, call)} as {quoted(call.name)}"
            for number, call in enumerate(self.node.calls)
        ]
        return f"select {select_list([*terms, *map(quoted, extra)])} from ({sql})"

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names of the state's columns, the key of a single group included."""
        return names_of(self.states) if self.node.group else (ONLY, *names_of(self.states))

    def _group(self) -> str:
        return listed(self.node.group) if self.node.group else f"0 as {quoted(ONLY)}"


def _count(number: int) -> str:
    return f"{HIDDEN_PREFIX}count_{number}"


def _sum(number: int) -> str:
    return f"{HIDDEN_PREFIX}sum_{number}"


def _first(number: int) -> str:
    return f"{HIDDEN_PREFIX}first_{number}"


def _having(number: int) -> str:
    return f"{HIDDEN_PREFIX}having_{number}"


def _sum_type(call: AggregateCall) -> DataType:
    assert call.argument is not None
    given = call.argument.type
    return decimal(MAX_PRECISION, given.scale or 0) if given.kind is Kind.DECIMAL else _WIDE


def _value(number: int, call: AggregateCall) -> str:
    count, total = quoted(_count(number)), quoted(_sum(number))
    result = call.expression.type.spark
    if call.function == "count":
        return f"cast({count} as {result})"
    if call.function in _EXTREMES:
        return f"case when {count} > 0 then cast({quoted(_first(number))} as {result}) end"
    assert call.argument is not None
    given = call.argument.type
    if call.function == "sum":
        value = total
    elif call.finish is not None:
        value = call.finish.replace(SUM_STATE, total).replace(COUNT_STATE, count)
    elif given.kind is Kind.DECIMAL:
        # As Spark divides: the sum in its own type by the count as decimal.
        precision = min(MAX_PRECISION, (given.precision or 0) + 10)
        value = (
            f"cast({total} as decimal({precision},{given.scale})) / cast({count} as decimal(20,0))"
        )
    else:
        value = f"cast({total} as double) / {count}"
    return f"case when {count} > 0 then cast({value} as {result}) end"
