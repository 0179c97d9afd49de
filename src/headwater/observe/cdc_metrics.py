"""What is measured of each followed database, under names that users of such systems know."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Gauge

_OF_A_SERVER = {
    "pg_cdc_confirmed_flush_lsn": "Up to where PostgreSQL may forget its log, as a number.",
    "pg_cdc_upstream_max_lsn": "The end of PostgreSQL's log, as a number.",
    "mysql_cdc_binlog_file_seq_min": "The number of the oldest binlog file at the server.",
    "mysql_cdc_binlog_file_seq_max": "The number of the newest binlog file at the server.",
}


class CdcSourceMetrics:
    """The metrics of all followed databases of an engine; made once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ["source", *labels], registry=registry)

        self.lag_ms = gauge(
            "source_cdc_event_lag_duration_milliseconds",
            "Time since everything that had committed upstream was here; near 0 when idle.",
        )
        self.lag_bytes = gauge(
            "headwater_cdc_lag_bytes", "Log from the position in the ledger to its end."
        )
        self.retained_bytes = gauge(
            "headwater_cdc_retained_bytes", "Log that the server keeps for us alone."
        )
        self.budget_bytes = gauge(
            "headwater_cdc_retained_budget_bytes", "How much it may keep before we warn or drop."
        )
        self.last_event_seconds = gauge(
            "headwater_cdc_last_event_seconds",
            "When the last transaction that was read committed, in seconds since 1970.",
        )
        self.trouble = gauge(
            "headwater_cdc_trouble", "1 while the source cannot be read and a person must act."
        )
        self.table_lag_seconds = gauge(
            "headwater_cdc_table_lag_seconds",
            "The lag of a table that follows; one that stopped has none.",
            "table",
        )
        self.of_a_server = {name: gauge(name, text) for name, text in _OF_A_SERVER.items()}

    def server(self, source: str, figures: Mapping[str, int]) -> None:
        """Figures that only one kind of server has."""
        for name, value in figures.items():
            self.of_a_server[name].labels(source).set(value)

    def forget_table(self, source: str, table: str) -> None:
        """The table is dropped, or stopped: its series ends."""
        _remove(self.table_lag_seconds, source, table)

    def forget(self, source: str) -> None:
        """The source is dropped: its series end."""
        alone = (self.lag_ms, self.lag_bytes, self.retained_bytes, self.budget_bytes)
        for metric in (*alone, self.last_event_seconds, self.trouble, *self.of_a_server.values()):
            _remove(metric, source)


def _remove(metric: Gauge, *labels: str) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        return
