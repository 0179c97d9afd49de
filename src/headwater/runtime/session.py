"""The engine's Spark session, started when it is first needed.

Small epochs need no Spark job, and a session takes seconds to start. So an engine is ready
before its session is, and an engine that never meets anything large never starts one.
"""

from threading import Lock
from typing import TYPE_CHECKING

from headwater.config import Settings
from headwater.runtime.spark import check_session, forget_spark, parallelism, start_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkHandle:
    """Call it for the session; one that the user made is used and never stopped."""

    def __init__(self, settings: Settings, given: "SparkSession | None" = None) -> None:
        self._settings = settings
        self._lock = Lock()
        self._session = given
        self._ours = given is None
        if given is not None:
            check_session(given)

    @property
    def parallelism(self) -> int:
        """How many tasks run side by side."""
        return parallelism(self._settings)

    def __call__(self) -> "SparkSession":
        """The session."""
        with self._lock:
            if self._session is None:
                self._session = start_spark(self._settings)
            return self._session

    def lost(self) -> None:
        """The session does not answer: forget it, so that the next call starts another.

        One that the user made cannot be replaced, and is asked again.
        """
        with self._lock:
            if self._ours and self._session is not None:
                forget_spark()
                self._session = None

    def stop(self) -> None:
        """Stop the session if it is ours and was started."""
        with self._lock:
            if self._ours and self._session is not None:
                self._session.stop()
                self._session = None
