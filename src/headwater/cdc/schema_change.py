"""What a change of columns upstream means for the table that follows it.

    upstream                          policy evolve          policy ignore
    a column is added                 added at the end       left out
    a column is dropped               dropped                stays, null in rows that change
    a column is renamed               renamed                not possible
    a type becomes wider              the same here          not possible
    order, default, NOT NULL          nothing                nothing
    the key changes, a type becomes   not possible           not possible
    narrower or another

Policy stop makes everything that is not nothing impossible. A table that names its columns follows
only these: what is added upstream is nothing to it. What is not possible stops that table alone,
until a person decides.

A rename is told from a drop and an add by the number that the database knows the column by
(PostgreSQL), or by the statement in the log (MySQL). Names alone decide where there is neither.

Pure: values in, a decision out. `decide` may be asked again about a change that was made: then
it finds nothing to do, which is what makes a repeated read of the log harmless.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pydantic import TypeAdapter, ValidationError

from headwater.cdc.external_table import ExternalColumn, ExternalSchema
from headwater.cdc.offset import CdcOffset, parse_offset, serialized
from headwater.errors import ConfigError, DamagedState, SchemaError
from headwater.model.schema import Column, Schema, widens

OPTION = "schema.change"
RISINGWAVE_OPTION = "auto.schema.change"
_RISINGWAVE = {"true": "evolve", "false": "ignore"}

Renames = Mapping[str, str]


class SchemaPolicy(StrEnum):
    """What a source's tables do when columns change upstream."""

    EVOLVE = "evolve"
    IGNORE = "ignore"
    STOP = "stop"


def policy_of(options: Mapping[str, object]) -> SchemaPolicy:
    """The policy that a source's options name; raises for one that does not exist."""
    if OPTION in options and RISINGWAVE_OPTION in options:
        raise ConfigError(f"{OPTION} and {RISINGWAVE_OPTION} say the same thing", hint="Give one.")
    if RISINGWAVE_OPTION in options:
        text = str(options[RISINGWAVE_OPTION]).lower()
        if text not in _RISINGWAVE:
            raise ConfigError(f'{RISINGWAVE_OPTION} cannot be "{text}"', hint="Give true or false.")
        return SchemaPolicy(_RISINGWAVE[text])
    text = str(options.get(OPTION, SchemaPolicy.EVOLVE)).lower()
    if text not in list(SchemaPolicy):
        known = ", ".join(SchemaPolicy)
        raise ConfigError(f'{OPTION} cannot be "{text}"', hint=f"Give one of {known}.")
    return SchemaPolicy(text)


def without_policy(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are for the connector."""
    return {k: v for k, v in options.items() if k not in (OPTION, RISINGWAVE_OPTION)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """What a table has to do; nothing when its schema stays."""

    schema: Schema
    renamed: tuple[tuple[str, str], ...] = ()
    fill: tuple[str, ...] = ()
    """New columns that rows which are here already have values of upstream."""
    kept: tuple[tuple[str, str], ...] = ()
    """Every column that stays, by its name before and its name now."""
    rewrites: bool = False
    """Whether stored files must be written anew, since they know the columns by other names."""
    text: str = ""
    """What it is, for people; empty for nothing."""


@dataclass(frozen=True, slots=True)
class NotPossible:
    """Why a table cannot follow by itself."""

    why: str


Decision = SchemaChange | NotPossible


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """The table here: its columns, and how it was told to follow."""

    schema: Schema
    policy: SchemaPolicy = SchemaPolicy.EVOLVE
    named: bool = False
    """Whether its columns were named, so that it follows only these."""
    retired: frozenset[str] = frozenset()
    """Names, in lower case, that stored files still hold other values under."""
    included: frozenset[str] = frozenset()
    """Its columns that no column upstream stands behind."""


def decide(  # noqa: PLR0911  one answer per kind of change
    follower: Follower,
    before: ExternalSchema,
    after: ExternalSchema,
    said: Sequence[tuple[str, str]] = (),
) -> Decision:
    """What the step from one external schema to the next asks of a table."""
    survivors = _survivors(before, after, dict(said))
    if unclear := _unclear(before, after, survivors):
        return NotPossible(f'it cannot be told which column became "{unclear}"')
    stored = follower.schema
    found = {each.column.name: each for each in after.columns}
    key = tuple(survivors.get(name, "") for name in stored.key)
    if key != stored.key or set(after.key) != set(stored.key):
        return NotPossible(f"its key is ({', '.join(after.key)}) now")
    stay = _staying(follower, before, found, survivors)
    if isinstance(stay, NotPossible):
        return stay
    new = _added(follower, before, after, set(survivors.values()))
    texts = [*stay.texts, *(f'column "{each.column.name}" was added' for each in new)]
    for each in new:
        if each.column.name.lower() in {name.lower() for name in follower.included}:
            why = f'column "{each.column.name}" was added, and an included column has that name'
            return NotPossible(why)
    if not texts:
        return SchemaChange(schema=stored)
    text = "; ".join(texts)
    if follower.policy is not SchemaPolicy.EVOLVE:
        return NotPossible(text)
    columns = (*stay.columns, *(Column(each.column.name, each.column.type) for each in new))
    try:
        schema = Schema(columns, stored.key)
    except SchemaError as error:
        return NotPossible(f"{text}; {error.message}")
    renamed = tuple(pair for pair in stay.kept if pair[0] != pair[1])
    taken = {*follower.retired, *(name.lower() for name in stored.names)}
    back = any(each.column.name.lower() in taken for each in new)
    return SchemaChange(
        schema=schema,
        renamed=renamed,
        fill=tuple(each.column.name for each in new if each.filled),
        kept=tuple(stay.kept),
        rewrites=bool(renamed) or back,
        text=text,
    )


@dataclass(frozen=True, slots=True)
class _Staying:
    """The table's columns that it still has afterwards, and what happened to them."""

    columns: list[Column] = field(default_factory=list)
    kept: list[tuple[str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def _staying(
    follower: Follower,
    before: ExternalSchema,
    found: Mapping[str, ExternalColumn],
    survivors: Renames,
) -> _Staying | NotPossible:
    stay = _Staying()
    for column in follower.schema.columns:
        if column.name in follower.included:
            stay.columns.append(column)
            stay.kept.append((column.name, column.name))
            continue
        name = survivors.get(column.name)
        if name is None and column.name in found and not _knew(before, column.name):
            # Dropped and ignored once, and there again.
            name = column.name
        if name is None:
            if follower.policy is SchemaPolicy.IGNORE:
                stay.columns.append(column)
            else:
                stay.texts.append(f'column "{column.name}" was dropped')
            continue
        old, new = column.type, found[name].column.type
        if not widens(old, new):
            return NotPossible(
                f'column "{column.name}" was {old.postgres} and is {new.postgres} now'
            )
        if name != column.name:
            stay.texts.append(f'column "{column.name}" is "{name}" now')
        if new != old:
            stay.texts.append(f'column "{name}" is {new.postgres} now, no longer {old.postgres}')
        stay.columns.append(Column(name, new, column.nullable))
        stay.kept.append((column.name, name))
    return stay


def _added(
    follower: Follower, before: ExternalSchema, after: ExternalSchema, kept: set[str]
) -> list[ExternalColumn]:
    if follower.named or follower.policy is SchemaPolicy.IGNORE:
        return []
    here = set(follower.schema.names) - follower.included
    new = [each for each in after.columns if each.column.name not in kept]
    return [each for each in new if each.column.name not in here or _knew(before, each.column.name)]


def _knew(schema: ExternalSchema, name: str) -> bool:
    return any(each.column.name == name for each in schema.columns)


def _unclear(before: ExternalSchema, after: ExternalSchema, survivors: Renames) -> str:
    """A column without a number, where columns that have one are gone."""
    if all(each.number is None for each in before.columns) or len(survivors) == len(before.columns):
        return ""
    kept = set(survivors.values())
    new = [each for each in after.columns if each.column.name not in kept]
    return next((each.column.name for each in new if each.number is None), "")


def _survivors(before: ExternalSchema, after: ExternalSchema, said: Renames) -> Renames:
    """The columns that are still there, by their names before, with their names now."""
    numbers = {each.number: each.column.name for each in after.columns if each.number is not None}
    numbered = {each.column.name: each.number for each in after.columns}
    found = {}
    for each in before.columns:
        name = each.column.name
        if each.number is not None and each.number in numbers:
            found[name] = numbers[each.number]
        elif said.get(name) == "":
            # Dropped; one of that name is another column.
            continue
        elif said.get(name) in numbered:
            found[name] = said[name]
        elif name in numbered and (each.number is None or numbered[name] is None):
            found[name] = name
    return found


def as_said(
    before: ExternalSchema,
    now: ExternalSchema,
    renamed: Sequence[tuple[str, str]],
    mentioned: Iterable[str],
) -> ExternalSchema:
    """A table right after a statement, from what it was before and what it is today.

    Today may be several statements later. Only columns that the statement mentions are taken
    from today; the others are as they were.
    """
    words = {word.lower() for word in mentioned}
    today = {each.column.name: each for each in now.columns}
    renames = dict(renamed)
    columns: list[ExternalColumn] = []
    for each in before.columns:
        name = renames.get(each.column.name, each.column.name)
        if not name:
            continue
        if name.lower() not in words:
            columns.append(each)
        elif name in today:
            columns.append(today[name])
        elif name != each.column.name:
            # Renamed once more since: the type is the best that is known of it.
            column = Column(name, each.column.type, each.column.nullable)
            columns.append(
                ExternalColumn(column=column, upstream_type=each.upstream_type, filled=each.filled)
            )
    have = {each.column.name for each in columns}
    columns += [
        # Rows may have been written under a name in between, which nobody here knew.
        replace(each, filled=each.filled or name in renames.values())
        for name, each in today.items()
        if name not in have and name.lower() in words
    ]
    key = tuple(renames.get(name, name) for name in before.key)
    if not all(name in {each.column.name for each in columns} for name in key):
        key = now.key
    changed = set(now.key) != set(key) and "key" in words
    return ExternalSchema(columns=tuple(columns), key=now.key if changed else key)


# What the ledger keeps of an external table


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSchema:
    """What a table looked like upstream at the place where the log is.

    What the log says of the table before `since` is older than its schema, and its chunks hold it.
    """

    table: str
    schema: ExternalSchema
    since: str | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    """What the last change renamed: one transaction may have rows under both names."""
    upto: str | None = None
    """What the log says of columns up to here is done, though it may be read again."""

    @property
    def decided(self) -> CdcOffset | None:
        """Up to where the log has been followed in what it says of columns."""
        return None if self.upto is None else parse_offset(self.upto)

    @property
    def begins(self) -> CdcOffset | None:
        """Where the log begins to count for the table."""
        return None if self.since is None else parse_offset(self.since)


_FORMAT = "1"
_SEEN: TypeAdapter[SeenSchema] = TypeAdapter(SeenSchema)


def encode_seen(
    table: str,
    schema: ExternalSchema,
    since: CdcOffset | None,
    renamed: tuple[tuple[str, str], ...] = (),
    decided: CdcOffset | None = None,
) -> str:
    """As text, its version first."""
    place = None if since is None else serialized(since)
    upto = None if decided is None else serialized(decided)
    seen = SeenSchema(table=table, schema=schema, since=place, renamed=renamed, upto=upto)
    return _FORMAT + _SEEN.dump_json(seen).decode()


def decode_seen(text: str) -> SeenSchema:
    """What `encode_seen` wrote."""
    if text[:1] != _FORMAT:
        raise DamagedState(
            f"a schema was stored in version {text[:1]}, and this program knows {_FORMAT}",
            hint="Use the version of Headwater that wrote it, or a newer one.",
        )
    try:
        return _SEEN.validate_json(text[1:])
    except ValidationError as error:
        raise DamagedState("a stored external schema cannot be read", detail=text[:200]) from error
