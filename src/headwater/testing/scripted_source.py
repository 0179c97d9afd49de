"""A source that plays a script, with its faults written as data.

    source = ScriptedSource("orders_db", [
        Changes({"orders": from_pretty("...")}),     # transaction 1
        Pause(reads=2),                              # two reads find nothing
        Changes({"orders": ..., "lines": ...}),      # transaction 2, over two tables
        Fail(SourceUnavailable("the cable is out"), times=3),
        Changes({...}),                              # transaction 3
        Eof(),
    ])

    step      what a read that comes to it does
    Changes   returns it; one `Changes` is one transaction, and its number is its position
    Pause     returns nothing, as often as it says, or until `resume` is called
    Fail      raises the error, as often as it says
    Eof       returns nothing; what follows is only there after a restart, or after `resume`

Changes are repeatable: reading again after the same position gives the same rows. Pauses and
failures are used up, so a reader that tries again gets past them. The source checks its
reader (`testing/source_contract.py`); tell it of a crash with `restarted`. Steps can be added
while it is read, with `append`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

import pyarrow as pa

from headwater.cdc.source import SourceBatch
from headwater.errors import HeadwaterError
from headwater.model.ids import SourceName
from headwater.model.position import Ordinal
from headwater.model.reserved import CHANGE_TYPE
from headwater.testing.source_contract import ContractBroken, SourceContract


@dataclass(frozen=True, slots=True)
class Changes:
    """One transaction: by table, a chunk of changes in commit order."""

    tables: Mapping[str, pa.Table]

    def __post_init__(self) -> None:
        for table, chunk in self.tables.items():
            if CHANGE_TYPE not in chunk.column_names:
                raise ValueError(
                    f'the chunk of table "{table}" has no column {CHANGE_TYPE}; '
                    "from_pretty makes one that has"
                )

    @property
    def bytes(self) -> int:
        """How much it counts against the size of a batch."""
        return sum(chunk.nbytes for chunk in self.tables.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing to read for a while; None is until `resume`."""

    reads: int | None = 1


@dataclass(frozen=True, slots=True)
class Fail:
    """The upstream cannot be read."""

    error: HeadwaterError
    times: int = 1


@dataclass(frozen=True, slots=True)
class Eof:
    """The log ends here for now."""


Step = Changes | Pause | Fail | Eof


@dataclass(slots=True, eq=False)
class _Fault:
    """A step that is not a transaction, the transactions before it, and what is left of it."""

    step: Pause | Fail | Eof
    after: int
    left: int | None


class ScriptedSource:
    """Plays a script; satisfies `headwater.cdc.source.Source`."""

    def __init__(self, name: str, script: Iterable[Step] = ()) -> None:
        self.name = SourceName(name)
        self.reads = 0
        """How often it was read, failures included."""
        self.closed = False
        self._transactions: list[Changes] = []
        self._faults: list[_Fault] = []
        self._contract = SourceContract(self.name)
        self.append(*script)

    @property
    def acknowledged(self) -> str:
        """The highest position that was acknowledged; "0" before the first."""
        return self._contract.acknowledged.encode()

    @property
    def end(self) -> str:
        """The position after the last transaction of the script."""
        return Ordinal(len(self._transactions)).encode()

    def append(self, *steps: Step) -> None:
        """Add steps at the end of the script."""
        for step in steps:
            match step:
                case Changes():
                    self._transactions.append(step)
                case Pause(reads=reads):
                    self._faults.append(_Fault(step, len(self._transactions), reads))
                case Fail(times=times):
                    self._faults.append(_Fault(step, len(self._transactions), times))
                case Eof():
                    self._faults.append(_Fault(step, len(self._transactions), None))
                case _ as never:
                    assert_never(never)

    def resume(self) -> None:
        """End the first pause, failure or end of file that is still ahead."""
        if self._faults:
            self._faults.pop(0)

    def restarted(self) -> None:
        """Hear that the reader crashed: it may begin again at an older position, past an Eof."""
        self._contract.restarted()
        self.closed = False
        if self._faults and isinstance(self._faults[0].step, Eof):
            self._faults.pop(0)

    def changes_until(self, position: str) -> list[Mapping[str, pa.Table]]:
        """The transactions up to a position, for an oracle."""
        return [step.tables for step in self._transactions[: Ordinal.decode(position).count]]

    async def read(self, after: str | None, *, max_bytes: int) -> SourceBatch:
        """Give the transactions after a position, up to the next step that is none."""
        self.reads += 1
        if self.closed:
            raise ContractBroken(f'source "{self.name}" is read after it was closed')
        begin = self._contract.begin_read(after).count
        if begin > len(self._transactions):
            raise ContractBroken(f'source "{self.name}" has no position {begin} yet')
        fault = next((f for f in self._faults if f.after >= begin), None)
        if fault is not None and fault.after == begin:
            if isinstance(fault.step, Fail):
                self._use_up(fault)
                raise fault.step.error
            self._use_up(fault)
            return SourceBatch(position=Ordinal(begin).encode())
        stop = len(self._transactions) if fault is None else fault.after
        end, size = begin, 0
        while end < stop and (end == begin or size + self._transactions[end].bytes <= max_bytes):
            size += self._transactions[end].bytes
            end += 1
        self._contract.end_read(Ordinal(end))
        return SourceBatch(
            position=Ordinal(end).encode(),
            changes=_joined(self._transactions[begin:end]),
            more=end < len(self._transactions),
        )

    async def acknowledge(self, position: str) -> None:
        """Hear that everything up to `position` is stored; checked against what was read."""
        self._contract.acknowledge(position)

    async def close(self) -> None:
        """Refuse further reads until `restarted`."""
        self.closed = True

    def _use_up(self, fault: _Fault) -> None:
        if fault.left is not None:
            fault.left -= 1
            if fault.left <= 0:
                self._faults.remove(fault)


def _joined(transactions: Iterable[Changes]) -> dict[str, pa.Table]:
    chunks: dict[str, list[pa.Table]] = {}
    for transaction in transactions:
        for table, chunk in transaction.tables.items():
            chunks.setdefault(table, []).append(chunk)
    return {table: pa.concat_tables(parts) for table, parts in chunks.items()}
