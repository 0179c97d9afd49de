"""What the coordinator tells whoever watches it: the log, metrics, tests."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from headwater.model.barrier import BarrierKind
from headwater.model.epoch import Epoch
from headwater.model.ids import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierSent:
    """A barrier is on its way to so many actors."""

    epoch: Epoch
    kind: BarrierKind
    actors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandStarted:
    """A command's barrier is on its way."""

    command: int
    epoch: Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDurable:
    """An epoch is committed; the ledger took so long."""

    epoch: Epoch
    took: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDelayed:
    """A commit failed and is tried again; said once per cause."""

    epoch: Epoch
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFailed:
    """Jobs have stopped with an error and will be restarted."""

    jobs: tuple[JobId, ...]
    cause: BaseException


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildDelayed:
    """Jobs could not be started and will be tried again."""

    jobs: tuple[JobId, ...]
    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStarted:
    """Jobs have actors that wait for their first barrier."""

    jobs: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockWentBack:
    """The machine's clock was set back; epochs go on growing."""

    by: timedelta


Notice = (
    BarrierSent
    | CommandStarted
    | EpochDurable
    | CommitDelayed
    | GraphFailed
    | RebuildDelayed
    | GraphStarted
    | ClockWentBack
)

Watcher = Callable[[Notice], None]

_log = logging.getLogger("headwater.barrier")


def log_notice(notice: Notice) -> None:
    """Write a notice to the log: what people must know as a warning, the rest for debugging."""
    match notice:
        case GraphFailed(jobs=jobs, cause=cause):
            _log.warning("jobs %s stopped and will be restarted: %s", list(jobs), cause)
        case RebuildDelayed(jobs=jobs, error=error):
            _log.warning("jobs %s could not be started yet: %s", list(jobs), error)
        case CommitDelayed(epoch=epoch, error=error):
            _log.warning("epoch %d is not committed yet: %s", epoch, error)
        case ClockWentBack(by=by):
            _log.warning("the clock went back by %s", by)
        case BarrierSent() | CommandStarted() | EpochDurable() | GraphStarted():
            _log.debug("%s", notice)
        case _ as never:
            assert_never(never)
