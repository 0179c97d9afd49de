"""What is measured of each sink."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DELIVERY_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class SinkMetrics:
    """The metrics of all sinks of an engine; made once per registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rows = Counter(
            "headwater_sink_rows",
            "Rows of the log that were delivered, before folding.",
            ["sink"],
            registry=registry,
        )
        self.deliveries = Counter(
            "headwater_sink_deliveries",
            "Deliveries that the target has and the ledger knows of.",
            ["sink"],
            registry=registry,
        )
        self.failures = Counter(
            "headwater_sink_failures",
            "Steps of deliveries that failed and are tried again.",
            ["sink"],
            registry=registry,
        )
        self.delivery_duration = Histogram(
            "headwater_sink_delivery_duration_seconds",
            "Time in which the target took one delivery.",
            ["sink"],
            buckets=_DELIVERY_BUCKETS,
            registry=registry,
        )
        self.lag_seconds = Gauge(
            "headwater_sink_lag_seconds",
            "Age of the newest epoch that is delivered; near the barrier interval when idle.",
            ["sink"],
            registry=registry,
        )
        self.stalled = Gauge(
            "headwater_sink_stalled",
            "1 while deliveries fail and are tried again.",
            ["sink"],
            registry=registry,
        )

    def follow(self, sink: str, lag: Callable[[], float]) -> None:
        """Ask for the lag whenever somebody looks: it grows while nothing happens."""
        self.lag_seconds.labels(sink).set_function(lag)

    def forget(self, sink: str) -> None:
        """The sink is dropped: its series end."""
        counters = (self.rows, self.deliveries, self.failures)
        for metric in (*counters, self.delivery_duration, self.lag_seconds, self.stalled):
            try:
                metric.remove(sink)
            except KeyError:
                continue
