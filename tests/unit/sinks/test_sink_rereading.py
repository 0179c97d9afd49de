"""Batches that come only once can be read again, from wherever the first reading stopped."""

import pyarrow as pa

from headwater.sinks import rereading
from headwater.sinks.rereading import Rereadable


def _batches(count, size=3):
    return [
        pa.record_batch({"n": [at * size + each for each in range(size)]}) for at in range(count)
    ]


def _numbers(batches):
    return [number for batch in batches for number in batch.column(0).to_pylist()]


def test_a_list_is_simply_read_again():
    with Rereadable(_batches(3)) as batches:
        assert _numbers(batches) == _numbers(batches) == list(range(9))


def test_what_flows_by_is_kept(monkeypatch):
    for in_memory in (8 << 20, 1):
        monkeypatch.setattr(rereading, "_IN_MEMORY", in_memory)
        with Rereadable(iter(_batches(4))) as batches:
            assert [_numbers(batches) for _ in range(3)] == [list(range(12))] * 3


def test_a_reading_that_stopped_in_the_middle_loses_nothing():
    taken = []
    with Rereadable(taken.append(n) or batch for n, batch in enumerate(_batches(5))) as batches:
        first = iter(batches)
        assert _numbers([next(first), next(first)]) == list(range(6))
        assert taken == [0, 1]
        first.close()
        assert _numbers(batches) == list(range(15))
        assert _numbers(batches) == list(range(15))
    assert taken == [0, 1, 2, 3, 4]


def test_nothing_at_all():
    with Rereadable(iter(())) as batches:
        assert list(batches) == list(batches) == []
