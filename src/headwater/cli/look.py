"""Commands that look at a workspace without disturbing it."""

from dataclasses import fields
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headwater.catalog.catalog import Catalog
from headwater.config import Settings
from headwater.errors import ConfigError
from headwater.ledger.ledger import Ledger
from headwater.model.epoch import NO_EPOCH, Epoch, epoch_time
from headwater.model.ids import TableId
from headwater.model.record import EpochRecord
from headwater.observe.events import EventLog
from headwater.state.manifest import Manifest

_console = Console()


def show_status(path: Path) -> None:
    """Print the last epoch, the owner and the tables."""
    with _ledger(path) as ledger:
        last = ledger.last_epoch()
        owner = ledger.owner()
        _console.print(f"workspace   {path.resolve()}")
        _console.print(f"last epoch  {_epoch(last)}")
        _console.print(f"engine      {owner}")
        table = Table("table", "id", "source", "rows", "files", "dead rows", "bytes", box=None)
        for definition in Catalog(ledger).snapshot().tables:
            view = _manifest(ledger, definition.id, definition.schema).view()
            dead = sum(live.dead.cardinality for live in view.files if live.dead)
            size = sum(live.file.bytes for live in view.files)
            table.add_row(
                definition.name,
                str(definition.id),
                str(definition.source or ""),
                f"{view.rows:,}",
                str(len(view.files)),
                f"{dead:,}",
                f"{size:,}",
            )
        _console.print(table)


def show_epochs(path: Path, last: int) -> None:
    """Print the latest epochs, newest first."""
    with _ledger(path) as ledger:
        table = Table("epoch", "time (UTC)", "term", "tables", "rows added", "files", box=None)
        record = _record(ledger, ledger.last_epoch())
        while record is not None and last > 0:
            added = sum(file.rows for commit in record.tables for file in commit.inserted)
            files = sum(len(commit.added) for commit in record.tables)
            table.add_row(
                str(record.epoch),
                f"{epoch_time(record.epoch):%Y-%m-%d %H:%M:%S.%f}"[:-3],
                str(record.term),
                str(len(record.tables)),
                f"{added:,}",
                str(files),
            )
            record, last = _record(ledger, record.after), last - 1
        _console.print(table)


def show_story(path: Path, number: int) -> None:
    """Print one epoch's record in full."""
    with _ledger(path) as ledger:
        record = ledger.record(Epoch(number))
        names = {table.id: table.name for table in Catalog(ledger).snapshot().tables}
        _console.print(f"epoch {_epoch(record.epoch)}")
        _console.print(f"  after epoch {record.after}, committed by term {record.term}")
        _console.print(f"  sealed epochs: {', '.join(map(str, record.sealed)) or 'its own'}")
        for name, position in record.positions.items():
            _console.print(f"  source {name} is at position {position}")
        for commit in record.tables:
            _console.print(
                f"  table {names.get(commit.table, commit.table)}, Delta version {commit.version}"
            )
            for file in commit.inserted:
                _console.print(f"    + {file.rows:,} rows in {file.path}")
            for path_, vector in commit.dead:
                _console.print(f"    - {vector.cardinality:,} rows are dead now in {path_}")
            for change in commit.changes:
                _console.print(f"    ~ {change.rows:,} changes in {change.path}")
            for folded in commit.folded:
                _console.print(f"    folded away {folded}")
            if commit.schema is not None:
                _console.print(f"    schema {commit.schema.spark}")
        for table, horizon in record.horizons.items():
            _console.print(f"  table {names.get(TableId(table), table)} forgets before {horizon}")


def show_events(path: Path, last: int) -> None:
    """Print the latest events, newest first."""
    with _ledger(path) as ledger:
        for event in EventLog(ledger).recent(last):
            _console.print(
                f"{event.at:%Y-%m-%d %H:%M:%S} {event.kind:20} {event.subject}: {event.text}",
                markup=False,
                highlight=False,
            )


def show_settings(path: Path) -> None:
    """Print every setting."""
    now = Settings.load(path if path.is_dir() else None)
    table = Table("setting", "value", "unit", "range", "live", "meaning", box=None)
    for column in table.columns[:-1]:
        column.no_wrap = True
    for setting in fields(now):
        low, high = setting.metadata["low"], setting.metadata["high"]
        span = "" if low is None and high is None else f"{low} .. {'' if high is None else high}"
        table.add_row(
            setting.name,
            str(getattr(now, setting.name)),
            setting.metadata["unit"],
            span,
            "yes" if setting.metadata["live"] else "",
            setting.metadata["doc"],
        )
    _console.print(table)


class _ledger:
    def __init__(self, path: Path) -> None:
        settings = Settings.load(path if path.is_dir() else None)
        file = path / "ledger.db"
        if not settings.ledger_url and not file.exists():
            raise ConfigError(
                f"{path.resolve()} is not a workspace",
                detail="It has no ledger.db.",
                hint="Name the workspace with --workspace, or make one with `headwater run`.",
            )
        self._url = settings.ledger_url or f"sqlite:///{file.resolve()}"

    def __enter__(self) -> Ledger:
        self._opened = Ledger.open(self._url)
        return self._opened

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def _epoch(epoch: Epoch) -> str:
    if epoch == NO_EPOCH:
        return "none yet"
    return f"{epoch} ({epoch_time(epoch):%Y-%m-%d %H:%M:%S} UTC)"


def _record(ledger: Ledger, epoch: Epoch) -> EpochRecord | None:
    if epoch == NO_EPOCH or epoch <= ledger.floor():
        return None
    return ledger.record(epoch)


def _manifest(ledger: Ledger, table: TableId, schema: object) -> Manifest:
    stored = ledger.manifest(table)
    manifest = (
        Manifest.decode(stored.body) if stored else Manifest(table, schema)  # type: ignore[arg-type]
    )
    for record in ledger.records(max(stored.epoch if stored else NO_EPOCH, ledger.floor())):
        for commit in record.tables:
            if commit.table == table and commit.version > manifest.version:
                manifest.apply(record.epoch, commit)
    return manifest
