"""What the ledger knows about a table's backfill, in two versions.

    version    written by                          holds
    1          CdcBackfillExecutor                 one cursor over the whole table
    2          ParallelizedCdcBackfillExecutor     a cursor per split
    3          the same, while it fills columns    and the columns that were added upstream

A state is a line of text: the version as its first character, then `j` for JSON or `z` for the
same compressed, then the content. Version 2 stores splits by column, so that thousands of them
take a few bytes each, and a table that is backfilled keeps only its totals. Version 1 is read as
one split over the whole table, also in the middle of a backfill, and is stored as version 2 from
then on.

    field          meaning
    cursor         the last key that is written; the next chunk begins after it
    read           the snapshot rows of the split are all written
    high           nothing that committed after this place is in the split's rows
    done           the log has been applied up to `high`; the split needs no more care
    to_see         transactions in the table that no chunk has seen yet
    pending        keys whose rows must be read by key; `keys_high` is the `high` of such reads
    fill           new columns whose values of older rows are to be read
    fill_from      the log must have come so far before that begins
    filling        that is being done: the splits are read for these columns alone

`follows` holds what must be true from one epoch to the next: nothing goes backwards, and a split
that has emitted rows is never reset, because deletes of its keys may have been applied already.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headwater.backfill.cdc.places import reaches
from headwater.cdc.external_table import Split
from headwater.cdc.offset import CdcOffset, parse_offset, serialized
from headwater.errors import BrokenInvariant, DamagedState

NEWEST = 2
"""What backfills are stored in, unless they fill columns."""
_WITH_FILL = 3
_COMPRESS_FROM = 2048

Cursor = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProgress:
    """How far one split is."""

    split: Split
    cursor: Cursor | None = None
    rows: int = 0
    bytes: int = 0
    read: bool = False
    high: CdcOffset | None = None
    done: bool = False

    @property
    def begun(self) -> bool:
        """Whether it has emitted rows, or found that there are none."""
        return self.read or self.cursor is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillState:
    """How far one table is."""

    splits: tuple[SplitProgress, ...] = ()
    backfill_finished: bool = False
    to_see: tuple[int, ...] = ()
    floor: CdcOffset | None = None
    pending: bytes = b""
    """Keys as an Arrow stream."""
    keys_high: CdcOffset | None = None
    """Nothing that committed after this place is in rows that were read by key."""
    done_splits: int = 0
    """Of a finished table, whose splits are no longer kept."""
    done_rows: int = 0
    done_bytes: int = 0
    snapshot: str = ""
    """Of a table without a key: what its one snapshot saw."""
    generation: int = 1
    """Grows when a table without a key had to begin again."""
    fill: tuple[str, ...] = ()
    fill_from: CdcOffset | None = None
    filling: bool = False

    @property
    def complete(self) -> bool:
        """Whether it has every row, and every value of it."""
        return self.backfill_finished and not self.fill

    @property
    def snapshotting(self) -> bool:
        """Whether whole rows are still being read."""
        return not self.backfill_finished and not self.filling

    @property
    def rows(self) -> int:
        """Snapshot rows read."""
        return self.done_rows + sum(each.rows for each in self.splits)

    @property
    def bytes(self) -> int:
        """Snapshot bytes read."""
        return self.done_bytes + sum(each.bytes for each in self.splits)

    def fill_is_due(self, offset: CdcOffset) -> bool:
        """Whether columns can be filled: all rows are here, and the log has the columns."""
        if not self.fill or not self.backfill_finished:
            return False
        return self.fill_from is None or reaches(offset, self.fill_from)

    def with_fill_begun(self, splits: "tuple[Split, ...]", offset: CdcOffset) -> "BackfillState":
        """The same, of a table whose new columns are read from now on; the log is at `offset`."""
        return replace(
            self,
            splits=not_begun(splits),
            backfill_finished=False,
            filling=True,
            floor=offset,
        )

    def finished(self) -> "BackfillState":
        """The same, of a table that is backfilled."""
        return BackfillState(
            backfill_finished=True,
            done_splits=self.done_splits + len(self.splits),
            done_rows=self.rows,
            done_bytes=self.bytes,
            snapshot=self.snapshot,
            generation=self.generation,
            fill=() if self.filling else self.fill,
            fill_from=None if self.filling else self.fill_from,
        )


def not_begun(splits: tuple[Split, ...]) -> tuple[SplitProgress, ...]:
    """The progress of splits that nobody has read."""
    return tuple(SplitProgress(split=split) for split in splits)


def keys_as_bytes(keys: pa.Table) -> bytes:
    """Keys for `BackfillState.pending`."""
    if not keys.num_rows:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, keys.schema) as stream:
        stream.write_table(keys)
    return bytes(sink.getvalue())


def keys_from_bytes(stored: bytes) -> pa.Table | None:
    """What `keys_as_bytes` wrote; None for none."""
    return pa.ipc.open_stream(stored).read_all() if stored else None


def encode(state: BackfillState, *, version: int = NEWEST) -> str:
    """A state as text; version 1 can hold a single split over the whole table."""
    fields = _fields_of_one(state) if version == 1 else _fields(state)
    if state.fill:
        # Only who knows of it may carry it on.
        version = _WITH_FILL
        place = None if state.fill_from is None else serialized(state.fill_from)
        fields |= {"fill": state.fill, "filling": state.filling, "fill_from": place}
    text = json.dumps(fields, separators=(",", ":"))
    if len(text) < _COMPRESS_FROM:
        return f"{version}j{text}"
    return f"{version}z{base64.b85encode(zlib.compress(text.encode(), 6)).decode()}"


def decode(text: str) -> BackfillState:
    """A stored state of any version, as the newest."""
    version, form = text[:1], text[1:2]
    if version.isdigit() and int(version) > _WITH_FILL:
        raise DamagedState(
            f"a backfill was stored in version {version}, and this program knows {_WITH_FILL}",
            hint="Use the version of Headwater that wrote it, or a newer one.",
        )
    try:
        if form == "z":
            body = zlib.decompress(base64.b85decode(text[2:])).decode()
        elif form == "j":
            body = text[2:]
        else:
            raise ValueError("neither plain nor compressed")
        fields = json.loads(body)
        if version == "1":
            return _migrated(fields)
        if version in ("2", str(_WITH_FILL)):
            return _state(fields)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, zlib.error) as error:
        raise DamagedState("the state of a backfill cannot be read", detail=text[:200]) from error
    raise DamagedState("the state of a backfill has no version", detail=text[:200])


def follows(before: BackfillState, after: BackfillState) -> None:
    """Raise unless `after` may be stored over `before`."""
    if before.backfill_finished and not after.backfill_finished:
        raise BrokenInvariant("a backfilled table is to be filled again")
    if after.generation < before.generation:
        raise BrokenInvariant(f"generation {after.generation} after {before.generation}")
    if after.generation > before.generation or after.backfill_finished:
        return
    now = {each.split.number: each for each in after.splits}
    for old in before.splits:
        new = now.get(old.split.number)
        if new is None:
            raise BrokenInvariant(f"split {old.split.number} is gone")
        _split_follows(old, new)


def _split_follows(old: SplitProgress, new: SplitProgress) -> None:
    wrong = ""
    if new.rows < old.rows or new.bytes < old.bytes:
        wrong = f"has {new.rows} rows after {old.rows}"
    elif old.begun and not new.begun:
        wrong = "is reset although it has emitted rows"
    elif (old.read and not new.read) or (old.done and not new.done):
        wrong = "is open again"
    elif old.high is not None and (new.high is None or not reaches(new.high, old.high)):
        wrong = f"was read up to {old.high}, now {new.high}"
    elif new.done and not new.read:
        wrong = "is done before it is read"
    elif old.cursor != new.cursor and new.rows == old.rows and not new.read:
        wrong = f"has moved from {old.cursor} to {new.cursor} without rows"
    if wrong:
        raise BrokenInvariant(
            f"split {old.split.number} {wrong}", story=[f"before: {old}", f"after: {new}"]
        )


def _fields(state: BackfillState) -> dict[str, Any]:
    splits = state.splits
    columns = splits[0].split.columns if splits else ()
    bounds = [_bound(each.split.left) for each in splits]
    rights = [_bound(each.split.right) for each in splits]
    highs = [None if each.high is None else serialized(each.high) for each in splits]
    named = {high: place for place, high in enumerate(dict.fromkeys(highs))}
    fields: dict[str, Any] = {
        "columns": columns,
        "number": [each.split.number for each in splits],
        "left": bounds,
        # A split mostly ends where the next one begins.
        "right": 0 if rights[:-1] == bounds[1:] and rights[-1:] in ([], [None]) else rights,
        "about": [each.split.rows for each in splits],
        "cursor": [_bound(each.cursor) for each in splits],
        "rows": [each.rows for each in splits],
        "bytes": [each.bytes for each in splits],
        "stage": [int(each.read) + int(each.done) for each in splits],
        "highs": list(named),
        "high": [named[high] for high in highs],
        **_common(state),
    }
    if state.backfill_finished:
        fields |= {
            "done_splits": state.done_splits,
            "done_rows": state.done_rows,
            "done_bytes": state.done_bytes,
        }
    if state.snapshot or state.generation > 1:
        fields |= {"snapshot": state.snapshot, "generation": state.generation}
    return fields


def _state(fields: Mapping[str, Any]) -> BackfillState:
    lefts = fields["left"]
    rights = [*lefts[1:], None][: len(lefts)] if fields["right"] == 0 else fields["right"]
    highs = [None if high is None else parse_offset(high) for high in fields["highs"]]
    rows = zip(
        fields["number"],
        lefts,
        rights,
        fields["about"],
        fields["cursor"],
        fields["rows"],
        fields["bytes"],
        fields["stage"],
        fields["high"],
        strict=True,
    )
    columns = tuple(fields["columns"])
    splits = tuple(
        SplitProgress(
            split=Split(
                number=number, columns=columns, left=_key(left), right=_key(right), rows=about
            ),
            cursor=_key(cursor),
            rows=read,
            bytes=size,
            read=stage > 0,
            done=stage > 1,
            high=highs[high],
        )
        for number, left, right, about, cursor, read, size, stage, high in rows
    )
    return BackfillState(
        splits=splits,
        done_splits=int(fields.get("done_splits", 0)),
        done_rows=int(fields.get("done_rows", 0)),
        done_bytes=int(fields.get("done_bytes", 0)),
        snapshot=fields.get("snapshot", ""),
        generation=int(fields.get("generation", 1)),
        fill=tuple(fields.get("fill", ())),
        fill_from=parse_offset(place) if (place := fields.get("fill_from")) else None,
        filling=bool(fields.get("filling", False)),
        **_common_state(fields),
    )


def _fields_of_one(state: BackfillState) -> dict[str, Any]:
    """Version 1."""
    if len(state.splits) > 1 or any(
        (each.split.left, each.split.right) != (None, None) for each in state.splits
    ):
        raise DamagedState(
            "a backfill in splits cannot be carried on by one reader",
            hint="Set backfill.parallelism to 1 or more.",
        )
    one = state.splits[0] if state.splits else None
    return {
        "columns": one.split.columns if one else [],
        "cursor": _bound(one.cursor) if one else None,
        "rows": state.rows,
        "bytes": state.bytes,
        "about": one.split.rows if one else None,
        "read": one.read if one else True,
        "high": serialized(one.high) if one and one.high else None,
        **_common(state),
    }


def _migrated(fields: Mapping[str, Any]) -> BackfillState:
    """Version 1 as version 2: one split over the whole table, as far as the one reader was."""
    if fields["backfill_finished"]:
        return BackfillState(
            backfill_finished=True,
            done_splits=1,
            done_rows=int(fields["rows"]),
            done_bytes=int(fields["bytes"]),
        )
    only = SplitProgress(
        split=Split(number=1, columns=tuple(fields["columns"]), rows=fields["about"]),
        cursor=_key(fields["cursor"]),
        rows=int(fields["rows"]),
        bytes=int(fields["bytes"]),
        read=bool(fields["read"]),
        high=None if fields["high"] is None else parse_offset(fields["high"]),
    )
    return replace(BackfillState(**_common_state(fields)), splits=(only,))


def _common(state: BackfillState) -> dict[str, Any]:
    return {
        "backfill_finished": state.backfill_finished,
        "to_see": state.to_see,
        "floor": None if state.floor is None else serialized(state.floor),
        "pending": base64.b85encode(state.pending).decode(),
        "keys_high": None if state.keys_high is None else serialized(state.keys_high),
    }


def _common_state(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "backfill_finished": bool(fields["backfill_finished"]),
        "to_see": tuple(int(each) for each in fields["to_see"]),
        "floor": None if fields["floor"] is None else parse_offset(fields["floor"]),
        "pending": base64.b85decode(fields["pending"]),
        "keys_high": None if fields["keys_high"] is None else parse_offset(fields["keys_high"]),
    }


def _bound(key: Cursor | None) -> list[str] | str | None:
    """A key of one column is stored as that one text."""
    if key is None or len(key) != 1:
        return None if key is None else list(key)
    return key[0]


def _key(stored: list[str] | str | None) -> Cursor | None:
    if stored is None:
        return None
    return (stored,) if isinstance(stored, str) else tuple(str(each) for each in stored)
