from __future__ import annotations

import math

from gradwire.collectives import tree
from support.cases import for_each


def test_the_ways_of_six_ranks_are_those_of_a_binomial_tree() -> None:
    """Written out by hand; rank 4 has one child, for there is no rank 6."""
    up = [[(s.send_to, s.recv_from) for s in tree.reduce(rank, 6)] for rank in range(6)]
    assert up == [
        [(None, 1), (None, 2), (None, 4)],
        [(0, None)],
        [(None, 3), (0, None)],
        [(2, None)],
        [(None, 5), (0, None)],
        [(4, None)],
    ]


@for_each("world", range(1, 18))
def test_the_way_down_is_the_way_up_in_reverse(world: int) -> None:
    for rank in range(world):
        up = [(s.send_to, s.recv_from) for s in tree.reduce(rank, world)]
        down = [(s.recv_from, s.send_to) for s in tree.broadcast(rank, world)]
        assert down == up[::-1]


@for_each("world", range(1, 70))
def test_steps_are_those_of_the_study_rounded_up(world: int) -> None:
    assert tree.steps(world) == 2 * math.ceil(math.log2(world))


def test_the_root_sends_the_bucket_once_a_level() -> None:
    assert [tree.nbytes(world, 1000) for world in (1, 2, 4, 5, 8)] == [0, 1000, 2000, 3000, 3000]
