"""What stands back does so with all that it starts, and nobody else does."""

import os
import subprocess
import sys
import threading

import pytest

from headwater.runtime.blocking import Blocking
from headwater.runtime.niceness import stand_back, standing_back

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux'")

ASKED = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def of_a_child() -> int:
    return int(subprocess.check_output([sys.executable, "-c", ASKED]))


@pytest.fixture
def steps() -> int:
    return min(19, niceness() + 3)


def test_a_child_stands_back_and_who_waits_for_it_does_not(steps):
    before = niceness()
    assert standing_back(steps, of_a_child) == steps
    assert niceness() == before
    assert of_a_child() == before


def test_an_error_reaches_who_waits(steps):
    with pytest.raises(ZeroDivisionError):
        standing_back(steps, lambda: 1 // 0)


def test_nobody_comes_forward(steps):
    assert standing_back(steps, lambda: (stand_back(steps - 1), niceness())[1]) == steps


def test_none_is_none():
    assert standing_back(0, niceness) == niceness()


async def test_threads_of_a_pool_stand_back_and_those_of_another_do_not(steps):
    back, front = Blocking(2, niceness=steps), Blocking(2)
    assert await back(niceness) == steps
    assert await front(niceness) == niceness()
    back.close()
    front.close()
