from __future__ import annotations

from gradwire.collectives import matching
from gradwire.collectives.step import Step

NOTHING = (0, 0)


def send(peer: int) -> Step:
    return Step(peer, (0, 1), None, NOTHING, False)


def receive(peer: int) -> Step:
    return Step(None, NOTHING, peer, (0, 1), False)


def hops_after(schedules: list[list[Step]], begun: list[int]) -> list[int]:
    return matching.hops_after(map(iter, schedules), begun)


def test_a_chain_takes_a_hop_for_each_link() -> None:
    chain = [[send(1)], [receive(0), send(2)], [receive(1), send(3)], [receive(2)]]
    assert hops_after(chain, [0, 0, 0, 0]) == [1, 2, 3, 3]


def test_a_rank_that_begins_later_delays_only_those_behind_it() -> None:
    chain = [[send(1)], [receive(0), send(2)], [receive(1), send(3)], [receive(2)]]
    assert hops_after(chain, [0, 0, 5, 0]) == [1, 6, 7, 7]


def test_messages_that_cross_take_one_hop_together() -> None:
    both = [[Step(1, (0, 1), 1, (0, 1), False)], [Step(0, (0, 1), 0, (0, 1), False)]]
    assert hops_after(both, [0, 0]) == [1, 1]
    assert hops_after([[], []], [3, 4]) == [3, 4]


def test_a_star_serves_one_after_the_other() -> None:
    star = [[receive(1), receive(2), receive(3)], [send(0)], [send(0)], [send(0)]]
    assert hops_after(star, [0, 0, 0, 0]) == [3, 1, 2, 3]
