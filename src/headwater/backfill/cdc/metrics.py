"""What a CDC backfill measures, per table, under names that users of such systems know."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class CdcBackfillMetrics:
    """The metrics of all tables of an engine; made once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(name, text, ["table"], registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["table"], registry=registry)

        self.snapshot_rows = counter(
            "stream_cdc_backfill_snapshot_read_row_count", "Snapshot rows that were read."
        )
        self.upstream_rows = counter(
            "stream_cdc_backfill_upstream_output_row_count",
            "Changes of the log that went into the table.",
        )
        self.dropped_rows = counter(
            "headwater_cdc_backfill_snapshot_dropped_row_count",
            "Snapshot rows that were not written because the log had something newer.",
        )
        self.read_again = counter(
            "headwater_cdc_backfill_chunks_read_again",
            "Chunks that did not see a transaction that was already applied.",
        )
        self.read_failures = counter(
            "headwater_cdc_backfill_read_failures", "Reads that failed and are repeated."
        )
        self.splits_total = gauge("headwater_cdc_backfill_splits_total", "Splits of the table.")
        self.splits_remaining = gauge(
            "headwater_cdc_backfill_splits_remaining", "Splits that are not done."
        )
        self.rows_per_second = gauge(
            "headwater_cdc_backfill_rows_per_second", "Snapshot rows per second, smoothed."
        )
        self.snapshotting = gauge(
            "headwater_cdc_backfill_snapshotting", "1 while the table is being backfilled."
        )
        self.pending_keys = gauge(
            "headwater_cdc_backfill_pending_keys", "Keys whose rows must be read by key."
        )

    def forget(self, table: str) -> None:
        """The table is dropped: its series end."""
        for metric in vars(self).values():
            try:
                metric.remove(table)
            except KeyError:
                continue
