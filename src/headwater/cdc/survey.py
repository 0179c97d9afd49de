"""How a log stands at its server, seen from a position of ours: what operators watch.

A server keeps log for whoever follows it. PostgreSQL keeps it for a slot until its disk is full;
MySQL and MariaDB throw it away after a time, read or not. Both end badly for somebody who does
not look, so each database answers the same few questions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSurvey:
    """What one look at the server gave. None is what it cannot tell."""

    behind_bytes: int | None = None
    """From our position to the end of the log."""
    retained_bytes: int | None = None
    """Kept for us alone."""
    allowed_bytes: int | None = None
    """The most that the server itself keeps for us before it gives up on us."""
    losing: str = ""
    """Why our position may soon be lost, with what helps; empty when it is safe."""
    gauges: Mapping[str, int] = field(default_factory=dict)
    """Figures of this kind of server, by the names of their metrics."""
