"""One engine at a time: terms, owners and who counts as alive.

The fence is one row with a term. An engine that takes over raises the term by one; every
commit names the term it was made under and is refused when a higher one exists. So an engine
that was thought dead, and wakes up, writes nothing.

    the owner in the row                              counts as
    none, or it released the fence                    gone: take over
    this very owner (same token)                      itself: take over
    same machine, process is there, same start time   alive, also when it is frozen
    same machine, no such process, or a zombie        gone, at once
    another machine, heartbeat younger than wait_s    alive
    another machine, heartbeat older                  gone

Same machine means the same boot and the same process namespace, so that two containers with one
host name are not mixed up. On PostgreSQL the server's clock says how old a heartbeat is, so
clocks that disagree do no harm.

Why a living owner may still be taken over by force: fencing makes it safe, only impolite.
"""

import os
import secrets
import socket
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, bindparam, func, select, update

from headwater.errors import BrokenInvariant, Fenced, LedgerConflict, WorkspaceInUse
from headwater.ledger.tables import FENCE
from headwater.model.epoch import Epoch, WallClock
from headwater.model.ids import Term

_ROW = FENCE.c.id == 1
_OF_TERM = FENCE.c.term == bindparam("seen_term")
_READ = select(FENCE).where(_ROW)
_READ_AND_LOCK = _READ.with_for_update()
_SERVER_TIME = select(func.clock_timestamp())
_TAKE = update(FENCE).where(_ROW, _OF_TERM)
_ADVANCE = _TAKE.where(FENCE.c.head == bindparam("seen_head"))
_BEAT = update(FENCE).where(_ROW)
_RELEASE = _TAKE.values(token="")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An engine's process, told apart from every other one before and after it."""

    host: str
    pid: int
    machine: str
    started: str
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    @classmethod
    def this_process(cls) -> Self:
        """The calling process, under a fresh token."""
        pid = os.getpid()
        return cls(
            host=socket.gethostname(),
            pid=pid,
            machine=_machine(),
            started=process_start(pid) or "",
        )

    def is_running(self) -> bool:
        """Whether the process is there; only meaningful on its own machine."""
        if _PROC.is_dir():
            return process_start(self.pid) == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The fence row as one transaction sees it, and the time it was seen at."""

    term: Term
    owner: Owner | None
    heartbeat_at: datetime
    head: Epoch
    now: datetime

    def require(self, term: Term) -> None:
        """Raise `Fenced` unless `term` is the current one and is still held."""
        if term == self.term and self.owner is not None:
            return
        if term > self.term:
            raise BrokenInvariant(f"term {term} was never given; the current one is {self.term}")
        by = "nobody" if self.owner is None else f"pid {self.owner.pid} on {self.owner.host}"
        raise Fenced(
            f"term {term} no longer owns this ledger",
            detail=f"The current term is {self.term}, held by {by}.",
            hint="Another engine has taken over; this one must stop.",
        )

    def living_owner(self, wait_s: float) -> Owner | None:
        """The owner if it counts as alive."""
        if self.owner is None:
            return None
        if self.owner.machine == _machine():
            return self.owner if self.owner.is_running() else None
        silent_s = (self.now - self.heartbeat_at).total_seconds()
        return self.owner if silent_s < wait_s else None


def read_fence(connection: Connection, clock: WallClock, *, lock: bool) -> Fence:
    """Read the row; with `lock`, nobody else can commit or take over until we are done."""
    row = connection.execute(_READ_AND_LOCK if lock else _READ).one()
    server_time = connection.dialect.name == "postgresql"
    now = connection.execute(_SERVER_TIME).scalar_one() if server_time else clock()
    owner = Owner(
        host=row.host, pid=row.pid, machine=row.machine, started=row.started, token=row.token
    )
    return Fence(
        term=Term(row.term),
        owner=owner if row.token else None,
        heartbeat_at=datetime.fromtimestamp(row.heartbeat_at / 1e6, UTC),
        head=Epoch(row.head),
        now=now,
    )


def take_over(
    connection: Connection, owner: Owner, clock: WallClock, *, force: bool, wait_s: float
) -> Term:
    """Become the owner under the next term.

    Replay: a repeated call takes over from itself and only raises the term once more.
    """
    fence = read_fence(connection, clock, lock=True)
    if not force and (fence.owner is None or fence.owner.token != owner.token):
        refuse_living(fence, wait_s)
    term = Term(fence.term + 1)
    taken = connection.execute(
        _TAKE,
        {
            "seen_term": fence.term,
            "term": term,
            "host": owner.host,
            "pid": owner.pid,
            "machine": owner.machine,
            "started": owner.started,
            "token": owner.token,
            "heartbeat_at": _micros(fence.now),
        },
    )
    if taken.rowcount != 1:
        raise LedgerConflict("another engine took over at the same moment")
    return term


def refuse_living(fence: Fence, wait_s: float) -> None:
    """Raise `WorkspaceInUse` if the owner counts as alive."""
    alive = fence.living_owner(wait_s)
    if alive is None:
        return
    raise WorkspaceInUse(
        f"an engine runs on this workspace: pid {alive.pid} on {alive.host}",
        detail=f"It holds term {fence.term}; its last sign of life was at "
        f"{fence.heartbeat_at.isoformat(timespec='seconds')}.",
        hint="Stop it first, or take over by force: the other engine is then fenced and "
        "cannot write any more.",
    )


def advance(connection: Connection, fence: Fence, head: Epoch) -> None:
    """Move the head of the chain, which is also a sign of life.

    Replay: only moves from the head that `fence` saw, hence at most once.
    """
    seen = {"seen_term": fence.term, "seen_head": fence.head}
    moved = connection.execute(_ADVANCE, {**seen, "head": head, "heartbeat_at": _micros(fence.now)})
    if moved.rowcount != 1:
        raise LedgerConflict(f"epoch {head} lost the race for the head of the ledger")


def beat(connection: Connection, fence: Fence) -> None:
    """Leave a sign of life.

    Replay: repeatable; the latest wins.
    """
    connection.execute(_BEAT, {"heartbeat_at": _micros(fence.now)})


def release(connection: Connection, term: Term) -> None:
    """Give the fence up, if `term` still holds it.

    Replay: repeatable; a fence that another term holds stays with it.
    """
    connection.execute(_RELEASE, {"seen_term": term})


def process_start(pid: int) -> str | None:
    """When a process started, in the kernel's ticks; None if it is gone or a zombie."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return None
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    state, start = fields[0], fields[19]
    return None if state in "ZX" else start


def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat(_PROC / 'self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def _micros(time: datetime) -> int:
    return int(time.timestamp() * 1e6)
