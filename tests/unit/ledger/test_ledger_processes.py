"""Real processes that are killed, frozen and woken up."""

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlalchemy import text

from headwater.errors import Fenced, WorkspaceInUse
from headwater.ledger import fence
from headwater.ledger.fence import Owner
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import TableId
from headwater.testing.processes import freeze
from ledger_kit import owner, record

WORKER = Path(__file__).with_name("ledger_worker.py")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def start(url):
    started = []

    def start_one(mode: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, str(WORKER), url, mode],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start_one
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_kill_9_while_committing_leaves_whole_epochs(url, start):
    dice = random.Random(7)
    term = 0
    for _ in range(4):
        worker = start("free")
        assert worker.stdout.readline() == f"term {term + 1}\n"
        term += 1
        said = [int(worker.stdout.readline()) for _ in range(5)]
        time.sleep(dice.random() * 0.05)
        worker.kill()
        said += [int(line) for line in worker.stdout.read().splitlines() if line]
        worker.wait()

        ledger = Ledger.open(url)
        last = ledger.last_epoch()
        chain = [found.epoch for found in ledger.records(NO_EPOCH)]
        assert chain == list(range(1, last + 1))
        assert said[-1] <= last <= said[-1] + 1
        assert ledger.facts().positions == {"a": str(last), "b": str(last)}
        assert ledger.manifest(TableId(1)).body == b"at %d" % last
        with ledger.reading() as connection:
            query = text("SELECT value FROM hw_counter WHERE name = 'worker'")
            assert connection.execute(query).scalar_one() == last
        ledger.close()


def test_a_killed_owner_is_replaced_at_once_even_before_anybody_buries_it(url, start):
    worker = start("asked")
    assert worker.stdout.readline() == "term 1\n"
    ledger = Ledger.open(url)
    with pytest.raises(WorkspaceInUse, match=f"pid {worker.pid} "):
        ledger.take_over(owner())
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{worker.pid}/stat").exists(), "it is a zombie now"
    assert ledger.take_over(owner()) == 2
    ledger.close()


def test_a_frozen_owner_counts_as_alive_and_is_fenced_when_it_wakes_up(url, start):
    worker = start("asked")
    worker.stdout.readline()
    freeze(worker.pid)
    ledger = Ledger.open(url)
    with pytest.raises(WorkspaceInUse):
        ledger.take_over(owner(), wait_s=0)
    term = ledger.take_over(owner(), force=True)
    ledger.append(record(1, 0, term))
    worker.stdin.write("go on\n")
    worker.stdin.flush()
    os.kill(worker.pid, signal.SIGCONT)
    assert worker.stdout.readline() == "fenced\n"
    assert worker.wait(60) == 0
    assert [found.term for found in ledger.records(NO_EPOCH)] == [term]
    ledger.append(record(2, 1, term))
    ledger.close()


def test_a_number_that_another_process_has_now_is_not_the_owner(url, start):
    worker = start("asked")
    worker.stdout.readline()
    ledger = Ledger.open(url)
    other = dataclasses.replace(owner(), pid=worker.pid)
    term = ledger.take_over(other, force=True)
    assert ledger.take_over(owner()) == term + 1
    ledger.close()


def test_without_a_process_table_the_number_alone_decides(tmp_path, monkeypatch, start):
    worker = start("asked")
    worker.stdout.readline()
    monkeypatch.setattr(fence, "_PROC", tmp_path / "no-proc")
    this = Owner.this_process()
    assert this.started == ""
    assert this.is_running()
    assert dataclasses.replace(this, pid=worker.pid).is_running()
    worker.kill()
    worker.wait()
    assert not dataclasses.replace(this, pid=worker.pid).is_running()


def test_the_start_of_a_process_with_an_odd_name(tmp_path, monkeypatch):
    monkeypatch.setattr(fence, "_PROC", tmp_path)
    (tmp_path / "5").mkdir()
    numbers = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "5" / "stat").write_text(f"5 (a) R (b c) S {numbers}\n")
    assert fence.process_start(5) == "22"
    (tmp_path / "5" / "stat").write_text(f"5 (a) S (b c) Z {numbers}\n")
    assert fence.process_start(5) is None
    assert fence.process_start(6) is None


def test_fenced_says_who_holds_the_ledger(url):
    first, second = Ledger.open(url), Ledger.open(url)
    term = first.take_over(owner())
    second.take_over(owner(), force=True)
    with pytest.raises(Fenced) as fenced:
        first.append(record(1, 0, term))
    assert f"pid {os.getpid()}" in fenced.value.detail
    assert first.last_epoch() == Epoch(0)
    first.close()
    second.close()
