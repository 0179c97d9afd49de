from headwater.ledger.backoff import Backoff


def test_waits_grow_to_the_longest_and_end_at_the_total():
    waits = list(Backoff(first_s=1, factor=2, longest_s=5, total_s=20).waits())
    assert waits == [1, 2, 4, 5, 5, 3]
    assert sum(waits) == 20


def test_no_time_at_all_means_no_wait():
    assert list(Backoff(total_s=0).waits()) == []
