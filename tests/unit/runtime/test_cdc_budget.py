"""How much log a server may keep for us: sizes as people write them, and when somebody hears."""

import pytest

from headwater.errors import ConfigError
from headwater.runtime.cdc_budget import (
    DEFAULT_BYTES,
    BudgetWatch,
    OnRetained,
    Verdict,
    WalBudget,
    parse_budget,
    parse_bytes,
    spelled,
)

GB = 1 << 30


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10 * GB), ("512 mb", 512 << 20), ("1073741824", GB), ("1.5 g", 3 * GB // 2)],
)
def test_sizes_are_read(text, size):
    assert parse_bytes("x", text) == size


@pytest.mark.parametrize("text", ["", "ten", "-1GB", "0", "10 GiBs", "1e9"])
def test_other_sizes_are_refused_by_name(text):
    with pytest.raises(ConfigError, match="max_wal"):
        parse_bytes("max_wal", text)


def test_sizes_are_shown():
    assert spelled(3 * GB // 2) == "1.5 GB"
    assert spelled(10) == "10 bytes"


def test_options():
    assert parse_budget({}, slots=True) == WalBudget()
    given = {"max_wal_retained": "2GB", "on_wal_retained": "drop"}
    assert parse_budget(given, slots=True) == WalBudget(max_bytes=2 * GB, action=OnRetained.DROP)
    with pytest.raises(ConfigError, match="pause") as refused:
        parse_budget({"on_wal_retained": "pause"}, slots=True)
    assert "keeps what is not read" in refused.value.hint
    with pytest.raises(ConfigError, match="needs max_wal_retained"):
        parse_budget({"on_wal_retained": "drop"}, slots=True)
    with pytest.raises(ConfigError, match="binlogs"):
        parse_budget({"max_wal_retained": "2GB"}, slots=False)


def test_what_counts_as_all():
    assert WalBudget(max_bytes=GB).limit(5) == GB
    assert WalBudget().limit(None) == DEFAULT_BYTES
    assert WalBudget().limit(GB) == GB


def test_a_warning_on_the_way_up_and_again_while_it_is_too_much():
    watch, budget = BudgetWatch(), WalBudget(max_bytes=100)
    told = [watch.judge(budget, kept, None, at) for kept, at in [(79, 0), (80, 1), (90, 2)]]
    assert told == [Verdict.FINE, Verdict.WARN, Verdict.FINE]
    told = [watch.judge(budget, kept, None, at) for kept, at in [(100, 3), (150, 4), (150, 303)]]
    assert told == [Verdict.WARN, Verdict.FINE, Verdict.WARN]
    # It went down, and comes up again.
    assert watch.judge(budget, 10, None, 304) is Verdict.FINE
    assert watch.judge(budget, 85, None, 305) is Verdict.WARN


def test_only_what_is_configured_drops():
    drop = WalBudget(max_bytes=100, action=OnRetained.DROP)
    assert BudgetWatch().judge(drop, 99, None, 0) is Verdict.WARN
    assert BudgetWatch().judge(drop, 100, None, 0) is Verdict.DROP
    assert BudgetWatch().judge(WalBudget(), 1 << 50, None, 0) is Verdict.WARN
    assert BudgetWatch().judge(drop, None, None, 0) is Verdict.FINE
