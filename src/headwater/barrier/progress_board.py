"""The progress of all jobs that are being created, and their share in every epoch's record."""

from collections.abc import Sequence

from headwater.barrier.cdc_progress import CdcTableBackfillProgress
from headwater.barrier.local import CdcTableBackfillProgressReported, CreateMviewProgressReported
from headwater.barrier.progress import JobProgress
from headwater.errors import BrokenInvariant
from headwater.model.epoch import Epoch
from headwater.model.ids import ActorId, JobId
from headwater.model.record import Facts

Tracker = JobProgress | CdcTableBackfillProgress


class ProgressBoard:
    """Trackers by job; a job may have one of each kind."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, JobProgress] = {}
        self._tables: dict[JobId, CdcTableBackfillProgress] = {}
        self._durable: dict[str, str] = {}

    def track(self, tracker: Tracker, *, durable: str | None = None) -> None:
        """Follow a job from now on; `durable` is what the ledger has of it."""
        if isinstance(tracker, JobProgress):
            self._jobs[tracker.job] = tracker
        else:
            self._tables[tracker.job] = tracker
        if durable is not None:
            self._durable[tracker.key] = durable

    def of_job(self, job: JobId) -> JobProgress | None:
        """The progress of a job that is followed."""
        return self._jobs.get(job)

    def of_table(self, job: JobId) -> CdcTableBackfillProgress | None:
        """The splits of a table that is followed."""
        return self._tables.get(job)

    def forget(self, job: JobId) -> None:
        """Follow a job no longer."""
        for tracker in (self._jobs.pop(job, None), self._tables.pop(job, None)):
            if tracker is not None:
                self._durable.pop(tracker.key, None)

    def begin(self, job: JobId, generation: int, actors: Sequence[ActorId]) -> None:
        """A job has new actors."""
        for tracker in self._of(job):
            tracker.begin(generation, actors)

    def take_job_report(
        self, job: JobId, report: CreateMviewProgressReported, *, in_flight: bool, at: float
    ) -> None:
        """Pass on a report of a backfill."""
        tracker = self._jobs.get(job)
        if tracker is not None:
            tracker.report(
                report.actor,
                generation=report.generation,
                epoch=report.epoch,
                state=report.state,
                in_flight=in_flight,
                at=at,
            )

    def take_table_report(
        self, job: JobId, report: CdcTableBackfillProgressReported, *, in_flight: bool
    ) -> None:
        """Pass on a report of splits."""
        tracker = self._tables.get(job)
        if tracker is not None:
            tracker.report(
                report.actor,
                generation=report.generation,
                epoch=report.epoch,
                state=report.state,
                in_flight=in_flight,
            )

    def changes(self, upto: Epoch) -> dict[str, str]:
        """What has changed since the last commit, as of `upto`, encoded."""
        stored: list[Tracker] = [job for job in self._jobs.values() if job.stored]
        stored += self._tables.values()
        encoded = {tracker.key: tracker.encode(upto) for tracker in stored}
        return {key: text for key, text in encoded.items() if self._durable.get(key) != text}

    def committed(self, epoch: Epoch, changes: Facts) -> None:
        """The epoch is in the ledger, with these changes."""
        self._durable.update(changes)
        for tracker in self._all():
            tracker.committed(epoch)

    def attach(self, facts: Facts, changes: Facts) -> Facts:
        """The progress that actors handed over together with ours."""
        if twice := facts.keys() & changes.keys():
            raise BrokenInvariant(f"an actor staged progress under {', '.join(sorted(twice))}")
        return {**facts, **changes}

    def _of(self, job: JobId) -> list[Tracker]:
        return [tracker for tracker in self._all() if tracker.job == job]

    def _all(self) -> list[Tracker]:
        return [*self._jobs.values(), *self._tables.values()]
