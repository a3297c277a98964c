from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from gradwire.timing.moves import move_order

COUNT, SEGMENT = 1000, 64


@pytest.mark.parametrize("world", [2, 3, 4, 7])
@pytest.mark.parametrize("algorithm", ["ring", "pairwise", "butterfly", "tree", "star"])
def test_what_a_rank_receives_is_what_the_other_sends_in_the_same_order(algorithm: str, world: int) -> None:
    sent, received = defaultdict[Any, list[int]](list), defaultdict[Any, list[int]](list)
    for rank in range(world):
        for move in move_order(algorithm, "schedule", rank, world, COUNT, SEGMENT).moves:
            if move.receives:
                received[move.peer, rank].append(move.count)
            else:
                sent[rank, move.peer].append(move.count)
    assert sent == received
    assert max(count for counts in sent.values() for count in counts) <= SEGMENT


@pytest.mark.parametrize("world", [2, 4, 5])
def test_a_ring_adds_in_its_first_half_and_publishes_once_between_the_halves(world: int) -> None:
    order = move_order("ring", "schedule", 0, world, COUNT, COUNT)
    assert order.is_both_ways
    assert sum(move.adds for move in order.moves) == world - 1
    assert sum(move.publishes for move in order.moves) == 1
    assert sum(move.encodes for move in order.moves) == world, "all others forward frames as they are"


def test_a_tree_sends_and_receives_in_different_steps() -> None:
    assert not move_order("tree", "schedule", 1, 4, COUNT, SEGMENT).is_both_ways


def test_plans_with_other_codecs_have_the_same_order() -> None:
    args = "ring", "schedule", 2, 4, COUNT, SEGMENT
    assert move_order(*args) is move_order(*args)
