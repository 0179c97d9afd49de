"""Progress under random reports: what A17 and A18 promise."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.barrier.cdc_progress import (
    CdcTableBackfillProgress,
    CdcTableBackfillState,
    SplitSet,
)
from headwater.barrier.progress import ConsumingUpstreamTableOrSource, Done, JobProgress
from headwater.model.epoch import NO_EPOCH, Epoch
from headwater.model.ids import ActorId, JobId

numbers = st.integers(1, 30)
ranges = st.lists(st.tuples(numbers, numbers).map(lambda pair: (min(pair), max(pair))), max_size=5)


@given(ranges, ranges)
def test_cdc_progress_split_sets_behave_like_sets(left, right):
    one, two = SplitSet.of(left), SplitSet.of(right)
    assert set(one | two) == set(one) | set(two)
    assert (one <= two) == (set(one) <= set(two))
    assert len(one) == len(set(one)) == len(list(one))
    assert SplitSet.of(one.ranges) == one


@given(st.data())
def test_progress_never_falls_and_is_restored(data):
    total = data.draw(st.one_of(st.none(), st.integers(0, 200)))
    progress = JobProgress(JobId(1), total_rows=total)
    generation, actors, epoch, shown, durable = 0, [], 0, 0.0, 0
    rows: dict[ActorId, int] = {}
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["begin", "report", "stale", "commit", "restart"])):
            case "begin":
                generation += 1
                actors = [ActorId(10 * generation + n) for n in range(data.draw(st.integers(1, 3)))]
                progress.begin(generation, actors)
                rows = dict.fromkeys(actors, 0)
            case "report" if actors:
                epoch += 1
                actor = data.draw(st.sampled_from(actors))
                rows[actor] += data.draw(st.integers(0, 50))
                state = data.draw(
                    st.sampled_from(
                        [ConsumingUpstreamTableOrSource(rows=rows[actor]), Done(rows=rows[actor])]
                    )
                )
                assert progress.report(
                    actor,
                    generation=generation,
                    epoch=Epoch(epoch),
                    state=state,
                    in_flight=True,
                    at=float(epoch),
                )
            case "stale":
                before = (progress.rows, progress.percentage, progress.encode(Epoch(epoch)))
                progress.report(
                    ActorId(1),
                    generation=generation - 1,
                    epoch=Epoch(epoch),
                    state=Done(rows=999),
                    in_flight=data.draw(st.booleans()),
                    at=float(epoch),
                )
                assert before == (progress.rows, progress.percentage, progress.encode(Epoch(epoch)))
            case "commit":
                progress.committed(Epoch(epoch))
                durable = progress.rows
            case "restart":
                progress = JobProgress.decode(progress.encode(NO_EPOCH))
                assert progress.rows >= durable
                assert progress.percentage <= max(shown, 100.0 * progress.done)
                actors, shown = [], 0.0
            case _:
                pass
        assert 0.0 <= progress.percentage <= 100.0
        assert progress.percentage >= shown
        assert (progress.percentage == 100.0) == progress.done
        assert progress.rows >= durable
        shown = progress.percentage


@given(st.data())
def test_cdc_progress_counters_stay_in_order(data):
    progress = CdcTableBackfillProgress(JobId(1), splits=30)
    generation, shown, backfilled = 1, 0.0, set()
    progress.begin(generation, [ActorId(1)])
    for epoch in range(1, data.draw(st.integers(1, 20))):
        new = SplitSet.of(data.draw(ranges))
        ready = sorted(backfilled | set(new))
        completed = data.draw(st.lists(st.sampled_from(ready))) if ready else []
        reported = data.draw(st.sampled_from([generation, generation - 1]))
        counted = progress.report(
            ActorId(1),
            generation=reported,
            epoch=Epoch(epoch),
            state=CdcTableBackfillState(
                backfilled=new, completed=SplitSet.of((each, each) for each in completed)
            ),
            in_flight=True,
        )
        assert counted == (reported == generation)
        if counted:
            backfilled |= set(new)
        assert set(progress.state.backfilled) == backfilled
        if data.draw(st.booleans()):
            progress.committed(Epoch(epoch))
            restored = CdcTableBackfillProgress.decode(progress.encode(NO_EPOCH))
            assert restored.state == progress.state
        elif data.draw(st.booleans()):
            generation += 1
            progress.begin(generation, [ActorId(1)])
            backfilled = set(progress.state.backfilled)
        assert 0 <= progress.completed <= progress.backfilled <= progress.splits
        assert shown <= progress.percentage <= 100.0
        assert (progress.percentage == 100.0) == progress.done
        shown = progress.percentage
