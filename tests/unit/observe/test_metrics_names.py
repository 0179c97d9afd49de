from headwater.observe.metrics import Metrics


def test_every_metric_has_a_help_text_and_a_unit_in_its_name():
    families = list(Metrics().registry.collect())
    assert len(families) >= 12
    for family in families:
        assert family.documentation.endswith("."), family.name
        assert family.name.startswith(("headwater_", "meta_")) or family.name == "recovery_latency"


def test_values_are_exposed_and_engines_do_not_share_them():
    first, second = Metrics(), Metrics()
    first.epochs_committed.inc()
    first.barrier_duration.observe(0.2)
    first.rows_staged.labels(table="orders").inc(3)
    text = first.exposition().decode()
    assert "headwater_epochs_committed_total 1.0" in text
    assert "meta_barrier_duration_seconds_count 1.0" in text
    assert 'headwater_rows_staged_total{table="orders"} 3.0' in text
    assert "headwater_epochs_committed_total 0.0" in second.exposition().decode()
