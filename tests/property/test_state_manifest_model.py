"""The manifest against a naive model that keeps every epoch whole."""

import dataclasses
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import BrokenInvariant, DamagedState, HistoryGone, SchemaError
from headwater.model.epoch import Epoch
from headwater.model.ids import TableId
from headwater.model.schema import Column, Schema
from headwater.model.table_commit import ChangeFile, DataFile, DeletionVector, TableCommit
from headwater.model.types import BIGINT, INTEGER, VARCHAR
from headwater.state.manifest import Manifest

FIRST = Schema((Column("id", BIGINT), Column("a", INTEGER)), ("id",))


def data_file(name: str) -> DataFile:
    return DataFile(path=name, bytes=10, rows=100, first_vnode=0, last_vnode=255)


def vector(path: str, cardinality: int) -> DeletionVector:
    return DeletionVector(path=path, offset=1, bytes=9, cardinality=cardinality)


class Naive:
    """Every epoch's files, vectors, schema and changes, never folded into anything."""

    def __init__(self) -> None:
        self.random: Random
        self.files: dict[str, DeletionVector | None] = {}
        self.schema = FIRST
        self.epochs: list[int] = []
        self.views: dict[int, tuple[Schema, dict[str, DeletionVector | None]]] = {}
        self.logs: dict[int, tuple[set[str], set[str]]] = {}
        self.version = -1
        self.count = 0

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def commit(self, random: Random) -> TableCommit:
        """A random commit that fits."""
        added = [data_file(self.name("d")) for _ in range(random.randrange(3))]
        evolves = self.version < 0 or random.random() < 0.1
        # A fold is not adopted together with a new schema.
        folded = [path for path in self.files if random.random() < 0.2 and not evolves]
        rewritten = (
            [data_file(self.name("f")) for _ in range(random.randrange(2))] if folded else []
        )
        dead, place = [], self.name("v")
        for path in [*self.files, *(f.path for f in rewritten)]:
            if path not in folded and random.random() < 0.3:
                before = self.files.get(path)
                size = (before.cardinality if before else 0) + random.randrange(1, 5)
                dead.append((path, vector(place, size)))
        exact = bool(dead) or random.random() < 0.3
        changes = [ChangeFile(path=self.name("c"), bytes=1, rows=1)] if exact else []
        schema = None
        if evolves:
            schema = self.schema
            if self.version >= 0:
                column = Column(f"x{self.count}", VARCHAR)
                schema = Schema((*self.schema.columns, column), ("id",))
                if len(schema.columns) > 4:
                    kept = tuple(c for c in schema.columns if c.name != schema.columns[1].name)
                    schema = Schema(kept, ("id",))
        return TableCommit(
            table=TableId(1),
            version=self.version + 1,
            added=(*added, *rewritten),
            dead=tuple(dead),
            changes=tuple(changes),
            folded=tuple(folded),
            rewritten=tuple(f.path for f in rewritten),
            schema=schema,
        )

    def apply(self, epoch: int, commit: TableCommit) -> None:
        self.files = {p: v for p, v in self.files.items() if p not in commit.folded}
        self.files |= {f.path: None for f in commit.added}
        self.files |= dict(commit.dead)
        self.schema = commit.schema or self.schema
        self.version = commit.version
        self.epochs.append(epoch)
        self.views[epoch] = (self.schema, dict(self.files))
        changed = {f.path for f in commit.changes}
        inserted = set() if changed else {f.path for f in commit.inserted}
        self.logs[epoch] = (changed, inserted)

    def view(self, epoch: int) -> tuple[Schema, dict[str, DeletionVector | None]]:
        last = max((e for e in self.epochs if e <= epoch), default=None)
        return (FIRST, {}) if last is None else self.views[last]

    def needed(self, horizon: int) -> set[str]:
        needed: set[str] = set()
        for epoch in {horizon, *(e for e in self.epochs if e > horizon)}:
            _, files = self.view(epoch)
            needed |= set(files) | {v.path for v in files.values() if v}
        for epoch in self.epochs:
            if epoch > horizon:
                needed |= self.logs[epoch][0] | self.logs[epoch][1]
        return needed


def compare(manifest: Manifest, naive: Naive, horizon: int) -> None:
    last = naive.epochs[-1]
    for epoch in {horizon, *(e + d for e in naive.epochs for d in (-1, 0, 1))}:
        if epoch < horizon:
            with pytest.raises(HistoryGone):
                manifest.view_at(Epoch(epoch))
            continue
        schema, files = naive.view(epoch)
        view = manifest.view_at(Epoch(epoch))
        assert view.schema == schema
        assert {live.file.path: live.dead for live in view.files} == files
        assert view.rows == sum(100 - (v.cardinality if v else 0) for v in files.values())
    assert {live.file.path: live.dead for live in manifest.view().files} == naive.view(last)[1]
    kept = [e for e in naive.epochs if e >= horizon]
    for after in kept:
        for upto in kept:
            found = manifest.changes(Epoch(after), Epoch(upto))
            wanted = [e for e in naive.epochs if after < e <= upto and any(naive.logs[e])]
            assert [entry.epoch for entry in found] == wanted
            for entry in found:
                assert {f.path for f in entry.changes} == naive.logs[entry.epoch][0]
                assert {f.path for f in entry.inserts} == naive.logs[entry.epoch][1]
    assert set(manifest.paths()) == naive.needed(horizon)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 25))
def test_a_manifest_says_what_a_naive_model_says(seed, steps):
    random, naive = Random(seed), Naive()
    manifest = Manifest(TableId(1), FIRST, Epoch(10))
    horizon, epoch = 10, 100
    for _ in range(steps):
        epoch += random.randrange(1, 9)
        commit = naive.commit(random)
        manifest.apply(Epoch(epoch), commit)
        naive.apply(epoch, commit)
        if random.random() < 0.2:
            wanted = random.randrange(90, epoch + 1)
            named, needed = set(manifest.paths()), naive.needed(max(wanted, horizon))
            assert set(manifest.expired(Epoch(max(wanted, horizon)))) == named - needed
            manifest.advance_horizon(Epoch(wanted))
            horizon = max(wanted, horizon)
        if random.random() < 0.3:
            copied = manifest.copy()
            decoded = Manifest.decode(manifest.encode())
            assert decoded.encode() == manifest.encode() == copied.encode()
            manifest = random.choice((copied, decoded))
    compare(manifest, naive, horizon)
    compare(Manifest.decode(manifest.encode()), naive, horizon)


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_a_copy_goes_its_own_way(seed):
    random, naive = Random(seed), Naive()
    manifest = Manifest(TableId(1), FIRST, Epoch(10))
    for epoch in range(100, 110):
        commit = naive.commit(random)
        manifest.apply(Epoch(epoch), commit)
        naive.apply(epoch, commit)
    before, copied = manifest.encode(), manifest.copy()
    copied.apply(Epoch(111), naive.commit(random))
    copied.advance_horizon(Epoch(111))
    assert manifest.encode() == before
    compare(manifest, naive, 10)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(0, 8))
def test_a_commit_that_does_not_fit_is_refused_and_changes_nothing(seed, kind):
    random, naive = Random(seed), Naive()
    manifest = Manifest(TableId(1), FIRST, Epoch(10))
    commit = TableCommit(
        table=TableId(1), version=0, added=(data_file("x"), data_file("y")), schema=FIRST
    )
    for epoch in range(100, 104):
        manifest.apply(Epoch(epoch), commit)
        naive.apply(epoch, commit)
        commit = naive.commit(random)
    grown = dataclasses.replace(commit, added=(*commit.added, data_file("z")), folded=(), dead=())
    alive = next(iter(naive.files), None)
    epoch, bad = 104, grown
    match kind:
        case 0:
            bad = dataclasses.replace(grown, table=TableId(2))
        case 1:
            epoch = 103
        case 2:
            bad = dataclasses.replace(grown, version=grown.version + 1)
        case 3:
            bad = dataclasses.replace(grown, version=grown.version - 1)
        case 4:
            bad = dataclasses.replace(grown, added=(data_file("z"), data_file("z")))
        case 5:
            bad = dataclasses.replace(grown, folded=("nowhere",))
        case 6:
            bad = dataclasses.replace(grown, dead=(("nowhere", vector("v", 9)),))
        case 7 if alive:
            bad = dataclasses.replace(grown, folded=(alive,), dead=((alive, vector("v", 99)),))
        case 8 if alive and naive.files[alive]:
            same = vector("v", naive.files[alive].cardinality)
            bad = dataclasses.replace(grown, dead=((alive, same),))
        case _:
            bad = dataclasses.replace(grown, added=(data_file(alive or "z"), data_file("z")) * 2)
    before = manifest.encode()
    with pytest.raises(BrokenInvariant):
        manifest.apply(Epoch(epoch), bad)
    assert manifest.encode() == before


def test_a_file_that_was_folded_away_stays_known_while_its_inserts_are_read():
    manifest = Manifest(TableId(1), FIRST, Epoch(10))
    manifest.apply(
        Epoch(100),
        TableCommit(table=TableId(1), version=0, added=(data_file("a"),), schema=FIRST),
    )
    manifest.apply(Epoch(110), TableCommit(table=TableId(1), version=1, added=(data_file("b"),)))
    manifest.apply(
        Epoch(120),
        TableCommit(
            table=TableId(1), version=2, added=(data_file("ab"),),
            folded=("a", "b"), rewritten=("ab",),
        ),
    )  # fmt: skip
    assert set(manifest.expired(Epoch(105))) == set()
    assert set(manifest.expired(Epoch(115))) == set()
    assert set(manifest.expired(Epoch(120))) == {"a", "b"}
    manifest.advance_horizon(Epoch(105))
    assert [f.path for f in manifest.changes(Epoch(105), Epoch(130))[0].inserts] == ["b"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not compressed",
        __import__("zlib").compress(b"[]"),
        __import__("zlib").compress(b"{}"),
        __import__("zlib").compress(b'{"format": 1}'),
        __import__("zlib").compress(b'{"format": 99}'),
        __import__("zlib").compress(b"7"),
    ],
)
def test_a_list_that_cannot_be_read_is_damage(content):
    with pytest.raises(DamagedState):
        Manifest.decode(content)


@given(st.integers(0, 10_000))
def test_any_damage_of_a_stored_list_is_found(place):
    manifest = Manifest(TableId(1), FIRST, Epoch(10))
    manifest.apply(
        Epoch(100),
        TableCommit(table=TableId(1), version=0, added=(data_file("a"),), schema=FIRST),
    )
    content = bytearray(manifest.encode())
    content[place % len(content)] ^= 1 << (place % 8)
    try:
        assert Manifest.decode(bytes(content)).encode() == manifest.encode()
    except DamagedState:
        pass


def test_a_dropped_name_is_retired_for_good():
    manifest = Manifest(TableId(1), FIRST, Epoch(10))
    less = Schema((Column("id", BIGINT),), ("id",))
    first = TableCommit(table=TableId(1), version=0, added=(data_file("a"),), schema=FIRST)
    manifest.apply(Epoch(100), first)
    manifest.apply(Epoch(101), TableCommit(table=TableId(1), version=1, schema=less))
    manifest.advance_horizon(Epoch(101))
    for known in (manifest, Manifest.decode(manifest.encode()), manifest.copy()):
        for name in ("a", "A"):
            with pytest.raises(SchemaError, match="was dropped"):
                known.evolve(Schema((*less.columns, Column(name, INTEGER)), ("id",)))
