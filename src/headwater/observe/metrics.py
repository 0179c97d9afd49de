"""Metrics, in one registry per engine.

Names that users of streaming databases know already are kept (`meta_barrier_duration_seconds`,
`recovery_latency`); the others begin with `headwater_`. Durations are in seconds, sizes in bytes.
A registry of its own lets two engines live in one process, as tests do.
"""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_EPOCH_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
_WRITE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)


class Metrics:
    """Everything that one engine measures."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        histogram = partial(Histogram, registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)

        self.barrier_duration = histogram(
            "meta_barrier_duration_seconds",
            "Time from the injection of a barrier until its epoch is complete.",
            buckets=_EPOCH_BUCKETS,
        )
        self.barriers_in_flight = gauge(
            "headwater_barriers_in_flight", "Barriers that are injected and not yet complete."
        )
        self.epochs_committed = counter(
            "headwater_epochs_committed", "Epochs that are in the ledger."
        )
        self.committed_epoch_seconds = gauge(
            "headwater_committed_epoch_seconds",
            "When the last committed epoch began, in seconds since 1970.",
        )
        self.ledger_append_duration = histogram(
            "headwater_ledger_append_duration_seconds",
            "Time of one commit to the ledger.",
            buckets=_WRITE_BUCKETS,
        )
        self.commit_duration = histogram(
            "headwater_commit_duration_seconds",
            "Time from the last collection of an epoch until it is published.",
            buckets=_WRITE_BUCKETS,
        )
        self.stage_duration = histogram(
            "headwater_stage_duration_seconds",
            "Time in which one table's changes of one epoch are staged.",
            ["table"],
            buckets=_EPOCH_BUCKETS,
        )
        self.rows_staged = counter(
            "headwater_rows_staged", "Row changes written to staged files.", ["table"]
        )
        self.lookup_hits = counter(
            "headwater_lookup_cache_hits", "Data files that a lookup found in the cache."
        )
        self.lookup_misses = counter(
            "headwater_lookup_cache_misses",
            "Data files that a lookup had to bring into the cache.",
        )
        self.cache_bytes = gauge("headwater_cache_bytes", "Disk space that the lookup cache takes.")
        self.recoveries = counter(
            "headwater_recoveries", "Recoveries since the engine started, by cause.", ["cause"]
        )
        self.recovery_latency = histogram(
            "recovery_latency",
            "Time of one recovery, from the failure until barriers flow again, in seconds.",
            buckets=_RECOVERY_BUCKETS,
        )
        self.files_folded = counter(
            "headwater_files_folded", "Data files replaced by folding.", ["table"]
        )
        self.files_collected = counter(
            "headwater_files_collected", "Files deleted because no kept epoch names them."
        )
        self.bytes_collected = counter(
            "headwater_bytes_collected", "Bytes freed by deleting such files."
        )

    def exposition(self) -> bytes:
        """All values in Prometheus' text format."""
        return generate_latest(self.registry)
