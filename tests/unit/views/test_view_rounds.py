"""Rounds: needs of many computations meet, and the cheap ones go first."""

from collections import Counter

import pytest

from headwater.views.rounds import LATER, Need, run, side_by_side


class Ask(Need[int]):
    def __init__(self, value: int, *, dear: bool = False) -> None:
        self.value, self.dear = value, dear


async def chain(length: int) -> int:
    total = 0
    for number in range(length):
        total += await Ask(number)
    return total


async def tree(depth: int) -> int:
    if depth == 0:
        return await Ask(1)
    left, right = await side_by_side(tree(depth - 1), tree(depth - 1))
    return left + right


def test_computations_share_rounds():
    rounds = Counter()

    def answer(needs):
        rounds[len(rounds)] += len(needs)
        return [need.value for need in needs]

    assert run([chain(3), chain(1), tree(2)], answer) == [3, 0, 4]
    assert dict(rounds) == {0: 6, 1: 1, 2: 1}


def test_an_answer_can_wait():
    seen = []

    def answer(needs):
        cheap = [need for need in needs if not need.dear]
        seen.append(len(cheap) or len(needs))
        return [LATER if cheap and need.dear else need.value for need in needs]

    async def dear() -> int:
        return await Ask(7, dear=True)

    assert run([dear(), chain(2), dear()], answer) == [7, 1, 7]
    assert seen == [1, 1, 2]


def test_nothing_to_do_and_nothing_to_ask():
    async def silent() -> str:
        assert await side_by_side() == []
        return "done"

    assert run([], lambda needs: needs) == []
    assert run([silent(), silent()], lambda needs: needs) == ["done", "done"]


def test_an_error_reaches_the_caller():
    async def fails() -> None:
        await Ask(1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run([chain(5), fails(), tree(2)], lambda needs: [need.value for need in needs])
