import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

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
        assert child.wait_for_line(r"ready at (\d+)", timeout=60)[1] == "1234"
        first = int(child.wait_for_line(r"count (\d+)", timeout=60)[1])
        assert int(child.wait_for_line(r"count (\d+)", timeout=60)[1]) > first
        with pytest.raises(ChildFailed, match=r"no line matched 'never' within 0\.2 seconds"):
            child.wait_for_line("never", timeout=0.2)
        assert child.running
    assert not child.running
    assert "ready at 1234" in child.output


def test_an_early_end_is_told_with_its_output():
    with ChildProcess("-c", "print('almost'); raise SystemExit('the disk is full')") as child:
        with pytest.raises(ChildFailed) as caught:
            child.wait_for_line("ready", timeout=60)
        text = str(caught.value)
        assert "it ended before" in text
        assert "exit code 1" in text
        assert "almost" in text
        assert "the disk is full" in text
        assert child.wait(timeout=60) == 1
        assert "the disk is full" in child.errors


def test_kill_is_kill_9():
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("ready", timeout=60)
        assert child.kill() == -signal.SIGKILL
        child.wait_until_gone(timeout=60)


def test_terminate_and_interrupt_are_signals():
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("ready", timeout=60)
        child.terminate()
        assert child.wait(timeout=60) == -signal.SIGTERM
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("ready", timeout=60)
        child.interrupt()
        child.wait(timeout=60)
    assert "KeyboardInterrupt" in child.errors


def test_a_frozen_process_goes_on_where_it_was():
    with ChildProcess("-c", COUNTS) as child:
        child.wait_for_line("count 3", timeout=60)
        child.freeze()
        # What it had written before is read a little later.
        before = ""
        while child.output != before:
            before = child.output
            time.sleep(0.5)
        child.thaw()
        last = int(before.rsplit("count ", 1)[1])
        child.wait_for_line(f"count {last + 3}", timeout=60)
        child.freeze()
    assert not child.running


def test_orphans_are_found_and_ended():
    with ChildProcess("-c", ORPHANS) as child:
        orphan = int(child.wait_for_line(r"child (\d+)", timeout=60)[1])
        assert {member.pid for member in child.family()} == {child.pid, orphan}
        child.kill()
        assert [member.pid for member in child.family()] == [orphan]
        with pytest.raises(ChildFailed, match=f"still running after 0.1 seconds: {orphan} "):
            child.wait_until_gone(timeout=0.1)
    child.wait_until_gone(timeout=60)
    assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == "zombie"


def test_strangers_are_left_alone():
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        with ChildProcess("-c", COUNTS) as child:
            child.wait_for_line("ready", timeout=60)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_crash_point_kills_the_child(monkeypatch):
    with ChildProcess("-c", CRASHES, crash="epoch.after_ledger:3") as child:
        assert child.wait(timeout=60) == -signal.SIGKILL
        assert child.output.count("pass") == 3
    monkeypatch.setenv("HEADWATER_CRASH", "epoch.after_ledger")
    with ChildProcess("-c", CRASHES, environment={"EXTRA": "1"}) as child:
        assert child.wait(timeout=60) == 0
        assert child.output.count("pass") == 5


def test_a_child_that_does_not_end_is_told():
    with (
        ChildProcess("-c", COUNTS) as child,
        pytest.raises(ChildFailed, match=r"did not end within 0\.1 seconds"),
    ):
        child.wait(timeout=0.1)


LIVES = """
import os, subprocess, sys, time
from headwater.crash_points import crash_point
print(__name__, sys.argv[1:], os.getcwd(), os.environ.get("EXTRA"), os.getsid(0) == os.getpid())
print("an error", file=sys.stderr)
match sys.argv[1]:
    case "exit": sys.exit(5)
    case "raise": raise ValueError("wrong")
    case "crash":
        for n in range(5):
            crash_point("epoch.after_ledger")
    case "wait":
        child = subprocess.Popen(["sleep", "60"])
        print("child", child.pid)
        time.sleep(60)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "lives.py"
    path.write_text(LIVES)
    return path


def test_a_forked_child_is_as_if_it_had_been_started(program, tmp_path):
    lives = {}
    for forked in (False, True):
        for what in ("end", "exit", "raise", "crash"):
            crash = "epoch.after_ledger:2" if what == "crash" else None
            extra = {"EXTRA": what}
            with ChildProcess(
                program, what, crash=crash, environment=extra, folder=tmp_path, forked=forked
            ) as child:
                code = child.wait(timeout=60)
            assert f"__main__ ['{what}'] {tmp_path} {what} True" in child.output
            last_words = (child.errors.splitlines()[0], child.errors.splitlines()[-1])
            lives[forked, what] = (code, child.output, *last_words)
    codes = [lives[True, what][0] for what in ("end", "exit", "raise", "crash")]
    assert codes == [0, 5, 1, -signal.SIGKILL]
    for what in ("end", "exit", "raise", "crash"):
        assert lives[True, what] == lives[False, what]


def test_a_forked_child_is_killed_and_its_family_found(program):
    with ChildProcess(program, "wait", forked=True) as child:
        orphan = int(child.wait_for_line(r"child (\d+)", timeout=60)[1])
        assert {member.pid for member in child.family()} == {child.pid, orphan}
        assert child.kill() == -signal.SIGKILL
        assert [member.pid for member in child.family()] == [orphan]
    child.wait_until_gone(timeout=60)


def test_forked_children_live_side_by_side(program):
    with (
        ChildProcess(program, "wait", forked=True) as one,
        ChildProcess(program, "wait", forked=True) as other,
    ):
        for child in (one, other):
            child.wait_for_line("child", timeout=60)
        assert other.kill() == -signal.SIGKILL
        assert one.running
        one.freeze()
        one.thaw()
        one.terminate()
        assert one.wait(timeout=60) == -signal.SIGTERM


def test_a_nursery_ends_with_its_owner():
    program = (
        "import time\n"
        "from headwater.testing.nursery import nursery\n"
        "print('nursery', nursery()._process.pid)\n"
        "time.sleep(60)"
    )
    with ChildProcess("-c", program) as owner:
        pid = int(owner.wait_for_line(r"nursery (\d+)", timeout=60)[1])
        owner.kill()
        owner.wait_until_gone(timeout=60)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


def test_a_free_port_can_be_bound():
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()


def test_a_frozen_process_has_no_thread_that_still_runs():
    """A thread on another core goes on after the signal, and could answer what is asked then."""
    busy = """
import hashlib, threading
def work():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"x", b"y", 1000)
for _ in range(16):
    threading.Thread(target=work).start()
print("ready", flush=True)
"""
    with ChildProcess("-c", busy) as child:
        child.wait_for_line("ready", timeout=60)
        for _ in range(50):
            child.freeze()
            tasks = Path(f"/proc/{child.pid}/task").iterdir()
            states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
            assert set(states) == {"T"}
            child.thaw()
