"""What has gone wrong with a sink, how often in a row, and when it is tried again."""

from collections.abc import Callable
from dataclasses import dataclass

from headwater.errors import HeadwaterError, UserError
from headwater.model.epoch import Epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """One wait after each failure: it doubles from the first to the longest, less some jitter."""

    first_s: float = 0.2
    longest_s: float = 30.0

    def wait(self, failures: int, dice: float) -> float:
        """The wait after so many failures in a row; `dice` is between 0 and 1."""
        full = min(self.first_s * 2.0 ** min(failures - 1, 60), self.longest_s)
        return full * (1 - dice / 2)


@dataclass(slots=True)
class Trouble:
    """Failures in a row; none after a success."""

    dice: Callable[[], float]
    backoff: Backoff = Backoff()
    error: Exception | None = None
    attempts: int = 0
    since: float | None = None
    until: float = 0.0
    """Nothing is tried before this."""

    def failed(self, error: Exception, now: float, *, wait: bool = True) -> None:
        """Once more; `wait` unless somebody else does."""
        self.error = error
        self.attempts += 1
        self.since = now if self.since is None else self.since
        if wait:
            self.until = now + self.backoff.wait(self.attempts, self.dice())

    def recovered(self) -> None:
        """Something has succeeded."""
        self.error, self.attempts, self.since = None, 0, None

    @property
    def reason(self) -> str:
        """What is wrong, in words that a user may read."""
        if isinstance(self.error, HeadwaterError):
            detail = f" ({self.error.detail})" if self.error.detail else ""
            return f"{self.error.message}{detail}"
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error}"

    @property
    def hint(self) -> str:
        """What to do about it."""
        return self.error.hint if isinstance(self.error, HeadwaterError) else ""


def target_set_back(target: Epoch, shown: Epoch) -> UserError:
    """The error for a target that knows less than it was given."""
    return UserError(
        f"the target has epoch {target}, and was given epoch {shown}",
        detail="It was restored from a backup, or its book-keeping was changed.",
        hint=f"ALTER SINK ... REWIND TO EPOCH {target} delivers what it lost, if it is kept.",
    )
