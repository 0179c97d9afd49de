"""A sink class on trial: every promise of `sinks/sink.py`, tried against a real target.

Whoever writes a sink hands in a case: how the sink is made, and what a reader of the target
sees. Each check makes a target of its own, brings deliveries to it, and goes wrong in one way:

    class CaseOfMine:
        kind = SinkKind.UPSERT
        def make(self, spec): return MySink(replace(spec, options={"url": URL}))
        def rows(self, spec): return read_all(f"SELECT id, name, quantity FROM {spec.ident}")

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_sink(check): run_check(CaseOfMine(), check)

Rows are compared in both directions, as often as they are there, after every step. A case may
also have

    without         names of checks whose promise the target cannot keep; said openly, by name
    stop_target()   the target goes away; without this that check is passed over
    start_target()  and comes back
    large_rows      how many rows a large delivery has

Names in the target come from `spec.ident`, which is another one for every check.
"""

import itertools
import pickle
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from headwater.errors import Fenced, HeadwaterError, RetryableError
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import Term
from headwater.sinks.sink import Receipt, Sink, SinkKind, SinkSpec, StagedSink, TransactionalSink
from headwater.testing.sink_rows import History, Owed, Row, new_spec

_FIRST, _SECOND, _THIRD = Term(1), Term(2), Term(3)
_LARGE = 20_000
_ROUNDS = 4


class SinkBroken(AssertionError):
    """A sink did not keep a promise; says which one, and how the rows differ."""


class SinkCase(Protocol):
    """A kind of sink and its target, as a kit needs them."""

    kind: SinkKind

    def make(self, spec: SinkSpec) -> Sink:
        """A sink for these columns. Called once per engine; the target is the same for an ident."""
        ...

    def rows(self, spec: SinkSpec) -> Iterable[tuple[Any, ...]]:
        """What a reader of the target sees now, columns in the order of the spec."""
        ...


@runtime_checkable
class Interruptible(Protocol):
    """A target that can be taken away."""

    def stop_target(self) -> None:
        """From now on nobody answers."""
        ...

    def start_target(self) -> None:
        """It answers again, with everything that it had stored."""
        ...


class _Trial:
    """One target, the history owed to it, and what it must hold."""

    def __init__(self, case: SinkCase) -> None:
        self.case = case
        self.spec = new_spec(f"kit_{secrets.token_hex(5)}", case.kind)
        self.history = History(self.spec, Random(7))
        self.held: Counter[Row] = Counter()
        self.epoch = NO_EPOCH
        self.make().check()

    def make(self) -> Sink:
        """A sink as another process has it: over pickle, like the ones in Spark tasks."""
        made: Sink = pickle.loads(pickle.dumps(self.case.make(self.spec)))
        return made

    def begun(self, term: Term) -> Sink:
        """A sink of a new engine, which must hear what the target has."""
        sink = self.make()
        found = sink.begin(term)
        if found != self.epoch:
            raise SinkBroken(f"begin says the target has epoch {found}, it has {self.epoch}")
        return sink

    def bring(self, sink: Sink, owed: Owed, parts: int = 2) -> None:
        """The whole delivery, and a look at the target."""
        for _ in steps(sink, owed, parts):
            pass
        self.has(owed)

    def has(self, owed: Owed) -> None:
        """The target holds the delivery from now on; check that."""
        self.held, self.epoch = owed.after, owed.delivery.epoch
        self.verify(f"after delivery {owed.delivery.commit_id}")

    def verify(self, when: str) -> None:
        """The rows of the target, both ways."""
        found = Counter(tuple(row) for row in self.case.rows(self.spec))
        missing, extra = self.held - found, found - self.held
        if missing or extra:
            raise SinkBroken(
                f"{when}: {missing.total()} rows are missing, {extra.total()} are too many; "
                f"missing {_some(missing)}, too many {_some(extra)}"
            )


def steps(sink: Sink, owed: Owed, parts: int) -> Iterator[str]:
    """Bring a delivery, and stop between every two steps."""
    divided = owed.parts(parts)
    if isinstance(sink, StagedSink):
        yield "before the first part"
        receipts: list[Receipt] = []
        for number, batches in enumerate(divided):
            receipts.append(_receipt(sink, owed, number, batches))
            yield f"after part {number}"
        sink.commit(owed.delivery, receipts)
        yield "after the commit"
        return
    assert isinstance(sink, TransactionalSink), "a sink has `deliver`, or `prepare` and `commit`"
    yield "before the delivery"
    sink.deliver(owed.delivery, itertools.chain.from_iterable(divided))
    yield "after the delivery"


def _receipt(sink: StagedSink, owed: Owed, part: int, batches: Iterable[pa.RecordBatch]) -> Receipt:
    receipt = sink.prepare(owed.delivery, part, batches)
    if not isinstance(receipt, bytes):
        raise SinkBroken(f"prepare returns {type(receipt).__name__}; a receipt is bytes")
    return receipt


def rows_arrive(trial: _Trial) -> None:
    """Deliveries one after the other, each seen as it ends; check and begin may be repeated."""
    sink = trial.begun(_FIRST)
    for _ in range(_ROUNDS):
        trial.bring(sink, trial.history.next(_FIRST))
    trial.make().check()
    trial.begun(_FIRST)
    trial.bring(trial.begun(_SECOND), trial.history.next(_SECOND))


def repeated(trial: _Trial) -> None:
    """A delivery that the target has changes nothing, also an old one, also in other parts."""
    sink, brought = trial.begun(_FIRST), []
    for _ in range(_ROUNDS):
        brought.append(trial.history.next(_FIRST))
        trial.bring(sink, brought[-1])
        for old in brought:
            for parts in (2, 3):
                for step in steps(sink, old, parts):
                    trial.verify(f"{old.delivery.commit_id} is repeated, {step}")
    for old in brought:
        again = trial.begun(Term(_SECOND + old.delivery.epoch))
        for _ in steps(again, old.under(Term(_SECOND + old.delivery.epoch)), 1):
            trial.verify(f"{old.delivery.commit_id} is repeated by a later engine")


def empty_epochs(trial: _Trial) -> None:
    """Epochs without rows are passed over; the target still says what it has."""
    sink = trial.begun(_FIRST)
    for gap in (1, 1000, 1, 1 << 40):
        trial.begun(_FIRST)
        trial.bring(sink, trial.history.next(_FIRST, changes=0, gap=gap))


def crashed(trial: _Trial) -> None:
    """The engine dies between any two steps; the next one looks, and brings what is missing."""
    term, before = Term(1), trial.begun(Term(1))
    trial.bring(before, trial.history.next(term))
    for place in itertools.count():
        owed = trial.history.next(term)
        passed = list(itertools.islice(steps(before, owed, 3), place + 1))
        if passed[-1] in ("after the commit", "after the delivery"):
            trial.has(owed)
        else:
            trial.verify(f"dead {passed[-1]}, nothing may be seen")
        term = Term(term + 1)
        before = trial.begun(term)
        owed = owed.under(term)
        if trial.epoch < owed.delivery.epoch:
            if isinstance(before, StagedSink):
                before.abort(owed.delivery, [])
                trial.verify("after an abort")
            trial.bring(before, owed, parts=2)
        if len(passed) <= place:
            return


def crashed_with_receipts(trial: _Trial) -> None:
    """Parts are prepared and their receipts stored; only the next engine commits them."""
    first = trial.begun(_FIRST)
    owed = trial.history.next(_FIRST)
    if not isinstance(first, StagedSink):
        return trial.bring(first, owed)
    receipts = [_receipt(first, owed, n, rows) for n, rows in enumerate(owed.parts(3))]
    trial.verify("prepared, not committed")
    second = trial.begun(_SECOND)
    assert isinstance(second, StagedSink)
    second.commit(owed.under(_SECOND).delivery, receipts)
    trial.has(owed)
    second.commit(owed.under(_SECOND).delivery, receipts)
    trial.has(owed)
    return trial.bring(second, trial.history.next(_SECOND))


def broken_off(trial: _Trial) -> None:
    """Rows stop in the middle with an error; nothing of them is seen, then or later."""
    sink = trial.begun(_FIRST)
    trial.bring(sink, trial.history.next(_FIRST))
    owed = trial.history.next(_FIRST, changes=60)

    def until_the_middle() -> Iterator[pa.RecordBatch]:
        batches = owed.parts(1)[0]
        for batch in batches[: len(batches) // 2 + 1]:
            yield batch
            trial.verify(f"{owed.delivery.commit_id} is under way")
        raise RetryableError("the log cannot be read")

    for _ in range(2):
        try:
            if isinstance(sink, StagedSink):
                sink.prepare(owed.delivery, 0, until_the_middle())
            elif isinstance(sink, TransactionalSink):
                sink.deliver(owed.delivery, until_the_middle())
        except RetryableError:
            trial.verify("rows stopped in the middle")
        else:
            raise SinkBroken("rows stopped with an error, and the sink did not say so")
    trial.bring(sink, owed)
    trial.bring(trial.begun(_SECOND), trial.history.next(_SECOND))


def zombie(trial: _Trial) -> None:
    """An engine that was thought dead wakes up: it is fenced, and changes nothing."""
    old = trial.begun(_FIRST)
    trial.bring(old, trial.history.next(_FIRST))
    owed = trial.history.next(_FIRST)
    # It may have begun before the other one came.
    under_way = steps(old, owed, 2)
    next(under_way)
    new = trial.begun(_SECOND)
    for attempt in (under_way, steps(old, owed, 3)):
        _must_be_fenced(partial(list, attempt), "brings a delivery")
        trial.verify("a zombie came back")
    _must_be_fenced(lambda: trial.make().begin(_FIRST), "begins")
    trial.bring(new, owed.under(_SECOND))
    _must_be_fenced(lambda: trial.make().begin(_FIRST), "begins")
    trial.verify("a zombie began after a delivery")
    later = trial.history.next(_FIRST)
    _must_be_fenced(lambda: list(steps(old, later, 1)), "brings a later delivery")
    trial.verify("a zombie brought a later delivery")
    trial.bring(new, later.under(_SECOND))


def zombie_aborts(trial: _Trial) -> None:
    """A zombie removes what it prepared itself, never what a later engine did."""
    old = trial.begun(_FIRST)
    owed = trial.history.next(_FIRST)
    if not isinstance(old, StagedSink):
        return trial.bring(old, owed)
    stale = [_receipt(old, owed, n, rows) for n, rows in enumerate(owed.parts(2))]
    new = trial.begun(_SECOND)
    assert isinstance(new, StagedSink)
    fresh = owed.under(_SECOND)
    receipts = [_receipt(new, fresh, n, rows) for n, rows in enumerate(fresh.parts(2))]
    for lost in (stale, []):
        try:
            old.abort(owed.delivery, lost)
        except Fenced:
            continue
    new.commit(fresh.delivery, receipts)
    return trial.has(fresh)


def aborted(trial: _Trial) -> None:
    """What was prepared is removed and prepared anew, under the same commit id."""
    sink = trial.begun(_FIRST)
    trial.bring(sink, trial.history.next(_FIRST))
    owed = trial.history.next(_FIRST)
    if not isinstance(sink, StagedSink):
        return trial.bring(sink, owed)
    for known in (True, False):
        receipts = [_receipt(sink, owed, n, rows) for n, rows in enumerate(owed.parts(3))]
        for _ in range(2):
            sink.abort(owed.delivery, receipts if known else [])
            trial.verify("after an abort")
    return trial.bring(sink, owed)


def two_at_once(trial: _Trial) -> None:
    """Two engines bring the same delivery at the same moment; the target has it once."""
    trial.bring(trial.begun(_FIRST), trial.history.next(_FIRST))
    for _ in range(_ROUNDS):
        owed = trial.history.next(_FIRST)
        sinks = [trial.begun(_FIRST), trial.begun(_FIRST)]
        _together([partial(_bring_all, sink, owed) for sink in sinks])
        # Either may have lost with an error; whoever comes next finds out what there is.
        last = trial.make()
        if last.begin(_FIRST) < owed.delivery.epoch:
            list(steps(last, owed, 2))
        trial.has(owed)


def overtaken(trial: _Trial) -> None:
    """A new engine begins while the old one delivers; what it hears stays true."""
    for number in range(1, 2 * _ROUNDS):
        old_term, new_term = Term(2 * number), Term(2 * number + 1)
        old, new = trial.begun(old_term), trial.make()
        owed = trial.history.next(old_term)
        heard: list[Epoch] = []
        begin = partial(_hear, new, new_term, heard)
        errors = _together([partial(_bring_all, old, owed), begin])
        if not heard:
            if not isinstance(errors[1], RetryableError):
                raise SinkBroken(f"a newer engine cannot begin: {errors[1]}")
            heard.append(new.begin(new_term))
        if heard[0] >= owed.delivery.epoch:
            trial.has(owed)
            continue
        if errors[0] is None:
            raise SinkBroken("an old engine delivered after a newer one had begun")
        trial.verify("the old engine was overtaken")
        trial.bring(new, owed.under(new_term))


def _bring_all(sink: Sink, owed: Owed) -> None:
    for _ in steps(sink, owed, 2):
        pass


def _hear(sink: Sink, term: Term, heard: list[Epoch]) -> None:
    heard.append(sink.begin(term))


def rescaled(trial: _Trial) -> None:
    """Every delivery in another number of parts, some of which have no rows."""
    for number, parts in enumerate((1, 7, 3, 16, 1)):
        sink = trial.begun(Term(number + 1))
        trial.bring(sink, trial.history.next(Term(number + 1), changes=4), parts)


def target_away(trial: _Trial) -> None:
    """The target is away: a delivery says so, waits, and comes through when it is back."""
    case = trial.case
    if not isinstance(case, Interruptible):
        return
    sink = trial.begun(_FIRST)
    trial.bring(sink, trial.history.next(_FIRST))
    owed = trial.history.next(_FIRST)
    for before in range(3 if isinstance(sink, StagedSink) else 1):
        under_way = steps(sink, owed, 2)
        list(itertools.islice(under_way, before))
        case.stop_target()
        try:
            list(under_way)
        except RetryableError:
            pass
        else:
            raise SinkBroken("the target is away, and a delivery says that it is done")
        finally:
            case.start_target()
        trial.verify("the target is back")
    sink = trial.begun(_SECOND)
    trial.bring(sink, owed.under(_SECOND))
    trial.bring(sink, trial.history.next(_SECOND))


def large(trial: _Trial) -> None:
    """Many rows at once, then changes of most of them."""
    rows = getattr(trial.case, "large_rows", _LARGE)
    sink = trial.begun(_FIRST)
    trial.bring(sink, trial.history.next(_FIRST, changes=rows), parts=4)
    trial.bring(sink, trial.history.next(_FIRST, changes=rows // 2), parts=3)


def dropped(trial: _Trial) -> None:
    """Our own book-keeping goes, twice; the rows stay."""
    trial.bring(trial.begun(_FIRST), trial.history.next(_FIRST))
    for _ in range(2):
        trial.make().drop()
        trial.verify("after a drop")


_ALL: tuple[Callable[[_Trial], None], ...] = (
    rows_arrive,
    repeated,
    empty_epochs,
    crashed,
    crashed_with_receipts,
    broken_off,
    zombie,
    zombie_aborts,
    aborted,
    two_at_once,
    overtaken,
    rescaled,
    target_away,
    large,
    dropped,
)
CHECKS: dict[str, Callable[[_Trial], None]] = {check.__name__: check for check in _ALL}
"""Every check by its name."""


def run_check(case: SinkCase, name: str) -> None:
    """Run one check; raises `SinkBroken`, or what the sink itself raised."""
    if name not in getattr(case, "without", ()):
        CHECKS[name](_Trial(case))


def run_all(case: SinkCase) -> None:
    """Run all checks, one after the other."""
    for name in CHECKS:
        try:
            run_check(case, name)
        except Exception as error:
            raise SinkBroken(f"{name}: {error}") from error


def _must_be_fenced(attempt: Callable[[], object], what: str) -> None:
    try:
        attempt()
    except Fenced:
        return
    raise SinkBroken(f"a zombie {what}, and is not fenced")


def _together(calls: Sequence[Callable[[], object]]) -> list[HeadwaterError | None]:
    """Run calls at the same moment; errors that a sink may have are answers."""
    errors: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(place: int) -> None:
        start.wait()
        try:
            calls[place]()
        except BaseException as error:
            errors[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        if error is not None and not isinstance(error, HeadwaterError):
            raise error
    return errors


def _some(rows: Counter[Row]) -> str:
    shown = ", ".join(str(row) for row in itertools.islice(rows, 3))
    return f"[{shown}{', ...' if len(rows) > 3 else ''}]"
