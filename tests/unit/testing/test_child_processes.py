import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from headwater.testing.processes import ChildFailed, ChildProcess, free_port

COUNTS = """
import itertools, time
print("ready at 1234")
for n in itertools.count():
    print("count", n)
    time.sleep(0.01)
"""
ORPHANS = """
import subprocess, sys, time
code = "import time; time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
print("child", child.pid)
time.sleep(60)
"""
CRASHES = """
from headwater.crash_points import crash_point
for n in range(5):
    print("pass", n)
    crash_point("epoch.after_ledger")
"""


def test_lines_are_waited_for():
    with ChildProcess("-c", COUNTS) as child:
        assert child.wait_for_line(r"ready at (\d+)", timeout=10)[1] == "1234"
        first = int(child.wait_for_line(r"count (\d+)", timeout=10)[1])
        assert int(child.wait_for_line(r"count (\d+)", timeout=10)[1]) > first
        with pytest.raises(ChildFailed, match=r"no line matched 'never' within 0\.2 seconds"):
            child.wait_for_line("never", timeout=0.2)
        assert child.running
    assert not child.running
    assert "ready at 1234" in child.output


def test_an_early_end_is_told_with_its_output():
    with ChildProcess("-c", "print('almost'); raise SystemExit('the disk is full')") as child:
        with pytest.raises(ChildFailed) as caught:
            child.wait_for_line("ready", timeout=10)
        text = str(caught.value)
        assert "it ended before" in text
        assert "exit code 1" in text
        assert "almost" in text
        assert "the disk is full" in text
        assert child.wait(timeout=5) == 1
        assert "the disk is full" in child.errors


def test_kill_is_kill_9():
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("ready", timeout=10)
        assert child.kill() == -signal.SIGKILL
        child.wait_until_gone(timeout=5)


def test_terminate_and_interrupt_are_signals():
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("ready", timeout=10)
        child.terminate()
        assert child.wait(timeout=10) == -signal.SIGTERM
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("ready", timeout=10)
        child.interrupt()
        child.wait(timeout=10)
        assert "KeyboardInterrupt" in child.errors


def test_a_frozen_process_goes_on_where_it_was():
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("count 3", timeout=10)
        child.freeze()
        time.sleep(0.1)
        before = child.output
        time.sleep(0.2)
        assert child.output == before
        child.thaw()
        last = int(before.rsplit("count ", 1)[1])
        child.wait_for_line(f"count {last + 3}", timeout=10)
        child.freeze()
    assert not child.running


def test_orphans_are_found_and_ended():
    with ChildProcess("-c", ORPHANS) as child:
        orphan = int(child.wait_for_line(r"child (\d+)", timeout=10)[1])
        assert {member.pid for member in child.family()} == {child.pid, orphan}
        child.kill()
        assert [member.pid for member in child.family()] == [orphan]
        with pytest.raises(ChildFailed, match=f"still running after 0.1 seconds: {orphan} "):
            child.wait_until_gone(timeout=0.1)
    child.wait_until_gone(timeout=1)
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie"


def test_strangers_are_left_alone():
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with ChildProcess("-c", COUNTS) as child:
            child.wait_for_line("ready", timeout=10)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_crash_point_kills_the_child(monkeypatch):
    with ChildProcess("-c", CRASHES, crash="epoch.after_ledger:3") as child:
        assert child.wait(timeout=10) == -signal.SIGKILL
        assert child.output.count("pass") == 3
    monkeypatch.setenv("HEADWATER_CRASH", "epoch.after_ledger")
    with ChildProcess("-c", CRASHES, environment={"EXTRA": "1"}) as child:
        assert child.wait(timeout=10) == 0
        assert child.output.count("pass") == 5


def test_a_child_that_does_not_end_is_told():
    with (
        ChildProcess("-c", COUNTS) as child,
        pytest.raises(ChildFailed, match=r"did not end within 0\.1 seconds"),
    ):
        child.wait(timeout=0.1)


def test_a_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()
