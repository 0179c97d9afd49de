"""A bank whose money never changes: the test of internal consistency.

    accounts   (id, owner, balance)            transfers   (id, source, target, amount)

Every transaction takes an amount from one account into a new transfer, and moves the amount of
an older transfer on to its target, which deletes that transfer. So money is always either in an
account or under way, and at every transaction boundary

    sum(accounts.balance) + sum(transfers.amount) = total

A reader that sees half a transaction, or two tables at different positions, sees another sum.
Transaction 1 opens all accounts. A balance may fall below zero.
"""

from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import ConfigError
from headwater.model.change import ChangeType
from headwater.model.epoch import WallClock, system_clock
from headwater.model.reserved import CHANGE_TYPE
from headwater.model.schema import Column, Schema
from headwater.model.types import BIGINT, VARCHAR
from headwater.testing.block_log import Block, BlockSource, State

ACCOUNTS = Schema(
    (Column("id", BIGINT, nullable=False), Column("owner", VARCHAR), Column("balance", BIGINT)),
    ("id",),
)
TRANSFERS = Schema(
    (
        Column("id", BIGINT, nullable=False),
        Column("source", BIGINT),
        Column("target", BIGINT),
        Column("amount", BIGINT),
    ),
    ("id",),
)

Numbers = npt.NDArray[np.int64]

_BLOCK = 1000
_LARGEST = 100


class BankBlocks:
    """Makes the blocks; the state is the balance of every account."""

    def __init__(self, seed: int, accounts: int, opening: int, under_way: int) -> None:
        if seed < 0 or accounts < 1:
            raise ConfigError("a bank needs a seed of 0 or more and at least one account")
        if not 1 <= under_way < _BLOCK:
            raise ConfigError(
                f"between 1 and {_BLOCK - 1} transfers can be under way, not {under_way}"
            )
        self.schemas = {"accounts": ACCOUNTS, "transfers": TRANSFERS}
        self.size = _BLOCK
        self._seed = seed
        self._accounts = accounts
        self._opening = opening
        self._under_way = under_way

    def first_state(self) -> State:
        """Every account holds what it is opened with."""
        return np.full(self._accounts, self._opening, dtype=np.int64)

    def advance(self, number: int, state: State) -> State:
        """Add up what a block moves."""
        _, account, delta = self._movements(number)
        after: State = state.copy()
        np.add.at(after, account, delta)
        return after

    def make(self, number: int, state: State) -> Block:
        """Make all changes of a block."""
        transaction, account, delta = self._movements(number)
        balance = _running(account, delta, state)
        first = number * self.size
        opened = np.arange(self._accounts if number == 0 else 0)
        accounts = self._account_rows(
            np.concatenate((opened, account)),
            np.concatenate((state[opened], balance)),
            len(opened),
        )
        account_at = np.concatenate((np.zeros(len(opened), np.int64), transaction - first))
        transfers, transfer_at = self._transfer_rows(number)
        edges = np.arange(self.size + 1)
        return Block(
            tables={"accounts": accounts, "transfers": transfers},
            offsets={
                "accounts": np.searchsorted(account_at, edges).astype(np.int64),
                "transfers": np.searchsorted(transfer_at, edges).astype(np.int64),
            },
        )

    def _transfers(self, begin: int, end: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Numbers, sources, targets and amounts of the transfers that begin in some transactions.

        Transaction 0 opens the accounts and begins no transfer.
        """
        wanted = np.arange(max(begin, 1), max(end, 1))
        parts = []
        for number in range(max(begin, 1) // self.size, (max(end, 1) - 1) // self.size + 1):
            random = np.random.default_rng([self._seed, number])
            parts.append(
                (
                    random.integers(0, self._accounts, self.size),
                    random.integers(0, self._accounts, self.size),
                    random.integers(1, _LARGEST + 1, self.size),
                )
            )
        at = wanted - (max(begin, 1) // self.size) * self.size
        source, target, amount = (np.concatenate(part)[at] for part in zip(*parts, strict=True))
        return wanted, source, target, amount

    def _movements(self, number: int) -> tuple[Numbers, Numbers, Numbers]:
        """Transaction, account and difference of every change of a balance, in order."""
        begin, end = number * self.size, (number + 1) * self.size
        begun, source, _, taken = self._transfers(begin, end)
        settled, _, target, given = self._transfers(begin - self._under_way, end - self._under_way)
        transaction = np.concatenate((begun, settled + self._under_way))
        order = np.argsort(transaction, kind="stable")
        account = np.concatenate((source, target))[order]
        delta = np.concatenate((-taken, given))[order]
        return transaction[order], account, delta

    def _account_rows(self, account: Numbers, balance: Numbers, opened: int) -> pa.Table:
        change = [ChangeType.INSERT] * opened
        change += [ChangeType.UPDATE_POSTIMAGE] * (len(account) - opened)
        owners = pa.array([f"owner {number}" for number in range(self._accounts)])
        return pa.table(
            {
                "id": pa.array(account, pa.int64()),
                "owner": owners.take(pa.array(account, pa.int64())),
                "balance": pa.array(balance, pa.int64()),
                CHANGE_TYPE: pa.array(change, pa.string()),
            }
        )

    def _transfer_rows(self, number: int) -> tuple[pa.Table, Numbers]:
        begin, end = number * self.size, (number + 1) * self.size
        begun, source, target, amount = self._transfers(begin, end)
        settled, *_ = self._transfers(begin - self._under_way, end - self._under_way)
        transaction = np.concatenate((begun, settled + self._under_way)) - begin
        order = np.argsort(transaction, kind="stable")
        gone = np.concatenate((np.zeros(len(begun), np.bool_), np.ones(len(settled), np.bool_)))
        rest = np.zeros(len(settled), np.int64)
        columns = {
            "id": np.concatenate((begun, settled)),
            "source": np.concatenate((source, rest)),
            "target": np.concatenate((target, rest)),
            "amount": np.concatenate((amount, rest)),
        }
        arrays = {
            name: pa.array(values[order], pa.int64(), mask=gone[order] & (name != "id"))
            for name, values in columns.items()
        }
        words = pa.array([ChangeType.INSERT, ChangeType.DELETE], pa.string())
        arrays[CHANGE_TYPE] = words.take(pa.array(gone[order].astype(np.int64)))
        return pa.table(arrays), transaction[order]


class BankSource(BlockSource):
    """Accounts and transfers whose total stays the same."""

    def __init__(  # noqa: PLR0913  one argument per property of the source
        self,
        name: str,
        seed: int = 0,
        *,
        accounts: int = 100,
        opening: int = 1000,
        under_way: int = 7,
        rate: float | None = None,
        limit: int | None = None,
        clock: WallClock = system_clock,
        start: datetime | None = None,
    ) -> None:
        blocks = BankBlocks(seed, accounts, opening, under_way)
        super().__init__(name, blocks, rate=rate, limit=limit, clock=clock, start=start)
        self.total = accounts * opening
        """The sum over both tables at every position but the very beginning."""


def _running(account: Numbers, delta: Numbers, start: State) -> Numbers:
    """The balance of each movement's account right after it."""
    order = np.argsort(account, kind="stable")
    grouped, summed = account[order], np.cumsum(delta[order])
    begins = np.concatenate(([True], grouped[1:] != grouped[:-1]))[: len(grouped)]
    begin = np.maximum.accumulate(np.where(begins, np.arange(len(grouped)), 0))
    balance: Numbers = np.empty(len(account), np.int64)
    balance[order] = start[grouped] + summed - (summed[begin] - delta[order][begin])
    return balance
