"""Run a script of steps on an engine, and check every view wherever it says so.

A step is a statement, or one of these words:

    -- flush                 commit an epoch, then check all views
    -- crash POINT NTH       commit an epoch and die on the way, start again, check
    -- restart               die between two epochs, start again, check
    -- stop                  end well, start again, check
    -- maintain              fold files, forget old epochs

A seed is a script that is made up while it runs; what it ran is written down, so that a failure
is a script too, and stays as a regression case when the seeds have long changed their meaning.
"""

import contextlib
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.errors import BrokenInvariant, HeadwaterError, UserError
from headwater.model.epoch import Epoch
from headwater.testing.fuzz.checking import ViewDiffers, check_views, failed_views
from headwater.testing.fuzz.life import Life

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLUSH, RESTART, STOP, MAINTAIN = "-- flush", "-- restart", "-- stop", "-- maintain"
CRASH = "-- crash"
_VIEW = "CREATE MATERIALIZED VIEW "
_REFUSED = "0A000"
_INVALID = "42"
_EXPECTED = ("22", "21", "23", "2B", "25", "0A", "42")
"""Classes of SQLSTATE that a random statement may run into; the rest is ours."""


_CAUSE = 1500
"""How much of an error's cause is shown; Spark puts what matters at its end."""


class ScriptFailed(AssertionError):
    """A view differs from its query, or the engine broke; carries the steps that led there."""

    def __init__(self, message: str, steps: Sequence[str]) -> None:
        super().__init__(message)
        self.steps = tuple(steps)

    def __str__(self) -> str:
        listed = "\n".join(f"    {step!r}," for step in self.steps)
        return f"{self.args[0]}\nsteps:\n{listed}"


class Script:
    """Runs steps, one after the other, on one workspace."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self._spark = spark
        self._workspace = folder / "workspace"
        self.steps: list[str] = []
        self.views: dict[str, str] = {}
        self.told: Counter[str] = Counter()
        """What happened how often."""
        self.invalid: list[str] = []
        """Statements that were no valid SQL, with the error: mistakes of the generator."""
        self.epochs: list[Epoch] = []
        self.life = Life(self._workspace, spark)

    def __enter__(self) -> "Script":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with contextlib.suppress(Exception):
            self.life.stop()
        shutil.rmtree(self._workspace, ignore_errors=True)

    def run(self, steps: Sequence[str]) -> None:
        """Run steps that were written down."""
        for step in steps:
            self.do(step)

    def do(self, step: str) -> HeadwaterError | None:
        """Run a step; gives the error of a statement that may well be an error."""
        self.steps.append(step)
        try:
            if not step.startswith("--"):
                return self._statement(step)
            self._direct(step)
        except ViewDiffers as error:
            raise ScriptFailed(str(error), self.steps) from error
        except HeadwaterError as error:
            told = f"{type(error).__name__} ({error.sqlstate}): {error}"
            if isinstance(error, BrokenInvariant):
                told += f"\n{error.story}"
            if error.__cause__ is not None:
                told += f"\ncause: {str(error.__cause__)[-_CAUSE:]}"
            raise ScriptFailed(told, self.steps) from error
        return None

    def check(self, epoch: Epoch | None = None) -> None:
        """Compare all views."""
        check_views(self.life.hw, self.views, epoch)
        self.told["checks"] += len(self.views)
        self.told["failed views"] += len(failed_views(self.life.hw))

    # Inside

    def _statement(self, text: str) -> HeadwaterError | None:
        view = text.startswith(_VIEW)
        self.told["views asked for" if view else "statements"] += 1
        try:
            self.life.hw.sql(text)
        except HeadwaterError as error:
            if not _excusable(error):
                raise
            self._count(error, text, view=view)
            return error
        if view:
            name, query = text.removeprefix(_VIEW).split(" AS ", 1)
            self.views[name.split(" ", 1)[0]] = query
            self.told["views"] += 1
        elif text.startswith("DROP MATERIALIZED VIEW "):
            self.views.pop(text.rsplit(" ", 1)[1], None)
        return None

    def _count(self, error: HeadwaterError, text: str, *, view: bool) -> None:
        what = "views" if view else "statements"
        if error.sqlstate == _REFUSED:
            self.told[f"{what} refused"] += 1
        elif error.sqlstate.startswith(_INVALID):
            self.told[f"{what} invalid"] += 1
            self.invalid.append(f"{error.sqlstate} {error.message}: {text}")
        else:
            self.told[f"{what} that raised"] += 1

    def _direct(self, step: str) -> None:
        match step.removeprefix("-- ").split():
            case ["flush"]:
                self.life.hw.flush()
                self._settled()
            case ["crash", point, nth]:
                if self.life.flush_and_crash(point, int(nth)):
                    self.told["crashes"] += 1
                    self._begin()
                self._settled()
            case ["restart"]:
                self.life.crash()
                self.told["crashes"] += 1
                self._begin()
                self._settled()
            case ["stop"]:
                self.life.stop()
                self._begin()
                self._settled()
            case ["maintain"]:
                self.life.hw.maintain()
            case _:
                raise ValueError(f"no such step: {step!r}")

    def _begin(self) -> None:
        self.life = Life(self._workspace, self._spark)

    def _settled(self) -> None:
        """Give failed views their next attempt now rather than later, and check."""
        failures = self.life.hw.engine.keeper.failures
        if any(failure.due for failure in failures.values()):
            for failure in failures.values():
                failure.not_before = 0.0
            self.life.hw.flush()
        self.epochs.append(self.life.hw.visible)
        self.told["epochs"] += 1
        self.check()


def _excusable(error: HeadwaterError) -> bool:
    """Whether a random statement may run into this: class 42 is ours to say, not Spark's."""
    spark_says = type(error) is UserError and error.sqlstate.startswith(_INVALID)
    return error.sqlstate.startswith(_EXPECTED) and not spark_says


def run_script(spark: "SparkSession", folder: Path, steps: Sequence[str]) -> Counter[str]:
    """Run steps from nothing; raises `ScriptFailed`."""
    with Script(spark, folder) as script:
        script.run(steps)
        return script.told
