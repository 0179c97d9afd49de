import pyarrow as pa
import pytest

from headwater.cdc.source import Source
from headwater.errors import SchemaError, SourceUnavailable
from headwater.testing.pretty import from_pretty, to_pretty
from headwater.testing.scripted_source import Changes, Eof, Fail, Pause, ScriptedSource
from headwater.testing.source_contract import ContractBroken

LARGE = 1 << 20


def insert(number):
    return Changes({"t": from_pretty(f"id I\n+ {number}")})


def ids(batch):
    return batch.changes["t"]["id"].to_pylist() if batch.changes else []


async def test_it_plays_its_script():
    source: Source = ScriptedSource("s", [insert(1), insert(2), insert(3)])
    batch = await source.read(None, max_bytes=LARGE)
    assert (batch.position, ids(batch), batch.more) == ("3", [1, 2, 3], False)
    again = await source.read("1", max_bytes=LARGE)
    assert (again.position, ids(again)) == ("3", [2, 3])
    end = await source.read("3", max_bytes=LARGE)
    assert (end.position, dict(end.changes), end.more) == ("3", {}, False)


async def test_batches_are_bounded_and_hold_whole_transactions():
    script = [Changes({"t": from_pretty("id I\n+ 1\n+ 2\n+ 3"), "u": from_pretty("x T\n+ a")})] * 3
    source = ScriptedSource("s", script)
    batch = await source.read(None, max_bytes=1)
    assert (batch.position, batch.more, batch.changes["t"].num_rows) == ("1", True, 3)
    assert batch.changes["u"].num_rows == 1
    both = await source.read(None, max_bytes=2 * script[0].bytes)
    assert both.position == "2"


async def test_pauses_and_failures_are_used_up():
    source = ScriptedSource(
        "s",
        [
            insert(1),
            Pause(reads=2),
            Fail(SourceUnavailable("the cable is out"), times=2),
            insert(2),
            Pause(reads=None),
            insert(3),
        ],
    )
    first = await source.read(None, max_bytes=LARGE)
    assert (ids(first), first.more) == ([1], True)
    for _ in range(2):
        paused = await source.read("1", max_bytes=LARGE)
        assert (paused.position, ids(paused), paused.more) == ("1", [], False)
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="cable"):
            await source.read("1", max_bytes=LARGE)
    assert ids(await source.read("1", max_bytes=LARGE)) == [2]
    assert ids(await source.read(None, max_bytes=LARGE)) == [1, 2]
    for _ in range(5):
        assert ids(await source.read("2", max_bytes=LARGE)) == []
    source.resume()
    assert ids(await source.read("2", max_bytes=LARGE)) == [3]
    assert source.reads == 13


async def test_an_end_of_file_is_passed_by_a_restart_only():
    source = ScriptedSource("s", [insert(1), Eof(), insert(2)])
    await source.read(None, max_bytes=LARGE)
    for _ in range(3):
        assert ids(await source.read("1", max_bytes=LARGE)) == []
    source.restarted()
    assert ids(await source.read("1", max_bytes=LARGE)) == [2]


async def test_steps_can_be_added_while_it_is_read():
    source = ScriptedSource("s")
    assert (await source.read(None, max_bytes=LARGE)).position == "0"
    source.append(insert(1))
    assert ids(await source.read("0", max_bytes=LARGE)) == [1]
    assert source.end == "1"
    assert [to_pretty(t["t"]) for t in source.changes_until("1")] == ["   id I\n+  1\n"]


async def test_acknowledging_is_checked():
    source = ScriptedSource("s", [insert(n) for n in range(5)])
    await source.read(None, max_bytes=LARGE)
    await source.acknowledge("3")
    await source.acknowledge("3")
    assert source.acknowledged == "3"
    with pytest.raises(ContractBroken, match="after 3 was"):
        await source.acknowledge("2")
    with pytest.raises(ContractBroken, match="but 3 was acknowledged and may be gone"):
        await source.read("2", max_bytes=LARGE)
    source.restarted()
    await source.acknowledge("2")
    await source.acknowledge("4")
    with pytest.raises(ContractBroken, match="4 was acknowledged"):
        await source.read("2", max_bytes=LARGE)
    assert ids(await source.read("4", max_bytes=LARGE)) == [4]


async def test_nothing_beyond_what_was_read():
    source = ScriptedSource("s", [insert(n) for n in range(5)])
    batch = await source.read(None, max_bytes=1)
    assert batch.position == "1"
    with pytest.raises(ContractBroken, match="read up to 1 only"):
        await source.acknowledge("2")
    with pytest.raises(ContractBroken, match="read up to 1 only"):
        await source.read("3", max_bytes=1)
    source.restarted()
    with pytest.raises(ContractBroken, match="read up to 1 only"):
        await source.acknowledge("2")


async def test_closed_and_bad_positions():
    source = ScriptedSource("s", [insert(1)])
    with pytest.raises(SchemaError, match="no position 'x'"):
        await source.read("x", max_bytes=1)
    await source.close()
    with pytest.raises(ContractBroken, match="after it was closed"):
        await source.read(None, max_bytes=1)
    source.restarted()
    assert ids(await source.read(None, max_bytes=1)) == [1]


def test_a_chunk_needs_change_types():
    with pytest.raises(ValueError, match="no column _change_type"):
        Changes({"t": pa.table({"id": [1]})})
