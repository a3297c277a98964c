from __future__ import annotations

import pytest

from gradwire.collectives import butterfly, ring


def test_the_schedule_of_rank_2_of_4_is_that_of_the_textbook() -> None:
    """Written out by hand: halving with ranks 0 and 3, doubling with ranks 3 and 0."""
    seen = [(s.send_to, s.send, s.recv_from, s.recv) for s in butterfly.schedule(2, 4)]
    assert seen == [
        (0, (0, 2), 0, (2, 4)),
        (3, (3, 4), 3, (2, 3)),
        (3, (2, 3), 3, (3, 4)),
        (0, (2, 4), 0, (0, 2)),
    ]


def test_a_rank_above_the_power_of_two_leaves_its_bucket_to_its_partner() -> None:
    assert [(s.send_to, s.send, s.recv_from, s.recv) for s in butterfly.schedule(5, 6)] == [
        (1, (0, 4), None, (0, 0)),
        (None, (0, 0), 1, (0, 4)),
    ]
    first, *_, last = butterfly.schedule(1, 6)
    assert (first.recv_from, first.recv, last.send_to, last.send) == (5, (0, 4), 5, (0, 4))


@pytest.mark.parametrize("power", range(12))
def test_at_powers_of_two_it_sends_what_the_ring_sends_in_few_steps(power: int) -> None:
    world = 1 << power
    assert butterfly.nbytes(world, 1000 * world) == ring.nbytes(world, 1000 * world)
    assert butterfly.steps(world) == 2 * power


def test_folding_costs_a_bucket_and_two_steps() -> None:
    assert butterfly.steps(5) == butterfly.steps(4) + 2
    assert butterfly.nbytes(5, 1000) == butterfly.nbytes(4, 1000) + 1000
