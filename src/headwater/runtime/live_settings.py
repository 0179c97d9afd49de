"""Settings that can change while the engine runs."""

from collections.abc import Callable, Mapping
from typing import Any

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
