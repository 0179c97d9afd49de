"""Processes inside one process: each can be killed or frozen at any moment.

A simulated process is whatever runs in a context in which `PROCESS` names it: its tasks, their
timers, and the blocking calls that they hand out. One event loop in virtual time runs them all.

    killed    Nothing of it runs another step: no `finally`, no retry, no farewell. What still
              unwinds in Python finds every door to the world shut.
    frozen    Nothing of it runs until it is thawed; then everything goes on, late, as a machine
              does that was suspended.

Blocking calls run in one of two ways, chosen per seed:

    whole     at once, or after a while, in one piece. Fast.
    strands   in a thread of their own, one at a time with everything else, so that they can
              pause at every step that leaves the process. Then calls of the same process
              interleave the way threads do, and the order still comes from the seed.
"""

import asyncio
import contextvars
import functools
import heapq
import math
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from headwater.testing.virtual_time import VirtualTimeLoop

T = TypeVar("T")


class ProcessDied(BaseException):
    """The process was killed here; nothing may catch this and go on."""


class SimProcess:
    """One life of one engine's process."""

    def __init__(self, loop: "SimLoop", name: str) -> None:
        self.name = name
        self.dead = False
        self.frozen = False
        self.gone: asyncio.Future[None] = loop.create_future()
        """Resolves when the process is killed."""
        self.parked: list[asyncio.Handle] = []
        self.timers: list[asyncio.TimerHandle] = []
        self.strands: list[Strand] = []
        self._loop = loop
        loop.processes.append(self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine as part of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return self._loop.create_task(work, name=f"{self.name} command", context=context)

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in this process and wait; `ProcessDied` if that comes first."""
        task = self.spawn(work)
        await asyncio.wait((task, self.gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or self.dead:
            raise ProcessDied(self.name)
        return task.result()


PROCESS: ContextVar[SimProcess | None] = ContextVar("simulated process", default=None)
_STRAND: ContextVar["Strand | None"] = ContextVar("strand", default=None)


class Strand:
    """One blocking call in a thread; it and the loop's thread never run at the same time."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._go = _shut()
        self._back = _shut()
        self.over = False

    def start(self) -> None:
        """Begin, and run until the first pause or the end."""
        (_idle.pop() if _idle else _Worker()).take(self.run)
        self._back.acquire()

    def resume(self) -> None:
        """Go on until the next pause or the end; returns at once when it is over."""
        if not self.over:
            self._go.release()
            self._back.acquire()

    def pause(self) -> None:
        """Inside the strand: let others run until somebody calls `resume`."""
        self._back.release()
        self._go.acquire()

    def run(self, worker: "_Worker") -> None:
        """Inside a worker's thread: the whole call."""
        try:
            self._call()
        finally:
            self.over = True
            _idle.append(worker)
            self._back.release()


class _Worker:
    """A thread that runs one strand after the other; making one for each costs more than most."""

    def __init__(self) -> None:
        self._ready = _shut()
        self._next: Callable[[_Worker], None] | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def take(self, run: Callable[["_Worker"], None]) -> None:
        self._next = run
        self._ready.release()

    def _run(self) -> None:
        while True:
            self._ready.acquire()
            run, self._next = self._next, None
            if run is not None:
                run(self)
            del run


_idle: list[_Worker] = []


def _shut() -> threading.Lock:
    """A lock that one thread waits at until another opens it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class SimLoop(VirtualTimeLoop):
    """Virtual time for several processes."""

    def __init__(self, seed: int, *, strands: bool, time_limit: float, round_limit: int) -> None:
        super().__init__(seed, time_limit=time_limit, round_limit=round_limit)
        self.processes: list[SimProcess] = []
        self._strands = strands
        self._frozen: list[SimProcess] = []
        self._made: list[asyncio.Task[Any]] = []
        self.set_exception_handler(_complain)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        """Make a task, and keep it: what is left of the dead must not be cleaned up midway."""
        task = super().create_task(coro, name=name, context=context)
        self._made.append(task)
        return task

    def end(self) -> None:
        """Kill everything that is left, and close."""
        for process in self.processes:
            self.kill(process)
        self.death = self.death or ProcessDied("the seed is over")
        with _hushed():
            for task in self._made:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                if not task.done():
                    _close(task)
            self._made.clear()
            self.close()

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio does, unless the process that asks is dead."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        process = _process_of(handle)
        if process is not None and process.dead:
            handle.cancel()
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio does, unless the process that asks is dead or frozen."""
        handle = super().call_at(when, callback, *args, context=context)
        process = _process_of(handle)
        if process is not None and process.dead:
            handle.cancel()
        elif process is not None and process.frozen:
            self._park_timers(process)
        return handle

    def kill(self, process: SimProcess) -> None:
        """End a process here and now."""
        if process.dead:
            return
        process.dead = True
        process.frozen = False
        if process in self._frozen:
            self._frozen.remove(process)
        for handle in (*self._ready, *self._held, *self._scheduled):
            if _process_of(handle) is process:
                handle.cancel()
        process.parked.clear()
        process.timers.clear()
        for strand in tuple(process.strands):
            if _STRAND.get() is not strand:
                strand.resume()
        if not process.gone.done():
            process.gone.set_result(None)

    def freeze(self, process: SimProcess) -> None:
        """Let nothing of a process run; what is in the middle of this round still does."""
        process.frozen = True
        self._frozen.append(process)
        self._park_timers(process)

    def thaw(self, process: SimProcess) -> None:
        """Let a frozen process go on; timers that have passed fire at once."""
        process.frozen = False
        self._frozen.remove(process)
        for timer in process.timers:
            timer._scheduled = True  # type: ignore[attr-defined]
            heapq.heappush(self._scheduled, timer)
        self._ready.extend(process.parked)
        process.timers.clear()
        process.parked.clear()

    def next_round(self, timeout: float | None) -> None:
        """Choose what runs next, leaving frozen processes out."""
        if self._frozen:
            self._park_ready()
            if not self._ready and not self._held and timeout == 0:
                return
        super().next_round(timeout)
        # A timer that fires before its time keeps whoever waits for that time running in place.
        self._clock_resolution = math.ulp(self._now)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a blocking call of the current process, as the module says."""
        process = PROCESS.get()
        if process is not None and process.dead:
            raise ProcessDied(process.name)
        future = self.create_future()
        call = functools.partial(func, *args)
        begin = functools.partial(self._begin, process, future, call)
        if (wait := self.latency()) > 0:
            self.call_later(wait, begin)
        else:
            begin()
        return future

    def latency(self) -> float:
        """How long one step outside the process takes: often nothing, now and then long."""
        draw = self.random.random()
        if draw < 0.5:
            return 0.0
        return self.random.uniform(0, 0.01) if draw < 0.97 else self.random.uniform(0, 0.3)

    def linger(self, seconds: float) -> None:
        """Inside a blocking call: let time pass. A call that runs whole takes none."""
        strand, process = _STRAND.get(), PROCESS.get()
        if strand is None:
            return
        self.call_later(seconds, strand.resume)
        strand.pause()
        if process is not None and process.dead:
            raise ProcessDied(process.name)

    @property
    def in_strand(self) -> bool:
        """Whether the caller is a blocking call that can pause."""
        return _STRAND.get() is not None

    def _begin(
        self, process: SimProcess | None, future: asyncio.Future[Any], call: Callable[[], Any]
    ) -> None:
        if not self._strands or process is None:
            self._work(future, call)
            return
        context = contextvars.copy_context()

        def work() -> None:
            _STRAND.set(strand)
            try:
                self._work(future, call)
            finally:
                process.strands.remove(strand)

        strand = Strand(functools.partial(context.run, work))
        process.strands.append(strand)
        strand.start()

    def _work(self, future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        settle: Callable[[Any], None]
        try:
            outcome = call()
            settle = future.set_result
        except ProcessDied:
            return
        except Exception as error:
            outcome, settle = error, future.set_exception

        def arrive() -> None:
            if not future.done():
                settle(outcome)

        if (wait := self.latency()) > 0:
            self.call_later(wait, arrive)
        else:
            arrive()

    def _park_timers(self, process: SimProcess) -> None:
        mine = [timer for timer in self._scheduled if _process_of(timer) is process]
        if mine:
            for timer in mine:
                timer._scheduled = False  # type: ignore[attr-defined]
            self._scheduled = [t for t in self._scheduled if _process_of(t) is not process]
            heapq.heapify(self._scheduled)
            process.timers.extend(timer for timer in mine if not timer.cancelled())

    def _park_ready(self) -> None:
        ready = list(self._ready)
        held = list(self._held)
        self._ready.clear()
        self._held.clear()
        for handles, kept in ((held, self._held), (ready, self._ready)):
            for handle in handles:
                process = _process_of(handle)
                if process is not None and process.frozen:
                    process.parked.append(handle)
                else:
                    kept.append(handle)


class TurnLock:
    """A reentrant lock for strands: whoever has to wait lets virtual time pass."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        while self._owner not in (None, me):
            if not self._loop.in_strand:
                raise RuntimeError("a lock that a blocking call holds is wanted by the loop itself")
            self._loop.linger(0.001)
        self._owner = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An error that reached the loop itself is nobody's to handle; one nobody asked for is fine."""
    error = context.get("exception")
    if "never retrieved" not in context["message"] and isinstance(loop, SimLoop):
        loop.die(error or AssertionError(context["message"]))


@contextmanager
def _hushed() -> Iterator[None]:
    """Let coroutines of the dead go without a word about what they did not finish."""
    said, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = said


def _close(task: "asyncio.Task[Any]") -> None:
    coroutine: Any = task.get_coro()
    with suppress(BaseException):
        coroutine.close()


def _process_of(handle: asyncio.Handle) -> SimProcess | None:
    context: Context = handle._context  # type: ignore[attr-defined]
    return context.get(PROCESS)
