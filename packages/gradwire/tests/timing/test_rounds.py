from __future__ import annotations

import numpy as np
import pytest

from gradwire import collectives
from gradwire.timing.simulate import Pairs, rounds
from support.cases import for_each

SPECS = [
    *sorted(collectives.TABLE),
    "hierarchical:4",
    "hierarchical:3,ring+star",
    "hierarchical:2x3,star+tree+butterfly",
    "hierarchical:4,butterfly+ring",
]


@pytest.mark.parametrize("spec", SPECS)
@for_each("world", [*range(1, 18), 64])
def test_rounds_have_every_message_once_in_the_order_of_the_schedules(spec: str, world: int) -> None:
    algorithm = collectives.get(spec)
    sent: list[list[tuple[int, int, int]]] = [[] for _ in range(world)]
    received: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(world)]
    for each in rounds(algorithm, world):
        columns = (each.pairs.source, each.pairs.target, each.first, each.last, each.combine)
        for source, target, first, last, combine in zip(*(c.tolist() for c in columns), strict=True):
            sent[source].append((target, first, last))
            received[target].append((source, first, last, combine))
    for rank in range(world):
        steps = list(algorithm.schedule(rank, world))
        assert sent[rank] == [(s.send_to, *s.send) for s in steps if s.send_to is not None]
        assert received[rank] == [(s.recv_from, *s.recv, s.combine) for s in steps if s.recv_from is not None]


@pytest.mark.parametrize("spec", SPECS)
@for_each("world", [1, 2, 7, 12, 17])
def test_a_round_is_in_one_step_of_a_rank_and_enters_it_once(spec: str, world: int) -> None:
    """Ranks walk their schedules with the rounds: every step is entered once, before its messages."""
    algorithm = collectives.get(spec)
    steps = [list(algorithm.schedule(rank, world)) for rank in range(world)]
    at, left = [-1] * world, [0] * world
    for each in rounds(algorithm, world):
        for rank in np.arange(world)[each.enter].tolist() if isinstance(each.enter, slice) else each.enter:
            assert left[rank] == 0
            at[rank] += 1
            step = steps[rank][at[rank]]
            left[rank] = (step.send_to is not None) + (step.recv_from is not None)
        for source, target in zip(each.pairs.source.tolist(), each.pairs.target.tolist(), strict=True):
            assert steps[source][at[source]].send_to == target
            assert steps[target][at[target]].recv_from == source
            left[source] -= 1
            left[target] -= 1
    assert left == [0] * world
    assert at == [len(each) - 1 for each in steps]


def test_no_rank_is_twice_at_one_end_of_a_round() -> None:
    for spec in SPECS:
        for each in rounds(collectives.get(spec), 13):
            for end in (each.pairs.source, each.pairs.target):
                assert len(np.unique(end)) == len(end)


def test_receivers_are_the_targets_in_the_order_of_by_receiver() -> None:
    shifted = Pairs.shifted(5, 2)
    assert shifted.target.tolist() == [2, 3, 4, 0, 1]
    assert shifted.target[shifted.by_receiver].tolist() == [0, 1, 2, 3, 4]
    assert np.arange(5)[shifted.senders].tolist() == shifted.source.tolist()


def test_rounds_of_a_ring_share_their_pairs() -> None:
    for spec in ("ring", "hierarchical:4"):
        different = {id(each.pairs) for each in list(rounds(collectives.get(spec), 16))}
        assert len(different) == (1 if spec == "ring" else 4)
