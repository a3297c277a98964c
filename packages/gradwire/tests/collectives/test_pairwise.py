from __future__ import annotations

import pytest

from gradwire.collectives import pairwise
from gradwire.collectives.frame_order import Do, frame_order
from gradwire.planner.loss import encoded_terms


def test_the_schedule_of_rank_1_of_3_written_out_by_hand() -> None:
    seen = [(s.send_to, s.send[0], s.recv_from, s.recv[0]) for s in pairwise.schedule(1, 3)]
    assert seen == [(2, 2, 0, 1), (0, 0, 2, 1), (2, 1, 0, 0), (0, 1, 2, 2)]


@pytest.mark.parametrize("world", range(2, 18))
def test_a_rank_meets_each_other_rank_once_in_each_half(world: int) -> None:
    for rank in range(world):
        others = {*range(world)} - {rank}
        for half in (pairwise.reduce, pairwise.broadcast):
            assert {step.send_to for step in half(rank, world)} == others
            assert {step.recv_from for step in half(rank, world)} == others


@pytest.mark.parametrize("world", range(2, 18))
def test_a_gradient_is_encoded_by_itself_once_and_then_the_sum(world: int) -> None:
    """Other ranks' values never travel on before the sum is finished: no error adds up over hops."""
    terms = {1: float(world - 1), world: 1.0} if world > 1 else {1: 1.0}
    assert encoded_terms("pairwise", world) == terms


@pytest.mark.parametrize("world", [2, 3, 5])
def test_no_partial_sum_waits_for_a_receive(world: int) -> None:
    """All frames of the reduce half may leave at once; a sum leaves after all terms have come."""
    order = frame_order(pairwise.schedule(0, world), [1000 * world], world, 250, ahead=10**6)
    kinds = [action.do for action in order]
    assert kinds[: kinds.index(Do.ADD)] == [Do.SEND_PARTIAL] * (4 * (world - 1))
    assert kinds.count(Do.PUBLISH) == 4
    assert kinds.count(Do.FORWARD) == 4 * (world - 2)
    for place, action in enumerate(order):
        if action.do is Do.PUBLISH:
            added = [each for each in order[:place] if each.do is Do.ADD and each.segment == action.segment]
            assert len(added) == world - 1
