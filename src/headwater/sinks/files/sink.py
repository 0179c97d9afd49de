"""A sink into plain files: every delivery adds one file, and none is ever changed.

    PATH/IDENT-EPOCH.parquet            a delivery, seen whole or not at all
    PATH/_headwater/IDENT/log/...       which deliveries there are, and the newest term
    PATH/_headwater/IDENT/staging/...   what is being written

Readers leave out names that begin with `_`, as Spark, Arrow, Hive and Trino do by themselves.
Parts are staged side by side. The commit joins them into one file, writes an entry of the log,
which decides, and moves the file to its name. A crash in between leaves the move to whoever
comes next: `begin` and `commit` finish what the last entry says, before anything else.

With `manifest = true` parts are not joined. Large deliveries are then committed without being
copied, but a reader that lists the folder may see some files of a delivery before the others;
one that reads the log sees it whole.
"""

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from headwater.errors import (
    ConfigError,
    Fenced,
    HeadwaterError,
    NotSupported,
    SinkUnavailable,
    StagedRowsGone,
    StorageUnavailable,
)
from headwater.model.epoch import Epoch
from headwater.model.ids import Term
from headwater.sinks.files.delivery_log import DeliveryLog, Entry
from headwater.sinks.files.encode import Encode, Part, join_parts, write_part
from headwater.sinks.options import Option, checked_options
from headwater.sinks.progress import check_given
from headwater.sinks.sink import Batches, Delivery, Receipt, SinkKind, SinkSpec
from headwater.sinks.target_files import (
    S3_OPTIONS,
    open_target,
    part_name,
    remove_below,
    remove_parts,
    unavailable,
)
from headwater.state.storage import Storage

OPTIONS: tuple[Option, ...] = (
    Option(
        "path",
        "The folder: a path, or s3://bucket/prefix; with s3.bucket_name the prefix alone.",
        also=("fs.path", "s3.path", "location"),
    ),
    Option("s3.bucket_name", "The bucket that path is a prefix in.", default=""),
    *S3_OPTIONS,
    Option(
        "manifest",
        "Whether a large delivery may be several files, which the log holds together.",
        default="false",
    ),
)

_OWN = "_headwater"
_TRIES = 20


def file_sink(spec: SinkSpec) -> "FileSink":
    """The sink of `connector = 'fs'`, `'s3'` and `'file'`."""
    return FileSink(spec)


class FileSink:
    """One folder, as the target of one sink."""

    def __init__(self, spec: SinkSpec) -> None:
        self._spec = spec
        self._options = checked_options("file", spec.options, OPTIONS)
        self._joins = not self._options.flag("manifest")
        self._encode = _encode(spec)
        if spec.kind is not SinkKind.APPEND_ONLY:
            raise NotSupported(
                f'sink "{spec.name}" into files must be append-only',
                detail="A file cannot take back or change a row that it holds.",
                hint="Use type = 'append-only' with force_append_only = true, or deliver into "
                "Delta or Iceberg, which take upserts.",
            )
        self._seen = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_seen": -1}

    def check(self) -> None:
        """Check that files can be written, listed and removed there."""
        probe = f"{self._folder}/probe-{secrets.token_hex(4)}"
        with self._errors():
            self._storage.put(probe, b"")
            self._log.last()
            self._storage.delete(probe)

    def begin(self, term: Term) -> Epoch:
        """Finish the last delivery, enter the term into the log, and say which epoch it has."""

        def entered(last: Entry) -> Entry | None:
            return None if last.term == term else Entry(term=term, epoch=last.epoch)

        return self._append(term, entered).epoch

    def prepare(self, delivery: Delivery, part: int, rows: Batches) -> Receipt:
        """Stage one part as a file. Replay: another file; the commit removes the first."""
        path = self._staged(delivery, f"{part:05d}")
        with self._errors():
            written = write_part(self._storage, path, self._encode, self._spec.columns, rows)
        return b"" if written is None else json.dumps(asdict(written)).encode()

    def commit(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Enter the delivery into the log and give its files their names.

        Replay: the log says that it is there; files that have their names already stay.
        """
        parts = [Part(**json.loads(receipt)) for receipt in receipts if receipt]

        def entered(last: Entry) -> Entry | None:
            nonlocal parts
            if last.epoch >= delivery.epoch:
                return None
            check_given(delivery, last.epoch)
            self._refuse_missing(delivery, parts)
            if self._joins and len(parts) > 1:
                parts = [self._joined(delivery, parts)]
            return Entry(
                term=delivery.term, epoch=delivery.epoch, moves=self._moves(delivery, parts)
            )

        last = self._append(delivery.term, entered)
        with self._errors():
            self._finish(last)
            remove_below(self._storage, self._staging(delivery))

    def abort(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """Remove what was staged, also without receipts; what a newer term staged stays."""
        del receipts
        with self._errors():
            remove_parts(self._storage, self._staging(delivery), delivery.term)

    def drop(self) -> None:
        """Finish the last delivery, then remove log and staging; files of rows stay."""
        with self._errors():
            self._finish(self._log.last()[1])
            remove_below(self._storage, self._folder)

    @property
    def _storage(self) -> Storage:
        bucket, path = self._options["s3.bucket_name"], self._options["path"]
        return open_target(f"s3://{bucket}/{path.strip('/')}" if bucket else path, self._options)

    @property
    def _folder(self) -> str:
        return f"{_OWN}/{self._spec.ident}"

    @property
    def _log(self) -> DeliveryLog:
        return DeliveryLog(self._storage, f"{self._folder}/log")

    def _staging(self, delivery: Delivery) -> str:
        return f"{self._folder}/staging/{delivery.commit_id}"

    def _staged(self, delivery: Delivery, part: str) -> str:
        return f"{self._staging(delivery)}/{part_name(delivery, part, self._encode)}"

    def _append(self, term: Term, entered: Callable[[Entry], Entry | None]) -> Entry:
        """Append what `entered` makes of the last entry, and return the entry that is last then."""
        log = self._log
        for _ in range(_TRIES):
            with self._errors():
                number, last = log.last(self._seen)
                self._seen = number
                if last.term > term:
                    raise Fenced(
                        f'another engine delivers to sink "{self._spec.name}" now',
                        detail=f"The log has term {last.term}, this engine has {term}.",
                    )
                self._finish(last)
                entry = entered(last)
                if entry is None:
                    return last
                if log.append(entry, number):
                    return entry
        raise SinkUnavailable(
            f'sink "{self._spec.name}" cannot commit: others write its log all the time',
            hint="It is tried again by itself.",
        )

    def _finish(self, entry: Entry) -> None:
        """Give an entry's files their names. Replay: those that are moved already stay."""
        for staged, name in entry.moves.items():
            with contextlib.suppress(FileNotFoundError):
                self._storage.move(staged, name)

    def _moves(self, delivery: Delivery, parts: Sequence[Part]) -> dict[str, str]:
        stem = f"{self._spec.ident}-{delivery.epoch:020d}"
        if len(parts) == 1 and self._joins:
            return {parts[0].path: f"{stem}.{self._encode}"}
        return {
            part.path: f"{stem}-{number:05d}.{self._encode}" for number, part in enumerate(parts)
        }

    def _refuse_missing(self, delivery: Delivery, parts: Sequence[Part]) -> None:
        """The log must never name a file that is not there."""
        there = set(self._storage.list(self._staging(delivery))) if parts else set()
        for part in parts:
            if part.path not in there:
                raise StagedRowsGone(
                    f'files that were prepared for sink "{self._spec.name}" are gone',
                    detail=f"{self._storage.url}/{part.path}.",
                    hint="They have to be prepared anew.",
                )

    def _joined(self, delivery: Delivery, parts: Sequence[Part]) -> Part:
        path = self._staged(delivery, "whole")
        return join_parts(self._storage, path, self._encode, self._spec.columns, parts)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StorageUnavailable as error:
            raise unavailable(self._spec.name, self._options, error) from error
        except HeadwaterError:
            raise
        except OSError as error:
            raise unavailable(self._spec.name, self._options, error) from error


def _encode(spec: SinkSpec) -> Encode:
    encoding = spec.encoding
    if encoding.format.upper() not in ("", "PLAIN"):
        raise ConfigError(
            f'sink "{spec.name}" into files cannot have FORMAT {encoding.format}',
            hint="Use FORMAT PLAIN.",
        )
    try:
        return Encode(encoding.encode.lower() or Encode.PARQUET)
    except ValueError:
        raise ConfigError(
            f'sink "{spec.name}" into files cannot have ENCODE {encoding.encode}',
            hint="Use ENCODE PARQUET, ENCODE JSON or ENCODE CSV.",
        ) from None
