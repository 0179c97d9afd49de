"""Make things ready in a thread while those before them are on their way."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

_T = TypeVar("_T")


def ahead(things: Iterable[_T], size: Callable[[_T], int], most: int) -> Iterator[_T]:
    """The same things in the same order, some of them made before they are asked for.

    No more than `most` in size wait, and one. An error of theirs is raised where it would have
    been. Whoever stops asking stops the thread, at the next thing.
    """
    ready = _Ready(size, most)

    def make() -> None:
        try:
            for thing in things:
                if not ready.put(thing):
                    return
        except BaseException as error:
            ready.failure = error
        ready.end()

    maker = threading.Thread(target=make, name="headwater-ahead", daemon=True)
    maker.start()
    try:
        yield from ready.taken()
    finally:
        ready.end()
        maker.join()
    if ready.failure is not None:
        raise ready.failure


class _Ready(Generic[_T]):
    """What is made and not yet taken."""

    def __init__(self, size: Callable[[_T], int], most: int) -> None:
        self._size, self._most = size, most
        self._things: deque[_T] = deque()
        self._waiting = 0
        self._over = False
        self._changed = threading.Condition()
        self.failure: BaseException | None = None

    def put(self, thing: _T) -> bool:
        """Add one, once there is room; False when nobody wants it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._waiting <= self._most)
            if self._over:
                return False
            self._things.append(thing)
            self._waiting += self._size(thing)
            self._changed.notify_all()
        return True

    def end(self) -> None:
        """Nothing is put any more, or nothing is taken."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def taken(self) -> Iterator[_T]:
        """All of them, as they come."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._things)
                if not self._things:
                    return
                thing = self._things.popleft()
                self._waiting -= self._size(thing)
                self._changed.notify_all()
            yield thing
