"""Engines killed with -9 in the middle of a commit into Delta, Iceberg and files."""

import subprocess
import sys
from pathlib import Path

import pytest

import lake_child
from headwater.testing.oracle import assert_same_rows
from headwater.testing.sink_rows import new_spec
from lake_child import APPEND, FIRST, SCENARIOS, SECOND, case_of, changes
from lake_sinks import deliver, delivery

pytestmark = pytest.mark.timeout(400)

NAMES = ("id", "name", "quantity")


@pytest.fixture(scope="module")
def remains(tmp_path_factory) -> Path:
    """A folder with what every killed process has left behind."""
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, lake_child.__file__, str(folder)], check=True, timeout=280)
    return folder


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_next_engine_finds_what_is_there(remains, scenario):
    target, kind, moment = SCENARIOS[scenario]
    folder = remains / scenario
    case, spec = case_of(target, kind, folder), new_spec("killed_1", kind)
    after = FIRST + SECOND if kind is APPEND else FIRST[2:4] + SECOND

    def rows():
        return [dict(zip(NAMES, row, strict=True)) for row in case.rows(spec)]

    # What was decided by a log entry may become visible only when the next engine begins.
    shown = FIRST if moment == "before" or target == "files" else after
    assert_same_rows(rows(), shown)
    sink, again = case.make(spec), delivery(spec.ident, 6, term=2)
    assert sink.begin(2) == (5 if moment == "before" else 6)
    assert_same_rows(rows(), FIRST if moment == "before" else after)
    if moment == "before":
        sink.abort(again, [])
        assert not [p for p in folder.rglob(f"{again.commit_id}/*") if p.is_file()]
    deliver(sink, again, *changes(kind), schema=spec.arrow)
    assert_same_rows(rows(), after)
    assert sink.begin(2) == 6
