"""The engine's Spark session, started when it is first needed.

Small epochs need no Spark job, and a session takes seconds to start. So an engine is ready
before its session is, and an engine that never meets anything large never starts one.
"""

from threading import Lock
from typing import TYPE_CHECKING

from headwater.config import Settings
from headwater.runtime.spark import (
    check_session,
    forget_spark,
    parallelism,
    running_session,
    start_spark,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkHandle:
    """Call it for the session; one that somebody else made is used and never stopped."""

    def __init__(self, settings: Settings, given: "SparkSession | None" = None) -> None:
        self._settings = settings
        self._lock = Lock()
        self._given = given
        self._session: SparkSession | None = None
        self._ours = False
        if given is not None:
            check_session(given)

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        return parallelism(self._settings)

    def __call__(self) -> "SparkSession":
        """The session."""
        with self._lock:
            if self._given is not None:
                return self._given
            running = running_session()
            if running is None:
                running = start_spark(self._settings)
                self._ours = True
            elif running is not self._session:
                check_session(running)
                self._ours = False
            self._session = running
            return running

    def lost(self) -> None:
        """The session does not answer: forget it, so that the next call starts another.

        One that the user made cannot be replaced, and is asked again.
        """
        with self._lock:
            if self._ours:
                forget_spark()
                self._ours = False

    def stop(self) -> None:
        """Stop the session if it is ours and was started."""
        with self._lock:
            if self._ours and self._session is not None:
                self._session.stop()
                self._ours = False
