"""FOR SYSTEM_TIME AS OF: the one moment at which a statement reads all its relations.

An epoch's number, a timestamp, or now minus a constant interval; PROCTIME() and NOW() are the
last epoch. One statement sees one epoch, so two clauses that differ are an error, and relations
without a clause follow the ones that have one. What is kept current is always about now.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlglot import exp

from headwater.sql.algebra import AsOf
from headwater.sql.expression.interval_text import read_interval
from headwater.sql.expression.literals import read_timestamp
from headwater.sql.expression.problem import Text
from headwater.sql.expression.translator import function_name

NOW = AsOf()
"""The last epoch, asked for by name."""


class Moment:
    """What the clauses of one statement say together."""

    def __init__(self, text: Text, now: datetime | None, *, for_view: bool) -> None:
        self._text, self._now, self._for_view = text, now, for_view
        self._found: AsOf | None = None

    @property
    def as_of(self) -> AsOf | None:
        """The moment, or None for the last epoch."""
        return None if self._found == NOW else self._found

    def take(self, version: Any, table: Any) -> None:
        """One clause."""
        if self._for_view:
            self._text.refuse(
                "FOR SYSTEM_TIME AS OF is not allowed in what is kept current",
                table,
                hint="Leave it out: a view follows its tables. Use it in a SELECT.",
            )
        found = self._read(version.args.get("expression"), table)
        if self._found is not None and found != self._found:
            self._text.mistake(
                "a statement reads all its relations at one moment",
                table,
                hint="Write the same AS OF everywhere, or only once.",
                sqlstate="42601",
            )
        self._found = found

    def _read(self, node: Any, table: Any) -> AsOf:
        while isinstance(node, exp.Paren | exp.Cast):
            node = node.this
        if isinstance(node, exp.Literal):
            return self._constant(node, table)
        if _is_now(node):
            return NOW
        if isinstance(node, exp.Sub) and _is_now(node.this):
            now = self._now or datetime.now(UTC)
            self._now = now
            return AsOf(moment=now - self._ago(node.expression, table))
        self._text.refuse("AS OF needs an epoch, a timestamp, or NOW() minus an interval", table)

    def _constant(self, node: Any, table: Any) -> AsOf:
        value = str(node.this).strip()
        if value.isdigit():
            return AsOf(epoch=int(value))
        try:
            moment = read_timestamp(value)
        except ValueError:
            self._text.mistake(
                f'invalid input syntax for type timestamptz: "{value}"', table, sqlstate="22007"
            )
        return AsOf(moment=moment if moment.tzinfo else moment.replace(tzinfo=UTC))

    def _ago(self, node: Any, table: Any) -> timedelta:
        unit = node.args.get("unit") if isinstance(node, exp.Interval) else None
        value = node.this if isinstance(node, exp.Interval) else node
        try:
            months, days, micros = read_interval(
                str(value.this), unit.name if unit is not None else None
            )
        except (ValueError, AttributeError):
            self._text.mistake("AS OF NOW() minus what?", table, sqlstate="22007")
        return timedelta(days=months * 30 + days, microseconds=micros)


def _is_now(node: Any) -> bool:
    if isinstance(node, exp.CurrentTimestamp):
        return True
    return isinstance(node, exp.Anonymous) and function_name(node) in ("now", "proctime")
