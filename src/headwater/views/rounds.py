"""Run many computations side by side, answering all that they ask for at once.

A rule that needs something from outside awaits a `Need`. When every computation waits, one
round answers all their needs together: however many views there are, an epoch takes as many
Spark jobs as the deepest of them has rounds.
"""

from collections.abc import Callable, Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

Answer = TypeVar("Answer")

LATER: Any = object()
"""The answer to a need that is better asked again in a later round."""


class Need(Generic[Answer]):
    """Something that only the outside can answer; await it."""

    def __await__(self) -> Generator[Any, Answer, Answer]:
        return (yield self)


class _All:
    def __init__(self, parts: Sequence[Coroutine[Any, Any, Any]]) -> None:
        self.parts = parts

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        answers: list[Any] = yield self
        return answers


class _Fiber:
    def __init__(
        self, work: Coroutine[Any, Any, Any], parent: "_Fiber | None" = None, place: int = 0
    ) -> None:
        self.work, self.parent, self.place = work, parent, place
        self.answers: list[Any] = []
        self.open = 0


async def side_by_side(*parts: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines so that their needs meet in the same rounds."""
    return await _All(parts)


def run(
    works: Sequence[Coroutine[Any, Any, Any]],
    answer: Callable[[list[Any]], list[Any]],
) -> list[Any]:
    """Run coroutines to their ends; `answer` gets the needs of one round and answers some."""
    root = _Fiber(_never())
    ready = _spawn(root, works)
    waiting: list[tuple[_Fiber, Any]] = []
    try:
        while ready or waiting:
            while ready:
                _step(*ready.pop(0), ready, waiting)
            if waiting:
                answers = answer([need for _, need in waiting])
                asked, waiting = list(zip(waiting, answers, strict=True)), []
                for (fiber, need), given in asked:
                    if given is LATER:
                        waiting.append((fiber, need))
                    else:
                        ready.append((fiber, given))
    finally:
        root.work.close()
        for fiber, _ in [*ready, *waiting]:
            fiber.work.close()
    return root.answers


async def _never() -> None:
    """Stand above the coroutines that were handed in."""


def _spawn(parent: _Fiber, works: Sequence[Coroutine[Any, Any, Any]]) -> list[tuple[_Fiber, Any]]:
    parent.answers, parent.open = [None] * len(works), len(works)
    return [(_Fiber(work, parent, place), None) for place, work in enumerate(works)]


def _step(
    fiber: _Fiber, value: Any, ready: list[tuple[_Fiber, Any]], waiting: list[tuple[_Fiber, Any]]
) -> None:
    try:
        asked = fiber.work.send(value)
    except StopIteration as end:
        parent = fiber.parent
        assert parent is not None
        parent.answers[fiber.place] = end.value
        parent.open -= 1
        if parent.open == 0 and parent.parent is not None:
            ready.append((parent, parent.answers))
        return
    if isinstance(asked, _All):
        if asked.parts:
            ready.extend(_spawn(fiber, asked.parts))
        else:
            ready.append((fiber, []))
    else:
        waiting.append((fiber, asked))
