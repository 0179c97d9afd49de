import pytest

from ledger_contract import LedgerContract
from ledger_unknown_contract import UnknownCommitContract


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/ledger.db"


class TestLedgerOnSqlite(LedgerContract):
    pass


class TestUnknownCommitsOnSqlite(UnknownCommitContract):
    pass
