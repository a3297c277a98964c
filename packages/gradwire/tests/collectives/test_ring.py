from __future__ import annotations

import pytest

from gradwire.collectives import ring


def test_the_schedule_of_rank_1_of_3_is_that_of_the_paper() -> None:
    """Written out by hand from Algorithm 1 of INCEPTIONN."""
    seen = [(s.send_to, s.send[0], s.recv_from, s.recv[0]) for s in ring.schedule(1, 3)]
    assert seen == [(2, 1, 0, 0), (2, 0, 0, 2), (2, 2, 0, 1), (2, 1, 0, 0)]


@pytest.mark.parametrize("world", range(2, 18))
def test_a_rank_begins_the_broadcast_with_the_chunk_that_it_finished(world: int) -> None:
    for rank in range(world):
        *_, last = ring.reduce(rank, world)
        first = next(ring.broadcast(rank, world))
        assert last.recv == first.send == ((rank + 1) % world, (rank + 1) % world + 1)


@pytest.mark.parametrize("world", range(2, 18))
def test_a_rank_talks_to_its_neighbours_only(world: int) -> None:
    for rank in range(world):
        for step in ring.schedule(rank, world):
            assert (step.send_to, step.recv_from) == ((rank + 1) % world, (rank - 1) % world)


def test_bytes_stay_below_twice_the_bucket() -> None:
    assert ring.nbytes(4, 1000) == 1500
    assert ring.nbytes(1, 1000) == 0
    assert ring.nbytes(1000, 1000) == 1998
