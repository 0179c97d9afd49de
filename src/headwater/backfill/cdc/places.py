"""Compare places in one log; places of different databases raise rather than compare."""

from headwater.cdc.offset import BinlogOffset, CdcOffset, PostgresOffset
from headwater.errors import DamagedState


def reaches(offset: CdcOffset, place: CdcOffset) -> bool:
    """Whether everything before `place` is also before `offset`."""
    match offset, place:
        case PostgresOffset(), PostgresOffset():
            return offset >= place
        case BinlogOffset(), BinlogOffset():
            return offset >= place
        case _:
            raise DamagedState(f"{offset} and {place} are places in different logs")


def later(one: CdcOffset, other: CdcOffset) -> CdcOffset:
    """The later of two places."""
    return one if reaches(one, other) else other
