"""Settings that can change while the engine runs."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from headwater.barrier.events import Pace
from headwater.config import Settings

Listener = Callable[[Settings], None]


class LiveSettings:
    """The settings as they are now, and those who want to hear when they change."""

    def __init__(self, settings: Settings) -> None:
        self.now = settings
        self._listeners: list[Listener] = []

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
