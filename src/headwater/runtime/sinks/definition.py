"""A sink as the catalog has it, and what a connector is told of it.

The catalog keeps the options of a sink as its settings:

    name                                        what
    connector, kind, ident                      where to, which changes, and its name at the target
    ignore_delete, commit_checkpoint_interval,  how it is delivered
    sink_rate_limit, backfill_rate_limit
    query                                       the text of AS SELECT, where there is one
    auto.schema.change                          whether it gets new columns of its relation
    into, into_columns                          the table of this workspace that it writes, by id,
                                                and the columns that were named
    format, encode, encode/NAME                 FORMAT and ENCODE, with their options
    with/NAME                                   what stands in WITH for the connector
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from headwater.catalog.relation import ObjectDef
from headwater.model.ids import TableId
from headwater.model.spelling import sql_quoted
from headwater.sinks.sink import Encoding, SinkKind, SinkSpec

_WITH, _ENCODE = "with/", "encode/"
_HIDDEN = "[hidden]"
_SECRET_WORDS = ("password", "secret", "token", "url", "uri", "sasl.jaas", ".key")

EVOLVES = "auto.schema.change"
"""The setting of a sink that carries new columns of its relation to its target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """What a user has said about a sink besides where it leads."""

    connector: str
    kind: SinkKind
    ident: str
    ignore_delete: bool = False
    checkpoints: int = 1
    """How many checkpoints go into one delivery."""
    rate_limit: int | None = None
    query: str = ""
    into: TableId | None = None
    into_columns: tuple[str, ...] = ()
    evolves: bool = False
    """Whether columns that its relation gets later are carried to the target."""

    @classmethod
    def of(cls, sink: ObjectDef) -> Self:
        """Read them from the catalog."""
        said = sink.settings
        limit = said.get("sink_rate_limit", "")
        return cls(
            connector=said["connector"],
            kind=SinkKind(said["kind"]),
            ident=said["ident"],
            ignore_delete=said.get("ignore_delete") == "true",
            checkpoints=int(said.get("commit_checkpoint_interval", "1")),
            rate_limit=int(limit) if limit else None,
            query=said.get("query", ""),
            into=sink.into,
            into_columns=tuple(json.loads(said.get("into_columns", "[]"))),
            evolves=said.get(EVOLVES) == "true",
        )

    def stored(self, options: Mapping[str, str], encoding: Encoding) -> dict[str, str]:
        """As the catalog keeps them, with the options of the connector."""
        own = {
            "connector": self.connector,
            "kind": self.kind.value,
            "ident": self.ident,
            "ignore_delete": "true" if self.ignore_delete else "false",
            "commit_checkpoint_interval": str(self.checkpoints),
            "sink_rate_limit": "" if self.rate_limit is None else str(self.rate_limit),
            "query": self.query,
            "format": encoding.format,
            "encode": encoding.encode,
        }
        if self.evolves:
            own[EVOLVES] = "true"
        if self.into is not None:
            own |= {"into": str(self.into), "into_columns": json.dumps(self.into_columns)}
        own |= {f"{_ENCODE}{name}": value for name, value in encoding.options.items()}
        return own | {f"{_WITH}{name}": value for name, value in options.items()}


def spec_of(sink: ObjectDef) -> SinkSpec:
    """What its connector is told."""
    said, own = sink.settings, SinkSettings.of(sink)
    return SinkSpec(
        name=sink.name,
        ident=own.ident,
        columns=sink.columns,
        key=sink.keys,
        kind=own.kind,
        options=_under(_WITH, said),
        evolves=own.evolves,
        encoding=Encoding(
            format=said.get("format", ""),
            encode=said.get("encode", ""),
            options=_under(_ENCODE, said),
        ),
    )


def sink_text(
    sink: ObjectDef, relation: str, secret: Collection[str], into: str | None = None
) -> str:
    """The statement that would create a sink; secrets are not shown.

    `into` is the name of the table that it writes.
    """
    own, spec = SinkSettings.of(sink), spec_of(sink)
    said = {"connector": own.connector} if into is None else {}
    said["type"] = own.kind.value
    if sink.keys and into is None:
        said["primary_key"] = ", ".join(sink.keys)
    if own.ignore_delete:
        said["ignore_delete"] = "true"
    if own.evolves:
        said[EVOLVES] = "true"
    if own.checkpoints != 1:
        said["commit_checkpoint_interval"] = str(own.checkpoints)
    if own.rate_limit is not None:
        said["sink_rate_limit"] = str(own.rate_limit)
    for name, value in spec.options.items():
        said[name] = _HIDDEN if name in secret or _looks_secret(name) else value
    source = f"AS {own.query}" if own.query else f"FROM {relation}"
    place = ""
    if into is not None:
        named = ", ".join(sql_quoted(each) for each in own.into_columns)
        place = f"INTO {into} ({named}) " if named else f"INTO {into} "
    text = f"CREATE SINK {sql_quoted(sink.name)} {place}{source} WITH ({_listed(said)})"
    encoding = spec.encoding
    if encoding.format:
        text += f" FORMAT {encoding.format.upper()} ENCODE {encoding.encode.upper()}"
        if encoding.options:
            shown = {n: _HIDDEN if _looks_secret(n) else v for n, v in encoding.options.items()}
            text += f" ({_listed(shown)})"
    return text


def _listed(said: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} = '{value.replace(chr(39), 2 * chr(39))}'" for name, value in said.items()
    )


def _looks_secret(name: str) -> bool:
    # A URL may hold a password, too.
    return any(word in name for word in _SECRET_WORDS)


def _under(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(prefix): value
        for name, value in settings.items()
        if name.startswith(prefix)
    }
