"""Named places where a test may stop the process dead.

A crash point stands between two writes. In production it costs one look at a module variable.
`HEADWATER_CRASH=name` kills the process with SIGKILL the first time it passes that point,
`HEADWATER_CRASH=name:3` the third time; `first>second` at the second, once the first was passed:
a point that every epoch passes is so found in one epoch of interest. The simulator installs a
hook instead and raises.

`POINTS` lists every point with what has, and what has not, happened there; `crash_point`
refuses a name that is not listed, and a test walks over all of them.
"""

import os
import signal
from collections.abc import Callable

POINTS: dict[str, str] = {
    "stage.before_files": "an epoch's changes are computed; no file of it is written",
    "stage.after_files": "the files are written; the actor has not collected the barrier",
    "epoch.before_ledger": "every actor has collected; the ledger has no record",
    "epoch.after_ledger": "the record is in the ledger; nothing is published",
    "publish.between_tables": "one table's Delta version is published, the next is not",
    "publish.after": "all versions are published; the source is not acknowledged",
    "source.after_acknowledge": "the source is acknowledged; waiting commands are not told",
    "compaction.after_files": "the folded files are written; no epoch names them",
    "retention.before_delete": "the ledger has the new horizon; old files are still there",
    "retention.between_deletes": "some of the old files are deleted",
    "checkpoint.after_delta_checkpoint": "a Delta checkpoint is written; old log files remain",
    "recovery.before_publish": "the ledger is read; missing versions are not published",
    "recovery.after_publish": "missing versions are published; jobs are not started",
    "cdc.before_slot": "a source is in the catalog; nothing of it is at its server",
    "cdc.after_slot": "slot and publication are made; the ledger has no position",
    "cdc.after_publish": "a new table is published at its server; no split of it is planned",
    "cdc.after_splits": "a new table's splits are planned; the ledger has none of them",
    "cdc.before_table": "a table is published at its server; the catalog does not have it",
    "cdc.after_chunk": "a chunk of a table is read; no epoch has it",
    "cdc.after_acknowledge": "the server was told what it may forget; nothing after it is read",
    "cdc.after_drop": "nothing of ours is at the server; the source is still in the catalog",
    "cdc.before_change": "the log tells of other columns; nobody has followed",
    "cdc.after_old_rows": "rows with old columns have their epoch; the new columns have none",
    "cdc.after_evolve": "new columns are staged; the ledger has neither them nor their catalog",
    "cdc.after_change": "the ledger has the new columns; the table has not joined again",
    "cdc.before_fill": "splits for a new column's values are planned; the ledger has none of them",
    "cdc.after_clear": "a table that is filled anew has no rows; it has its old columns",
    "snapshot.after_slice": "a slice of a new view is written; no epoch has it",
    "snapshot.after_stage": "an epoch has a slice; the actor has not collected the barrier",
    "snapshot.before_merge": "a new view has caught up; nobody has asked for it to join",
    "snapshot.in_merge": "what a new view lacks is staged; the ledger still has it as creating",
    "snapshot.after_merge": "a new view is live in the ledger; its job has not ended",
    "sink.before_prepare": "a delivery is announced in the ledger; no part is at the target",
    "sink.after_prepare": "all parts are at the target, unseen; the ledger has no receipts",
    "sink.after_prepared_mark": "a delivery is fixed in the ledger; the target shows nothing",
    "sink.before_commit": "the target is about to show a delivery",
    "sink.after_commit": "the target shows a delivery; the ledger does not know",
    "sink.after_committed_mark": "the ledger knows that a delivery is shown; the log keeps it",
    "sink.after_truncate": "the log was told to forget a delivery; no epoch has that",
    "sink.after_abort": "what was prepared is gone from the target; the ledger has it under way",
    "sink.after_rewind": "a sink is rewound in the ledger; nothing is read again",
    "upstream.after_pin": "an upstream keeps its history for us; the ledger has nothing of it",
    "upstream.after_slice": "rows of an upstream table are written; no epoch has them",
    "upstream.after_stage": "an epoch has rows of an upstream; the barrier is not collected",
    "swap.in_commit": "what makes a view another is staged; the ledger has it as it was",
    "catalog.before_create": "a relation is about to be created; nothing is written",
    "catalog.after_create": "the relation is in the catalog; its first barrier is not injected",
}

Hook = Callable[[str], None]

_hook: Hook | None = None


def install_hook(hook: Hook | None) -> None:
    """Call `hook(name)` at every point from now on; None takes it away."""
    global _hook  # noqa: PLW0603  one process, one crash plan
    _hook = hook


def crash_point(name: str) -> None:
    """Stop here if a test asked for it."""
    if _hook is not None:
        if name not in POINTS:
            raise KeyError(f"crash point {name!r} is not listed in crash_points.POINTS")
        _hook(name)


def kill_hook(plan: str) -> Hook:
    """Make the hook for a plan, which ends the process with SIGKILL."""
    due: list[str] = []
    for step in plan.split(">"):
        name, _, nth = step.partition(":")
        if name not in POINTS:
            known = ", ".join(POINTS)
            raise KeyError(f"HEADWATER_CRASH names {name!r}; the crash points are: {known}")
        due += [name] * int(nth or "1")

    def hook(passed: str) -> None:
        if due and passed == due[0]:
            del due[0]
            if not due:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


if "HEADWATER_CRASH" in os.environ:
    install_hook(kill_hook(os.environ["HEADWATER_CRASH"]))
