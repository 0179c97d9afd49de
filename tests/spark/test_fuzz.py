"""Random worlds at every epoch, and every bug that the fuzzer has found."""

from collections import Counter

import pytest

from fuzz_regressions import CASES
from headwater.errors import BrokenInvariant, UserError
from headwater.testing.fuzz.checking import ViewDiffers, check_views
from headwater.testing.fuzz.life import QUICK
from headwater.testing.fuzz.script import Script, ScriptFailed, run_script
from headwater.testing.fuzz.shrink import fewer, fewer_rows, rows_of
from headwater.testing.fuzz.world import run_seed

SEEDS = range(1000, 1008)


@pytest.fixture(scope="module")
def quick(spark):
    before = {name: spark.conf.get(name) for name in QUICK}
    for name, value in QUICK.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.mark.timeout(1800)
def test_no_seed_diverges(quick, tmp_path):
    told, invalid = Counter(), []
    for seed in SEEDS:
        report = run_seed(quick, seed, tmp_path / str(seed))
        told += report.told
        invalid += report.invalid
    # The budget is worth something: views were made, checked, and crashed over.
    assert told["views"] >= 3 * len(SEEDS), told
    assert told["checks"] >= 15 * len(SEEDS), told
    assert told["crashes"] > 0, told
    assert told["views refused"] + told["views invalid"] <= 0.2 * told["views asked for"], told
    assert len(invalid) <= len(SEEDS), "\n".join(invalid)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CASES)
def test_a_bug_that_was_found_stays_away(name, quick, tmp_path, request):
    case = CASES[name]
    if case.open:
        request.node.add_marker(pytest.mark.xfail(reason=case.open, strict=True))
    run_script(quick, tmp_path, case.steps)


@pytest.mark.timeout(900)
def test_a_failed_view_raises_with_its_query_and_heals(quick, tmp_path):
    steps = [
        "CREATE TABLE t (i1 integer PRIMARY KEY, i2 integer)",
        "INSERT INTO t VALUES (1, 1), (2, 5)",
        "-- flush",
        "CREATE MATERIALIZED VIEW v1 AS SELECT i1, 10 / i2 AS q FROM t",
        "CREATE MATERIALIZED VIEW v2 AS SELECT sum(q) AS s FROM v1",
        "CREATE MATERIALIZED VIEW v3 AS SELECT count(*) AS n FROM t",
        "INSERT INTO t VALUES (3, 0)",
        "-- flush",
    ]
    with Script(quick, tmp_path) as script:
        script.run(steps)
        assert script.told["failed views"] == 2
        with pytest.raises(UserError, match="division by zero") as raised:
            script.life.hw.sql("SELECT * FROM v2")
        assert raised.value.sqlstate == "22012"
        script.do("-- restart")
        assert script.told["failed views"] == 4
        script.run(["UPDATE t SET i2 = 2 WHERE i1 = 3", "-- flush"])
        assert script.told["failed views"] == 4
        assert script.life.hw.sql("SELECT s FROM v2").rows() == [(17,)]


@pytest.mark.timeout(900)
def test_the_check_sees_a_row_too_many_too_few_and_another_type(quick, tmp_path):
    with Script(quick, tmp_path) as script:
        script.run(
            [
                "CREATE TABLE t (i1 integer)",
                "INSERT INTO t VALUES (1), (1), (NULL)",
                "-- flush",
                "CREATE MATERIALIZED VIEW v1 AS SELECT i1 FROM t",
                "-- flush",
            ]
        )
        hw = script.life.hw
        check_views(hw, {"v1": "SELECT i1 FROM t"})
        with pytest.raises(ViewDiffers, match="1 missing, 0 extra"):
            check_views(hw, {"v1": "SELECT i1 FROM t UNION ALL SELECT 1"})
        with pytest.raises(ViewDiffers, match="0 missing, 1 extra"):
            check_views(hw, {"v1": "SELECT DISTINCT i1 FROM t"})
        with pytest.raises(ViewDiffers, match="types"):
            check_views(hw, {"v1": "SELECT i1::bigint AS i1 FROM t"})
        with pytest.raises(ViewDiffers, match="its query raises"):
            check_views(hw, {"v1": "SELECT i1 / 0 AS i1 FROM t"})


def test_an_error_that_no_row_can_cause_fails_the_script(quick, tmp_path):
    with Script(quick, tmp_path) as script:
        assert script.do("CREATE TABLE t (i1 integer)") is None
        refused = script.do("CREATE MATERIALIZED VIEW v1 AS SELECT now() AS n FROM t")
        assert refused is not None
        assert script.told["views refused"] == 1
        assert script.do("CREATE MATERIALIZED VIEW v1 AS SELECT nope FROM t") is not None
        assert len(script.invalid) == 1

        async def broken():
            raise BrokenInvariant("on purpose", story=["and why"])

        script.life.hw.engine.flush = broken
        with pytest.raises(ScriptFailed, match="on purpose") as failed:
            script.do("-- flush")
        assert failed.value.steps[0] == "CREATE TABLE t (i1 integer)"


def test_shrinking_leaves_what_matters():
    steps = ["a", "b", "INSERT INTO t VALUES (1, 'x),('), (2, 'y'), (3, '')", "c", "d"]

    def fails(tried):
        return "b" in tried and any("(2, 'y')" in step for step in tried)

    small = fewer(steps, fails)
    assert small == ["b", "INSERT INTO t VALUES (1, 'x),('), (2, 'y'), (3, '')"]
    assert fewer_rows(small, fails) == ["b", "INSERT INTO t VALUES (2, 'y')"]
    assert rows_of("(1, 'it''s ('), (f(2), 3)") == ["(1, 'it''s (')", "(f(2), 3)"]
