"""The four kinds of barrier do what the table in their docstring says."""

import pickle
import re

import pytest

from headwater.model import barrier
from headwater.model.barrier import (
    Add,
    AssignSplits,
    Barrier,
    BarrierKind,
    Define,
    Pause,
    Rescale,
    Resume,
    StartFragmentBackfill,
    Stop,
    Throttle,
)
from headwater.model.epoch import Epoch, EpochPair
from headwater.model.ids import ActorId, FragmentId, JobId
from headwater.model.vnode import VnodeBitmap

MUTATIONS = [
    Add(jobs=(JobId(1),), actors=(ActorId(2),)),
    Stop(jobs=(JobId(1),)),
    Pause(),
    Resume(),
    Throttle(limits={JobId(1): 0, JobId(2): None}),
    Rescale(bitmaps={ActorId(1): VnodeBitmap.full()}),
    StartFragmentBackfill(fragments=(FragmentId(3),)),
    AssignSplits(generation=2, splits={ActorId(1): ("a", "b")}),
    Define(key=7),
]


def table_in_docstring() -> dict[str, tuple[bool, bool]]:
    rows = re.findall(r"^    (\w+)\s{2,}(yes|no)\s+(yes|no)\b", barrier.__doc__, re.MULTILINE)
    return {name: (seals == "yes", durable == "yes") for name, seals, durable in rows}


def test_the_table_equals_the_code():
    def shown(kind: BarrierKind) -> str:
        return kind.value.title().replace("_", "")

    assert table_in_docstring() == {shown(kind): (kind.seals, kind.durable) for kind in BarrierKind}


def test_there_are_four_kinds_and_only_checkpoints_are_durable():
    assert len(BarrierKind) == 4
    assert {kind for kind in BarrierKind if kind.durable} == {
        BarrierKind.CHECKPOINT,
        BarrierKind.SYNC_CHECKPOINT,
    }
    assert not BarrierKind.INITIAL.seals


def test_every_mutation_is_in_the_list_above():
    assert {type(mutation) for mutation in MUTATIONS} == set(barrier.Mutation.__args__)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: type(mutation).__name__)
def test_barriers_travel_with_their_mutation(mutation):
    sent = Barrier(
        epoch=EpochPair(Epoch(1), Epoch(2)),
        kind=BarrierKind.CHECKPOINT,
        mutation=mutation,
        sealed=(Epoch(1),),
    )
    assert pickle.loads(pickle.dumps(sent)) == sent
    with pytest.raises(AttributeError):
        sent.kind = BarrierKind.INITIAL
