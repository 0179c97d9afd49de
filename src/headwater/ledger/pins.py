"""Pins: epochs that somebody still reads, by name.

A pin set is a pin kept. It is refused when the epoch is already below a table's horizon, and a
record that would raise a horizon above a pin is refused with `LedgerConflict`: whoever made the
record looked at the pins before this one was set, and must look again.
"""

from sqlalchemy import Connection, bindparam, delete, func, select

from headwater.errors import HistoryGone, LedgerConflict, UserError
from headwater.ledger.facts import read_facts, read_floor
from headwater.ledger.tables import PIN
from headwater.ledger.upsert import upsert
from headwater.model.epoch import Epoch
from headwater.model.record import EpochRecord

_ALL = select(PIN).order_by(PIN.c.name)
_OLDEST = select(func.min(PIN.c.epoch))
_DROP = delete(PIN).where(PIN.c.name == bindparam("gone"))


def set_pin(connection: Connection, name: str, epoch: Epoch, head: Epoch) -> None:
    """Keep `epoch` readable; a pin of the same name moves, forwards always.

    Replay: repeatable; the same pin is set once.
    """
    if epoch > head:
        raise UserError(
            f"epoch {epoch} cannot be pinned, because it is not committed",
            detail=f"The last committed epoch is {head}.",
        )
    horizons = read_facts(connection).horizons
    kept = max([read_floor(connection), *horizons.values()])
    before = read_pins(connection).get(name)
    if epoch < kept and (before is None or epoch < before):
        gone = [f"table {table}" for table, horizon in horizons.items() if epoch < horizon]
        raise HistoryGone(
            f"epoch {epoch} cannot be pinned, because it is no longer kept",
            detail=f"The oldest epoch of {', '.join(gone) or 'the ledger'} is {kept}.",
            hint="Pin a later epoch, or raise retention_s for the next time.",
        )
    upsert(connection, PIN, [{"name": name, "epoch": epoch}])


def drop_pin(connection: Connection, name: str) -> None:
    """Let go of a pin.

    Replay: repeatable; a pin that is not there is not missed.
    """
    connection.execute(_DROP, {"gone": name})


def read_pins(connection: Connection) -> dict[str, Epoch]:
    """All pins by name."""
    return {row.name: Epoch(row.epoch) for row in connection.execute(_ALL)}


def refuse_lost_pins(connection: Connection, record: EpochRecord) -> None:
    """Raise `LedgerConflict` if the record's horizons pass a pin."""
    if not record.horizons:
        return
    oldest = connection.execute(_OLDEST).scalar_one()
    passed = [t for t, horizon in record.horizons.items() if oldest and horizon > oldest]
    if passed:
        raise LedgerConflict(
            f"epoch {record.epoch} would drop history that a pin at epoch {oldest} keeps",
            detail=f"Tables: {', '.join(map(str, sorted(passed)))}.",
            hint="Choose the horizons again, with the pins that are set now.",
        )
