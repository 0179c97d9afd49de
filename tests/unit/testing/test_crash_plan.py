import asyncio

import pytest

from headwater.crash_points import POINTS, crash_point
from headwater.testing.crash_plan import CrashPlan, SimulatedCrash
from headwater.testing.virtual_time import run

ONE, TWO = "epoch.before_ledger", "epoch.after_ledger"


def steps(count):
    for _ in range(count):
        crash_point(ONE)
        crash_point(TWO)


def test_it_crashes_at_the_nth_pass():
    plan = CrashPlan.at(TWO, nth=3)
    with plan, pytest.raises(SimulatedCrash, match=r"pass 3 of epoch\.after_ledger") as caught:
        steps(10)
    assert (caught.value.point, caught.value.nth) == (TWO, 3)
    assert plan.passed == {ONE: 3, TWO: 3}
    assert plan.crashes == [caught.value]


def test_passes_are_counted_over_lives():
    plan = CrashPlan.at(ONE, nth=5)
    with plan:
        steps(3)
    with plan, pytest.raises(SimulatedCrash):
        steps(3)
    with plan:
        steps(3)
    assert plan.crashed is None
    assert len(plan.crashes) == 1


def test_no_except_exception_survives_it_and_the_dead_stay_dead():
    plan = CrashPlan.at(ONE)
    written = []

    def careless():
        try:
            crash_point(ONE)
        except Exception:
            written.append("swallowed")

    with plan:
        with pytest.raises(SimulatedCrash):
            careless()
        with pytest.raises(SimulatedCrash):
            crash_point(TWO)
        assert plan.crashed is not None
    assert written == []
    assert TWO not in plan.passed
    crash_point(ONE)


def test_random_crashes_repeat_with_their_seed():
    def lives(seed):
        plan = CrashPlan.anywhere(seed=seed, probability=0.1, most=4)
        for _ in range(30):
            with plan:
                try:
                    steps(20)
                except SimulatedCrash:
                    continue
        return [(crash.point, crash.nth) for crash in plan.crashes]

    assert lives(1) == lives(1)
    assert len(lives(1)) == 4
    assert len({tuple(lives(seed)) for seed in range(20)}) == 20


def test_only_chosen_points_crash():
    plan = CrashPlan.anywhere(seed=1, probability=1.0, points=[TWO])
    with plan, pytest.raises(SimulatedCrash) as caught:
        steps(1)
    assert caught.value.point == TWO


def test_coverage():
    plan = CrashPlan.never()
    with plan:
        steps(2)
    assert plan.unpassed == set(POINTS) - {ONE, TWO}


def test_a_crash_ends_the_whole_virtual_world():
    after = []

    async def writer(number):
        while True:
            await asyncio.sleep(0)
            if plan.crashed is not None:
                after.append(number)
            crash_point(ONE)

    async def main():
        tasks = [asyncio.create_task(writer(n)) for n in range(5)]
        await asyncio.sleep(1000)
        await asyncio.gather(*tasks)

    for seed in range(20):
        plan = CrashPlan.anywhere(seed=seed, probability=0.05)
        with plan, pytest.raises(SimulatedCrash):
            run(main(), seed=seed)
        assert len(plan.crashes) == 1
    assert after == []


def test_bad_plans_are_refused():
    with pytest.raises(ValueError, match="'nowhere' is no crash point"):
        CrashPlan.at("nowhere")
    with pytest.raises(ValueError, match="between 0 and 1"):
        CrashPlan.anywhere(seed=1, probability=2)
    with pytest.raises(ValueError, match="counted from 1"):
        CrashPlan.at(ONE, nth=0)
    with CrashPlan.never(), pytest.raises(RuntimeError, match="in force already"):
        CrashPlan.never().__enter__()
