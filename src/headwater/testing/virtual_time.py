"""Run asyncio code in virtual time: fast, and the same again for the same seed.

    async def main() -> str:
        await asyncio.sleep(3600)
        return "an hour later"

    run(main(), seed=7)              # takes microseconds

Time moves only when nothing is ready to run, and then jumps to the next timer. Code that is
ready runs in an order drawn from the seed:

    tasks            Among tasks that are ready together any may go first, and one may take
                     several steps before another takes its first. A failing order comes back
                     with its seed. `shuffle=False` keeps asyncio's own order.
    plain callbacks  (`call_soon`) keep their place, since asyncio promises their order.
    threads          There are none: `run_in_executor` and `asyncio.to_thread` run the function
                     at once; its result arrives after up to `executor_latency` virtual seconds.
    sockets, pipes   There are none; waiting for a file is refused.

Promises
    Deterministic   Same seed, same program: same trace. Tasks are named and hashed by their
                    number, so that sets of tasks are walked in the same order every time.
                    Sets of text are not; Python orders them anew in every process.
    Never stuck     Nothing ready and no timer: `Deadlock`, with the stack of every task.
                    More than `round_limit` rounds or `time_limit` seconds: `RanTooLong`.
    Mortal          `die` ends the run as `kill -9` would: no task runs another step.
"""

import asyncio
import math
import selectors
import traceback
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from datetime import datetime, timedelta
from random import Random
from types import FrameType
from typing import Any, TypeVar

from headwater.testing.clock import START

T = TypeVar("T")

ROUND_LIMIT = 10_000_000
"""Rounds of a run that is not given a limit: about a minute, then it counts as endless."""

_TICK = 1e-9


class Deadlock(AssertionError):
    """Every task waits, and nothing is left that could wake one."""


class RanTooLong(AssertionError):
    """The run used more rounds or more virtual time than it was given."""


class _NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on its address."""

    def __init__(self, coro: Any, *, number: int, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class _JumpingSelector(selectors.BaseSelector):
    """Instead of waiting for files, moves the loop's time on."""

    def __init__(self) -> None:
        self.loop: VirtualTimeLoop | None = None
        self._wakeup: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Accept the loop's own wakeup pipe and nothing else."""
        if self.loop is not None:
            raise RuntimeError(
                f"virtual time has no input or output; something waits for {fileobj}"
            )
        key = selectors.SelectorKey(fileobj, fileobj, events, data)
        self._wakeup[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget the wakeup pipe."""
        return self._wakeup.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Move time on by `timeout`, or choose what runs next if something is ready."""
        if self.loop is not None:
            self.loop.next_round(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """What is registered."""
        return self._wakeup

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """What a file was registered with."""
        try:
            return self._wakeup[fileobj]
        except KeyError:
            raise KeyError(f"{fileobj!r} is not registered") from None


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a number and whose order is drawn from a seed."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(
        self,
        seed: int = 0,
        *,
        shuffle: bool = True,
        executor_latency: float = 0.0,
        time_limit: float | None = None,
        round_limit: int | None = ROUND_LIMIT,
    ) -> None:
        self._now = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self.seed = seed
        self.random = Random(f"{seed}/program")
        """For the program's own choices, such as latencies; apart from those of the order."""
        self.clock_skew = timedelta()
        """How far the wall clock is off; a test may change it at any time, also backwards."""
        self.death: BaseException | None = None
        """What the loop died of, if it did."""
        self.rounds = 0
        self._order = Random(f"{seed}/order")
        self._shuffle = shuffle
        self._executor_latency = executor_latency
        self._time_limit = time_limit
        self._round_limit = round_limit
        self._held: list[asyncio.Handle] = []
        self._tasks_made = 0

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now

    def wall_clock(self) -> datetime:
        """The time of day that belongs to the virtual time; fits wherever a WallClock does."""
        return START + timedelta(seconds=self._now) + self.clock_skew

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        """Make a task with a number for a name, so that two runs name it alike."""
        self._tasks_made += 1
        label = f"task-{self._tasks_made}" if name is None else str(name)
        return _NumberedTask(coro, number=self._tasks_made, loop=self, name=label, context=context)

    def run_in_executor(  # type: ignore[override]  # the function runs here, so any result fits
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function at once; hand out its result now or a little later."""
        future = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self._deliver(future.set_exception, future, error)
        else:
            self._deliver(future.set_result, future, result)
        return future

    def die(self, cause: BaseException) -> None:
        """End the run here and now: nothing that is ready or scheduled runs any more."""
        self.death = cause
        for handle in (*self._ready, *self._held, *self._scheduled):
            handle.cancel()
        self.stop()

    def next_round(self, timeout: float | None) -> None:
        """Choose what runs in the round that begins; with nothing ready, move time on."""
        self.rounds += 1
        if self._round_limit is not None and self.rounds > self._round_limit:
            raise RanTooLong(self._told(f"more than {self._round_limit} rounds were run"))
        if self._held:
            self._ready.extendleft(reversed(self._held))
            self._held.clear()
        if self._ready:
            if self._shuffle and len(self._ready) > 1:
                self._reorder()
        elif timeout is None:
            raise Deadlock(self._told("every task waits and no timer is set"))
        elif timeout > 0:
            # The timer's own time, since a sum of differences may fall short of it; and far from
            # zero a clock tick is finer than a float, so that no timer would ever be due.
            self._now = self._scheduled[0].when()
            self._clock_resolution = max(_TICK, 2 * math.ulp(self._now))
            if self._time_limit is not None and self._now > self._time_limit:
                raise RanTooLong(self._told(f"more than {self._time_limit} virtual seconds passed"))

    def finish(self) -> None:
        """Cancel what still runs, as `asyncio.run` does, and close; after `die` only close."""
        try:
            left = self._tasks_left()
            if self.death is None:
                for task in left:
                    task.cancel()
                if left:
                    self._time_limit = self._round_limit = None
                    self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
                self.run_until_complete(self.shutdown_asyncgens())
            else:
                for task in left:
                    _bury(task)
        finally:
            self.close()

    def _deliver(
        self, settle: Callable[[Any], None], future: asyncio.Future[Any], outcome: Any
    ) -> None:
        if self._executor_latency <= 0:
            settle(outcome)
            return

        def arrive() -> None:
            if not future.done():
                settle(outcome)

        self.call_later(self._order.uniform(0, self._executor_latency), arrive)

    def _reorder(self) -> None:
        """Shuffle runs of neighbouring task steps, and hold back a part of the rest."""
        handles = list(self._ready)
        begin = 0
        for end in range(len(handles) + 1):
            if end == len(handles) or not _is_task_step(handles[end]):
                if end - begin > 1:
                    steps = handles[begin:end]
                    self._order.shuffle(steps)
                    handles[begin:end] = steps
                begin = end + 1
        kept = len(handles)
        if self._order.random() < 0.5:
            kept = 1 + int(self._order.random() * len(handles))
        self._held = handles[kept:]
        self._ready.clear()
        self._ready.extend(handles[:kept])

    def _tasks_left(self) -> list[asyncio.Task[Any]]:
        left = asyncio.all_tasks(self)
        return sorted(left, key=lambda task: getattr(task, "number", 0))

    def _told(self, what: str) -> str:
        stacks = "\n".join(_stack(task) for task in self._tasks_left())
        return f"{what}, at virtual time {self._now:g} s, with seed {self.seed}\n{stacks}"


def run(  # noqa: PLR0913  one argument per property of the run
    main: Coroutine[Any, Any, T],
    *,
    seed: int = 0,
    shuffle: bool = True,
    executor_latency: float = 0.0,
    time_limit: float | None = None,
    round_limit: int | None = ROUND_LIMIT,
) -> T:
    """Run `main` to its end in virtual time and give back its result.

    Raises what `main` raises, `Deadlock`, `RanTooLong`, or what the loop was told to die of.
    """
    loop = VirtualTimeLoop(
        seed,
        shuffle=shuffle,
        executor_latency=executor_latency,
        time_limit=time_limit,
        round_limit=round_limit,
    )
    try:
        return loop.run_until_complete(main)
    except BaseException:
        if loop.death is not None:
            raise loop.death from None
        raise
    finally:
        loop.finish()


def virtual_loop() -> VirtualTimeLoop:
    """The loop that runs the caller, which must be one in virtual time."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        raise RuntimeError("this code does not run in virtual time; start it with run()")
    return loop


def _is_task_step(handle: asyncio.Handle) -> bool:
    callback = getattr(handle, "_callback", None)
    return (
        isinstance(getattr(callback, "__self__", None), asyncio.Task)
        and getattr(callback, "__name__", "") != "cancel"
    )


def _stack(task: asyncio.Task[Any]) -> str:
    """Where a task stands, from its first function down to what it waits for."""
    lines = [f"{task.get_name()}:"]
    waits: Any = task.get_coro()
    while waits is not None:
        frame: FrameType | None = getattr(waits, "cr_frame", None) or getattr(
            waits, "gi_frame", None
        )
        if frame is not None:
            summary = traceback.extract_stack(frame, limit=1)[-1]
            lines.append(f"  {summary.filename}:{summary.lineno} in {summary.name}: {summary.line}")
        waits = getattr(waits, "cr_await", None) or getattr(waits, "gi_yieldfrom", None)
    return "\n".join(lines)


def _bury(task: asyncio.Task[Any]) -> None:
    """Let go of a task that will never run again; its cleanup code has no say."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine: Any = task.get_coro()
    try:
        coroutine.close()
    except BaseException:
        return
