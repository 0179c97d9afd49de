"""What an engine publishes, as DuckDB, Polars and delta-rs read it: whole epochs, both ways."""

from pathlib import Path

import pytest

from delta_readers import READERS
from engine_kit import CALM, SHOP_TABLES, Tap, plain, published
from headwater.runtime.engine import Engine
from headwater.testing.oracle import assert_same_rows


@pytest.fixture
def tap():
    return Tap("generated", "shop", {"seed": 9, "tables": SHOP_TABLES, "keys": 40}, 0)


async def test_every_reader_sees_what_the_engine_sees_at_every_epoch(tmp_path, tap):
    settings = {**CALM, "fold_files": 2, "delta_checkpoint_every": 3}
    async with Engine(tmp_path, settings=settings, connectors={"shop": tap}) as engine:
        await tap.create(engine)
        truth = {}
        for upto in (10, 30, 31, 60, 100, 150):
            tap.open(upto)
            while engine.position("shop") != str(upto):
                await engine.flush()
            truth[engine.visible] = tap.truth.oracle_at(str(upto))
            await engine.maintain()
        for name, schema in tap.schemas.items():
            table = engine.table(name)
            assert any(live.dead for live in table.view().files), "no deletion vector"
            versions = {epoch: version for version, epoch in published(Path(table.storage.url))}
            for epoch, tables in truth.items():
                rows = list(tables[name].values())
                ours = plain(table.rows(epoch))
                assert_same_rows(ours, rows, key=schema.key)
                at = max((e for e in versions if e <= epoch), default=None)
                if at is None:
                    continue
                for read in READERS.values():
                    theirs = read(table.storage.url, versions[at])
                    assert_same_rows(theirs, ours, key=schema.key)
                    assert theirs.column_names == list(schema.names)
            for read in READERS.values():
                assert_same_rows(read(table.storage.url), plain(table.rows()), key=schema.key)
