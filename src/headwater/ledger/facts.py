"""The latest value of everything that records speak about.

A record holds only what changed in its epoch. Facts are those changes folded together, in the
same transaction, so that a restart reads them in one go: positions of sources, progress of
backfills, ends of logs, states of sinks, and horizons of tables.

An empty value takes a fact away, and so does a horizon of `NO_EPOCH`: that is how a dropped
source, job or table is forgotten, at the same commit that drops it.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, bindparam, delete, select

from headwater.errors import DamagedState
from headwater.ledger.tables import FACT
from headwater.ledger.upsert import upsert
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.model.record import EpochRecord

_HORIZON = "horizon"
_FLOOR = "floor"
_MAPS = ("positions", "progress", "log_ends", "sinks")

_ALL = select(FACT)
_OF_FLOOR = select(FACT.c.value).where(FACT.c.kind == _FLOOR)
_FORGET = delete(FACT).where(
    FACT.c.kind == bindparam("gone_kind"), FACT.c.name == bindparam("gone_name")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """What holds at the last committed epoch."""

    positions: dict[str, str] = field(default_factory=dict)
    progress: dict[str, str] = field(default_factory=dict)
    log_ends: dict[str, str] = field(default_factory=dict)
    sinks: dict[str, str] = field(default_factory=dict)
    horizons: dict[TableId, Epoch] = field(default_factory=dict)


def fold_facts(connection: Connection, record: EpochRecord) -> None:
    """Apply a record's changes.

    Replay: repeatable; applying the same record again changes nothing.
    """
    changed: dict[tuple[str, str], str] = {}
    for kind in _MAPS:
        facts: Mapping[str, str] = getattr(record, kind)
        changed.update({(kind, name): value for name, value in facts.items()})
    for table, horizon in record.horizons.items():
        changed[_HORIZON, str(table)] = "" if horizon == NO_EPOCH else str(horizon)
    for (kind, name), value in changed.items():
        if not value:
            connection.execute(_FORGET, {"gone_kind": kind, "gone_name": name})
    kept = {key: value for key, value in changed.items() if value}
    upsert(connection, FACT, [_row(*key, value, record.epoch) for key, value in kept.items()])


def read_facts(connection: Connection) -> LedgerFacts:
    """All facts; raises `DamagedState` for one that does not fit its checksum."""
    maps: dict[str, dict[str, str]] = {kind: {} for kind in (*_MAPS, _HORIZON, _FLOOR)}
    for row in connection.execute(_ALL):
        if row.kind not in maps or _row(row.kind, row.name, row.value, row.epoch) != row._asdict():
            raise DamagedState(
                f'the ledger\'s {row.kind} of "{row.name}" is damaged',
                detail=f"It was written by epoch {row.epoch} and does not fit its checksum.",
                hint="Restore the ledger's database from a backup.",
            )
        maps[row.kind][row.name] = row.value
    return LedgerFacts(
        **{kind: maps[kind] for kind in _MAPS},
        horizons={TableId(int(k)): Epoch(int(v)) for k, v in maps[_HORIZON].items()},
    )


def read_floor(connection: Connection) -> Epoch:
    """The newest epoch whose record was pruned."""
    value = connection.execute(_OF_FLOOR).scalar_one_or_none()
    return Epoch(int(value)) if value else NO_EPOCH


def write_floor(connection: Connection, floor: Epoch) -> None:
    """Remember that records up to `floor` are gone.

    Replay: repeatable; the caller only ever raises it.
    """
    upsert(connection, FACT, [_row(_FLOOR, "records", str(floor), floor)])


def _row(kind: str, name: str, value: str, epoch: int) -> dict[str, object]:
    said = "\0".join((kind, name, value, str(epoch)))
    checksum = zlib.crc32(said.encode())
    return {"kind": kind, "name": name, "value": value, "epoch": epoch, "checksum": checksum}
