import asyncio
import gc
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from headwater.testing.clock import START, ManualClock
from headwater.testing.virtual_time import Deadlock, RanTooLong, run, virtual_loop


def test_a_manual_clock_moves_when_told():
    clock = ManualClock()
    assert clock() == clock() == START
    clock.advance(hours=1, seconds=2, milliseconds=3)
    assert clock() == START + timedelta(hours=1, seconds=2, milliseconds=3)
    clock.advance(hours=-5)
    assert clock() < START
    clock.set(datetime(2030, 1, 1, tzinfo=UTC))
    assert clock().year == 2030
    with pytest.raises(ValueError, match="has no time zone"):
        clock.set(datetime(2030, 1, 1))  # noqa: DTZ001


def test_time_jumps_and_nothing_waits():
    async def main():
        await asyncio.sleep(86_400 * 365)
        return virtual_loop().time(), virtual_loop().wall_clock()

    seconds, moment = run(main())
    assert seconds == pytest.approx(86_400 * 365)
    assert moment == START + timedelta(days=365)


def test_timers_fire_in_order_at_their_time():
    async def main():
        fired = []

        async def later(seconds):
            await asyncio.sleep(seconds)
            fired.append((seconds, virtual_loop().time()))

        await asyncio.gather(*(later(s) for s in (3, 1, 2, 0.5)))
        return fired

    assert run(main()) == [(0.5, 0.5), (1, 1), (2, 2), (3, 3)]


def test_timeouts_and_queues_work():
    async def main():
        queue = asyncio.Queue(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await queue.get()
        assert virtual_loop().time() == 5
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(queue.get(), 2)
        async with asyncio.TaskGroup() as group:
            group.create_task(queue.put(1))
            got = group.create_task(queue.get())
        return got.result()

    assert run(main(), seed=3) == 1


async def race(tasks=5, steps=5):
    trace = []

    async def runner(number):
        for step in range(steps):
            trace.append((number, step))
            await asyncio.sleep(0)

    await asyncio.gather(*(runner(n) for n in range(tasks)))
    return tuple(trace)


def test_same_seed_same_trace_other_seed_other_trace():
    traces = {seed: run(race(), seed=seed) for seed in range(50)}
    assert all(run(race(), seed=seed) == trace for seed, trace in traces.items())
    assert len(set(traces.values())) == 50


def test_without_shuffling_the_order_is_that_of_asyncio():
    assert run(race(), seed=1, shuffle=False) == asyncio.run(race())
    assert run(race(), seed=1, shuffle=False) == run(race(), seed=2, shuffle=False)


def test_every_order_of_three_tasks_is_found():
    firsts = {tuple(n for n, step in run(race(3, 1), seed=s) if step == 0) for s in range(200)}
    assert len(firsts) == 6


def test_one_task_can_run_far_ahead_of_another():
    def lead(trace):
        done = dict.fromkeys(range(2), 0)
        most = 0
        for number, _ in trace:
            done[number] += 1
            most = max(most, abs(done[0] - done[1]))
        return most

    assert max(lead(run(race(2, 20), seed=s)) for s in range(100)) >= 4


def test_each_task_keeps_its_own_order_and_callbacks_keep_theirs():
    async def main():
        called = []
        for number in range(20):
            asyncio.get_running_loop().call_soon(called.append, number)
        trace = await race(4, 10)
        return called, trace

    for seed in range(30):
        called, trace = run(main(), seed=seed)
        assert called == list(range(20))
        for number in range(4):
            assert [step for n, step in trace if n == number] == list(range(10))


TRACE = """
import asyncio
from headwater.testing.virtual_time import run
async def main():
    trace = []
    async def work(n):
        try:
            await asyncio.sleep(n % 3)
            trace.append(n)
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            trace.append(-n)
            raise
    tasks = {asyncio.create_task(work(n)) for n in range(1, 40)}
    await asyncio.sleep(10)
    for task in tasks:
        task.cancel()
    done, _ = await asyncio.wait(tasks)
    trace.extend(task.get_name() for task in done)
    return trace
print(run(main(), seed=5))
"""


def test_the_trace_is_the_same_in_another_process():
    outputs = {
        subprocess.run(
            [sys.executable, "-c", TRACE],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(outputs) == 1
    assert "task-" in outputs.pop()


def test_threads_run_inline_and_answer_late():
    async def main():
        here = []
        before = virtual_loop().time()
        result = await asyncio.to_thread(lambda: here.append("ran") or 42)
        waited = virtual_loop().time() - before
        with pytest.raises(ZeroDivisionError):
            await asyncio.get_running_loop().run_in_executor(None, lambda: 1 / 0)
        future = asyncio.get_running_loop().run_in_executor(None, here.append, "at once")
        assert here[-1] == "at once"
        future.cancel()
        await asyncio.sleep(20)
        return result, waited

    assert run(main()) == (42, 0)
    result, waited = run(main(), executor_latency=10)
    assert result == 42
    assert 0 < waited <= 10


def test_a_deadlock_shows_where_everybody_waits():
    async def inner(event):
        await event.wait()

    async def main():
        first, second = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(inner(first), name="the-waiter")
        await inner(second)
        await task

    with pytest.raises(Deadlock) as caught:
        run(main(), seed=9)
    text = str(caught.value)
    assert "seed 9" in text
    assert "the-waiter" in text
    assert "await inner(second)" in text
    assert text.count("await event.wait()") == 2


def test_a_program_that_never_ends_is_stopped():
    async def spin():
        while True:
            await asyncio.sleep(0)

    async def sleep():
        while True:
            await asyncio.sleep(1)

    with pytest.raises(RanTooLong, match="more than 1000 rounds"):
        run(spin(), round_limit=1000)
    with pytest.raises(RanTooLong, match="more than 60 virtual seconds"):
        run(sleep(), time_limit=60)


def test_what_is_left_is_cancelled_at_the_end():
    ended = []

    async def forever():
        try:
            await asyncio.sleep(1e9)
        finally:
            await asyncio.sleep(1)
            ended.append(True)

    async def main():
        task = asyncio.create_task(forever())
        await asyncio.sleep(0.1)
        return task

    task = run(main())
    assert ended == [True]
    assert task.cancelled()


def test_death_runs_no_further_step():
    seen = []

    async def other(number):
        try:
            while True:
                await asyncio.sleep(0)
                if virtual_loop().death is not None:
                    seen.append(number)
        finally:
            await asyncio.sleep(0)
            seen.append("cleanup went on")

    class Died(BaseException):
        pass

    async def main():
        others = [asyncio.create_task(other(n)) for n in range(10)]
        for _ in range(5):
            await asyncio.sleep(0)
        virtual_loop().die(Died())
        await asyncio.gather(*others)

    for seed in range(20):
        with pytest.raises(Died):
            run(main(), seed=seed)
    gc.collect()
    assert seen == []


def test_waiting_for_files_is_refused():
    async def main():
        asyncio.get_running_loop().add_reader(0, print)

    with pytest.raises(RuntimeError, match="virtual time has no input or output"):
        run(main())


def test_code_can_ask_whether_time_is_virtual():
    async def main():
        return virtual_loop()

    with pytest.raises(RuntimeError, match="not run in virtual time"):
        asyncio.run(main())
