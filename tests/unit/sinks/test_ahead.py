"""Things made ahead of time: the same ones, in order, bounded, with their errors."""

import threading

import pytest

from headwater.sinks.ahead import ahead


@pytest.mark.parametrize("most", [0, 3, 1000])
def test_the_same_things_in_the_same_order(most):
    assert list(ahead(iter(range(500)), lambda _: 1, most)) == list(range(500))


def test_no_more_than_there_is_room_for_is_made():
    made = []

    def things():
        for number in range(100):
            made.append(number)
            yield number

    most = 0
    for number in ahead(things(), lambda _: 1, 5):
        most = max(most, len(made) - number)
    assert len(made) == 100
    assert most <= 9


def test_an_error_comes_after_what_was_made_before_it():
    def things():
        yield from (1, 2)
        raise ValueError("the third")

    seen = []
    stream = ahead(things(), lambda _: 1, 9)
    seen += [next(stream), next(stream)]
    with pytest.raises(ValueError, match="the third"):
        next(stream)
    assert seen == [1, 2]


def test_who_stops_asking_stops_the_thread():
    before = set(threading.enumerate())
    stream = ahead(iter(range(10**9)), lambda _: 1, 5)
    assert next(stream) == 0
    stream.close()
    assert not set(threading.enumerate()) - before
