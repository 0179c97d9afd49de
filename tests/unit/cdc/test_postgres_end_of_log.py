"""An end of the log inside a record is no position: the commit that begins there would be lost."""

import pytest

from headwater.cdc.offset import PostgresOffset
from headwater.cdc.postgres import log as log_module
from headwater.cdc.postgres.log import PostgresLog
from headwater.cdc.postgres.slot import ServerIdentity, SlotStatus, _is_settled


@pytest.mark.parametrize(
    ("end", "inserted", "settled"),
    [
        (8191, 9000, True),
        (8192, 9000, False),
        (8192, 8192, True),
        (8192, 8192 + 24, True),
        (8192, 8192 + 40, True),
        (8192, 8192 + 41, False),
        (0x1000000, 0x1000000 + 40, True),
    ],
)
def test_a_page_may_end_in_the_middle_of_a_record(end, inserted, settled):
    assert _is_settled(end, inserted, 8192) is settled


@pytest.mark.parametrize("settled", [True, False])
def test_only_a_settled_end_is_taken(monkeypatch, settled):
    log = PostgresLog.__new__(PostgresLog)
    status = SlotStatus(
        name="s", exists=True, plugin="pgoutput", database="d", active_pid=None,
        confirmed=PostgresOffset(100), restart=PostgresOffset(100), wal_status="reserved",
        end=PostgresOffset(8192), settled=settled, identity=ServerIdentity("1", "1"),
        server_version=180000,
    )  # fmt: skip
    empty = log_module.MessageBatch(
        log_module.Cells(*(log_module.np.empty(0, kind) for kind in ("u1", "i8", "i4"))),
        binary=True,
    )
    log._identity, log._binary, log._owed = None, True, None
    monkeypatch.setattr(log, "_status", lambda: status)
    monkeypatch.setattr(log, "_watch", lambda: None)
    monkeypatch.setattr(log, "_unlogged", lambda offset: ())
    monkeypatch.setattr(
        log,
        "_peek",
        lambda after, upto, most: log_module._Peeked(empty, upto, complete=True),
    )
    batch = log._read(PostgresOffset(200), 1 << 20, None)
    assert batch.offset == PostgresOffset(8192 if settled else 200)
