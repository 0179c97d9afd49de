"""Settings that can change while the engine runs."""

import contextlib
from collections.abc import Callable, Container, Mapping
from datetime import timedelta
from typing import Any

from headwater.barrier.events import Pace
from headwater.config import Settings
from headwater.errors import ConfigError

Listener = Callable[[Settings], None]


class LiveSettings:
    """The settings as they are now, and those who want to hear when they change."""

    def __init__(self, settings: Settings) -> None:
        self.now = settings
        self._listeners: list[Listener] = []

    def take_over(self, stored: Mapping[str, str], *, given: Container[str]) -> None:
        """Take over what was set before, but for what is given now."""
        for name, value in stored.items():
            if name not in given:
                with contextlib.suppress(ConfigError):
                    # One that this version does not know any more has no effect.
                    self.change({name: value})

    def listen(self, listener: Listener) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    def change(self, values: Mapping[str, Any]) -> Settings:
        """Change live settings; one that is not live is refused and nothing changes."""
        self.now = self.now.change(values, running=True)
        for listener in self._listeners:
            listener(self.now)
        return self.now


def pace_of(settings: Settings) -> Pace:
    """How often barriers are sent."""
    return Pace(
        interval=timedelta(milliseconds=settings.barrier_interval_ms),
        frequency=settings.checkpoint_frequency,
        cap=settings.in_flight_barriers,
    )
