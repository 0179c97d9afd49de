"""A workspace that is looked into: what is refused, and that nothing in it changes."""

import pyarrow as pa
import pytest
from sqlalchemy import func, insert, select

from engine_kit import CALM, Tap, bank_tap, plain
from headwater.errors import (
    ConfigError,
    DamagedState,
    HistoryGone,
    RelationError,
    SchemaError,
    UserError,
    WorkspaceTooNew,
)
from headwater.ledger.database import Database
from headwater.ledger.migrate import MIGRATIONS, migrate
from headwater.ledger.tables import SCHEMA
from headwater.model.epoch import Epoch, system_clock
from headwater.model.schema import Column
from headwater.model.types import BIGINT, INTEGER, VARCHAR, decimal
from headwater.runtime.engine import Engine
from headwater.spark_source import rows
from headwater.spark_source.columns import require_columns, spark_schema
from headwater.spark_source.options import Options, Since
from headwater.spark_source.pieces import Piece, parts, pieces_of_changes, pieces_of_rows
from headwater.spark_source.position import Position, advance, entries_between, first_position
from headwater.spark_source.workspace import LookedInto, last_epoch
from headwater.testing.oracle import assert_same_rows


def _version(database: Database) -> int:
    with database.reading() as connection:
        return connection.execute(select(func.max(SCHEMA.c.version))).scalar_one()


def _database(folder) -> Database:
    return Database.connect(f"sqlite:///{folder / 'ledger.db'}")


async def _feed(engine: Engine, tap: Tap, upto: int) -> None:
    tap.open(upto)
    while engine.position(tap.name) != str(upto):
        await engine.flush()


def test_an_older_workspace_is_refused_and_not_migrated(tmp_path):
    database = _database(tmp_path)
    migrate(database, system_clock, wait_s=0, migrations=MIGRATIONS[:-1])
    with pytest.raises(ConfigError, match="does not upgrade"):
        last_epoch(tmp_path)
    assert _version(database) == len(MIGRATIONS) - 1


def test_a_newer_workspace_is_refused(tmp_path):
    database = _database(tmp_path)
    migrate(database, system_clock, wait_s=0)
    with database.transaction() as connection:
        connection.execute(insert(SCHEMA).values(version=99, applied_at="later"))
    with pytest.raises(WorkspaceTooNew, match="schema version 99"):
        last_epoch(tmp_path)


def test_a_ledger_without_tables_is_refused(tmp_path):
    (tmp_path / "ledger.db").touch()
    with pytest.raises(ConfigError, match="schema version 0"):
        last_epoch(tmp_path)


async def test_a_table_is_the_same_as_the_engine_has_it(tmp_path):
    """Over stored lists of files, pruned records, folds and horizons."""
    bank = bank_tap(upto=5)
    settings = {**CALM, "manifest_every": 3, "retention_s": 0, "fold_files": 2}
    async with Engine(tmp_path, settings=settings, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        for upto in range(10, 90, 10):
            await _feed(engine, bank, upto)
            await engine.maintain()
            with LookedInto(tmp_path) as looked:
                for name in bank.schemas:
                    state = looked.table(name)
                    theirs = engine.table(name)
                    assert state.head == engine.visible
                    assert state.manifest.encode() == theirs.manifest().encode()
                    assert looked.storage(state.definition.folder).url == theirs.storage.url
        with LookedInto(tmp_path) as looked:
            state = looked.table("accounts")
        assert state.manifest.horizon > state.definition.created
        with pytest.raises(HistoryGone):
            state.view(state.definition.created)
        with pytest.raises(RelationError, match="does not exist at epoch 3"):
            state.view(Epoch(3))
        with pytest.raises(UserError, match="is not committed"):
            state.view(Epoch(state.head + 1))


async def test_positions_meet_and_leave_no_gap(tmp_path):
    bank = bank_tap(upto=5)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        with LookedInto(tmp_path) as looked:
            early = looked.table("accounts")
        for upto in range(10, 100, 10):
            await _feed(engine, bank, upto)
        with LookedInto(tmp_path) as looked:
            state = looked.table("accounts")
    for since in (*Since, early.head):
        # Spark asks again after a crash in the first batch, whose end it then already knows.
        assert first_position(early, since) == first_position(state, since)
    log = state.manifest.changes(Epoch(0), state.head)
    assert len(log) > 5
    for most in (1, 15, 25, None):
        position, seen, steps = first_position(state, Since.BEGINNING), [], 0
        while (end := advance(state, position, upto=state.head, max_rows=most)) != position:
            assert Position.from_offset(end.to_offset()) == end
            seen += entries_between(state, position, end)
            position, steps = end, steps + 1
        assert seen == list(log)
        assert steps == {1: len(log), None: 1}.get(most, steps)
    for entry in log:
        start = first_position(state, entry.epoch)
        end = advance(state, start, upto=state.head)
        rest = [each for each in log if each.epoch > entry.epoch]
        assert list(entries_between(state, start, end)) == rest
    bounded = advance(state, first_position(state, Since.BEGINNING), upto=log[2].epoch)
    assert bounded.epoch == log[2].epoch
    assert pieces_of_changes(log)[0].inserted_at == log[0].epoch
    assert {piece.path for piece in pieces_of_rows(state.view(state.head).files)} == {
        live.file.path for live in state.view(state.head).files if live.live_rows
    }


@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_task_reads_live_rows_in_batches_of_any_size(tmp_path, monkeypatch, size):
    monkeypatch.setattr(rows, "_BATCH_ROWS", size)
    bank = bank_tap(upto=5)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        for upto in (10, 40, 41, 90):
            await _feed(engine, bank, upto)
        for name, schema in bank.schemas.items():
            table = engine.table(name)
            assert any(live.dead for live in table.view().files)
            task = rows.Task(storage=table.storage, wanted=schema.arrow)
            pieces = pieces_of_rows(table.view().files)
            got = [batch for part in parts(pieces, task_bytes=1) for batch in task.read(part)]
            assert_same_rows(pa.Table.from_batches(got), plain(table.rows()), key=schema.key)


async def test_a_task_says_what_became_of_a_file(tmp_path):
    bank = bank_tap(upto=5)
    async with Engine(tmp_path, settings=CALM, connectors={"bank": bank}) as engine:
        await bank.create(engine)
        await _feed(engine, bank, 40)
        await _feed(engine, bank, 80)
        table = engine.table("accounts")
        holed = next(live for live in table.view().files if live.dead)
        task = rows.Task(storage=table.storage, wanted=table.schema.arrow)
        part = parts(pieces_of_rows([holed]))[0]
        folder = table.storage.local_root
        for path in (holed.dead.path, holed.file.path):
            content = (folder / path).read_bytes()
            (folder / path).write_bytes(content[: len(content) // 2])
            with pytest.raises(DamagedState):
                list(task.read(part))
            (folder / path).unlink()
            with pytest.raises(HistoryGone, match="a file of this read is gone"):
                list(task.read(part))
            (folder / path).write_bytes(content)
        assert sum(len(batch) for batch in task.read(part)) == holed.live_rows


def test_a_schema_that_moved_on_is_noticed():
    before = (Column("a", INTEGER), Column("b", VARCHAR), Column("c", decimal(9, 2)))
    running = spark_schema(before)
    require_columns(running, before, "t")
    require_columns(running, (*before, Column("new", BIGINT)), "t")
    for after, words in (
        ((Column("a", BIGINT), *before[1:]), 'column "a" of table "t" is bigint, not int'),
        (before[1:], 'has no column "a"'),
        ((*before[:2], Column("c", decimal(12, 2))), r"is decimal\(12,2\), not decimal\(9,2\)"),
    ):
        with pytest.raises(SchemaError, match=words):
            require_columns(running, after, "t")


@pytest.mark.parametrize("offset", [{}, {"table": 1}, {"table": "x", "epoch": 1}, {"index": 3}])
def test_a_position_of_somebody_else_is_refused(offset):
    with pytest.raises(UserError, match="not Headwater's"):
        Position.from_offset(offset)


def test_small_files_share_a_task_and_none_is_lost():
    pieces = [Piece(path=f"f{n}", bytes=n * 1000) for n in range(400)]
    for size in (1, 300_000, 5 << 20, 1 << 40):
        groups = parts(pieces, task_bytes=size)
        assert [piece for part in groups for piece in part.pieces] == pieces
        cost = [sum(piece.bytes for piece in part.pieces) for part in groups]
        singles = [len(part.pieces) == 1 for part in groups]
        assert all(c <= size or one for c, one in zip(cost, singles, strict=True))
    assert len(parts(pieces, task_bytes=1)) == 400
    assert len(parts(pieces, task_bytes=1 << 40)) == 1
    assert parts([]) == []


def test_options_have_no_case_and_know_what_a_stream_is():
    said = {"Workspace": "w", "TABLE": "t", "Since": "LATEST", "maxRowsPerBatch": "7"}
    options = Options.parse(said)
    assert (options.begin, options.max_rows) == (Since.LATEST, 7)
    with pytest.raises(ConfigError, match=r"spark.read has no option maxRowsPerBatch"):
        options.require_batch()
    batch = Options.parse({"workspace": "w", "table": "t", "epoch": "5"})
    batch.require_batch()
    with pytest.raises(ConfigError, match=r"spark.readStream has no option epoch"):
        _ = batch.begin
    assert Options.parse({"workspace": "w", "table": "t", "since": "12"}).begin == 12
    with pytest.raises(ConfigError, match="takes no path"):
        Options.parse({"path": "x"})
