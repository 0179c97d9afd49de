"""Make a failing script smaller: drop steps, then rows, as long as it still fails."""

import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.testing.fuzz.script import ScriptFailed, run_script

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INSERT = re.compile(r"(INSERT INTO .+? VALUES )(.+)", re.DOTALL)


def shrunk(spark: "SparkSession", steps: Sequence[str], folder: Path) -> ScriptFailed | None:
    """The failure of the smallest script that was found; None when it does not fail again."""
    last: list[ScriptFailed] = []

    def fails(tried: Sequence[str]) -> bool:
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            try:
                run_script(spark, Path(inside), tried)
            except ScriptFailed as failed:
                last.append(failed)
                return True
            except Exception:
                # Another failure than the one that is looked for.
                return False
            return False

    if not fails(steps):
        return None
    small = fewer(list(last[-1].steps), fails)
    fewer_rows(small, fails)
    return last[-1]


def fewer(steps: list[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Leave out as many steps as possible, large runs of them first."""
    size = max(1, len(steps) // 2)
    while True:
        at = 0
        while at < len(steps):
            tried = steps[:at] + steps[at + size :]
            if tried and fails(tried):
                steps = tried
            else:
                at += size
        if size == 1:
            return steps
        size //= 2


def fewer_rows(steps: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Leave out rows of INSERT ... VALUES."""
    kept = list(steps)
    for place in range(len(kept)):
        found = _INSERT.fullmatch(kept[place])
        if found is not None:
            kept = _with_fewer_rows(kept, place, found, fails)
    return kept


def _with_fewer_rows(
    steps: list[str],
    place: int,
    insert: re.Match[str],
    fails: Callable[[Sequence[str]], bool],
) -> list[str]:
    def made(rows: Sequence[str]) -> list[str]:
        return [*steps[:place], insert[1] + ", ".join(rows), *steps[place + 1 :]]

    return made(fewer(rows_of(insert[2]), lambda rows: fails(made(rows))))


def rows_of(values: str) -> list[str]:
    """The rows of a VALUES list, cut apart outside of texts and parentheses."""
    rows, depth, start, text = [], 0, 0, False
    for at, sign in enumerate(values):
        if sign == "'":
            text = not text
        elif not text and sign == "(":
            start = at if depth == 0 else start
            depth += 1
        elif not text and sign == ")":
            depth -= 1
            if depth == 0:
                rows.append(values[start : at + 1])
    return rows
