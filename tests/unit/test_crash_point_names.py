"""Crash points: every listed one is called somewhere, every called one is listed."""

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headwater import crash_points
from headwater.crash_points import POINTS, crash_point, install_hook, kill_hook

PACKAGE = Path(crash_points.__file__).parent


def called() -> Counter[str]:
    """How often each name is passed to `crash_point` in the package."""
    names: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                function = node.func
                name = function.attr if isinstance(function, ast.Attribute) else function
                if name == "crash_point" or getattr(name, "id", "") == "crash_point":
                    names[node.args[0].value] += 1
    return names


def test_every_listed_point_is_passed_somewhere():
    unused = sorted(set(POINTS) - set(called()))
    assert not unused, f"listed in POINTS, called nowhere: {unused}"


def test_every_called_point_is_listed():
    unlisted = sorted(set(called()) - set(POINTS))
    assert not unlisted, f"called, but not listed in POINTS: {unlisted}"


def test_without_a_hook_a_point_does_nothing():
    install_hook(None)
    crash_point("epoch.before_ledger")


def test_a_hook_sees_every_point_until_it_is_taken_away():
    seen: list[str] = []
    install_hook(seen.append)
    crash_point("epoch.before_ledger")
    crash_point("publish.after")
    install_hook(None)
    crash_point("publish.after")
    assert seen == ["epoch.before_ledger", "publish.after"]


def test_a_misspelled_point_is_refused_under_a_hook():
    install_hook(lambda name: None)
    with pytest.raises(KeyError, match=r"epoch\.befor_ledger"):
        crash_point("epoch.befor_ledger")


def test_a_plan_for_an_unknown_point_is_refused():
    for plan in ("epoch.never", "epoch.after_ledger>epoch.never"):
        with pytest.raises(KeyError, match="the crash points are"):
            kill_hook(plan)


PLANS = [
    ("publish.after", 1),
    ("publish.after:3", 3),
    ("epoch.after_ledger:2>publish.after", 2),
    ("publish.after>epoch.after_ledger>publish.after:2", 3),
]


@pytest.mark.parametrize(("plan", "passes"), PLANS)
def test_the_process_dies_at_the_nth_pass(plan, passes):
    program = (
        "from headwater.crash_points import crash_point\n"
        "for n in range(1, 9):\n"
        "    crash_point('epoch.after_ledger')\n"
        "    print(n, flush=True)\n"
        "    crash_point('publish.after')\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "HEADWATER_CRASH": plan},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == -signal.SIGKILL
    assert answer.stdout.split() == [str(n) for n in range(1, passes + 1)]
