"""A sink that the user writes: `connector = 'python', class = 'package.module:Class'`.

    the class has              and is used as
    deliver                    `TransactionalSink`: rows and commit id in one step of its own
    prepare and commit         `StagedSink`: parts first, then all of them at once

It is made with the `SinkSpec`, whose options are everything in WITH except `class`. `check`,
`begin`, `drop` and `abort` may be left out. Without `begin` the target cannot say what it has and
cannot fence: a delivery is then repeated after a crash, and it is up to the class to know its
commit id again. `testing/sink_kit.py` says whether a class keeps what it should.

An object is made in every process that needs one, so it may hold what cannot travel.
"""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from headwater.errors import ConfigError, HeadwaterError, UserError
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.options import Option
from headwater.sinks.sink import Batches, Delivery, Receipt, Sink, SinkSpec

OPTIONS: tuple[Option, ...] = (
    Option("class", "Where the class is: 'package.module:Class'. All other options are its own."),
)


class _PythonSink:
    """What both kinds have."""

    def __init__(self, place: str, spec: SinkSpec) -> None:
        self._place = place
        self._spec = spec
        self._object: Any = None

    def __getstate__(self) -> tuple[str, SinkSpec]:
        return self._place, self._spec

    def __setstate__(self, state: tuple[str, SinkSpec]) -> None:
        self._place, self._spec = state
        self._object = None

    def check(self) -> None:
        """As the class says. Replay: as the class says."""
        self._call("check")

    def begin(self, term: Term) -> Epoch:
        """As the class says, or that nothing is known. Replay: the same answer."""
        found = self._call("begin", term, default=NO_EPOCH)
        if not isinstance(found, int):
            raise self._wrong("begin", f"returned {type(found).__name__}, not an epoch")
        return Epoch(found)

    def drop(self) -> None:
        """As the class says. Replay: as the class says."""
        self._call("drop")

    def _call(self, method: str, *arguments: Any, default: Any = None) -> Any:
        if self._object is None:
            self._object = self._made()
        call = getattr(self._object, method, None)
        if call is None:
            return default
        try:
            return call(*arguments)
        except HeadwaterError:
            raise
        except Exception as error:
            raise self._wrong(method, f"raised {type(error).__name__}: {error}") from error

    def _made(self) -> Any:
        try:
            return _found(self._place)(self._spec)
        except HeadwaterError:
            raise
        except Exception as error:
            raise self._wrong("__init__", f"raised {type(error).__name__}: {error}") from error

    def _wrong(self, method: str, what: str) -> UserError:
        return UserError(
            f'class {self._place} of sink "{self._spec.name}" failed in {method}',
            detail=f"It {what}.",
            hint="Nothing is lost: the delivery is tried again, also after the class was mended.",
        )


class _DeliveringClass(_PythonSink):
    """A class with `deliver`."""

    def deliver(self, delivery: Delivery, rows: Batches) -> None:
        """As the class says. Replay: a commit id that it has is left as it is."""
        self._call("deliver", delivery, rows)


class _StagingClass(_PythonSink):
    """A class with `prepare` and `commit`."""

    def prepare(self, delivery: Delivery, part: int, rows: Batches) -> Receipt:
        """As the class says. Replay: writes them once more."""
        receipt = self._call("prepare", delivery, part, rows)
        if not isinstance(receipt, bytes):
            raise self._wrong("prepare", f"returned {type(receipt).__name__}, not bytes")
        return receipt

    def commit(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """As the class says. Replay: a commit id that it has is left as it is."""
        self._call("commit", delivery, receipts)

    def abort(self, delivery: Delivery, receipts: Sequence[Receipt]) -> None:
        """As the class says. Replay: nothing left to do."""
        self._call("abort", delivery, receipts)


def python_sink(spec: SinkSpec) -> Sink:
    """Make one of what a user asked for; the class is looked at, and not yet made."""
    place = spec.options.get("class", "")
    if not place:
        raise ConfigError('connector "python" needs the option "class"', hint=OPTIONS[0].doc)
    found = _found(place)
    own = replace(spec, options={k: v for k, v in spec.options.items() if k != "class"})
    if callable(getattr(found, "deliver", None)):
        return _DeliveringClass(place, own)
    missing = [name for name in ("prepare", "commit") if not hasattr(found, name)]
    if missing:
        raise ConfigError(
            f"class {place} has no {' and no '.join(missing)}",
            hint="A sink has deliver, or prepare and commit; see headwater.sinks.sink.",
        )
    return _StagingClass(place, own)


def _found(place: str) -> Any:
    module, colon, name = place.partition(":")
    if not (module and colon and name):
        raise ConfigError(
            f'"{place}" does not name a class', hint="Write it as package.module:Class."
        )
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ImportError as error:
        raise ConfigError(
            f"module {module} of sink class {place} cannot be imported",
            detail=str(error),
            hint="It must be on the Python path of the engine and of its workers.",
        ) from error
    except AttributeError as error:
        raise ConfigError(f"module {module} has no {name}", detail=str(error)) from error
    if not isinstance(found, type):
        raise ConfigError(f"{place} is not a class")
    return found
