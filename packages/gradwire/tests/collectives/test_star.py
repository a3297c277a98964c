from __future__ import annotations

import pytest

from gradwire.collectives import star


@pytest.mark.parametrize("world", range(2, 18))
def test_the_root_takes_and_serves_the_ranks_in_their_order(world: int) -> None:
    assert [step.recv_from for step in star.reduce(0, world)] == list(range(1, world))
    assert [step.send_to for step in star.broadcast(0, world)] == list(range(1, world))


@pytest.mark.parametrize("world", range(2, 18))
def test_the_others_talk_to_the_root_only(world: int) -> None:
    for rank in range(1, world):
        up, down = star.schedule(rank, world)
        assert (up.send_to, up.recv_from) == (0, None)
        assert (down.send_to, down.recv_from) == (None, 0)


def test_bytes_grow_with_the_ranks() -> None:
    assert star.nbytes(1, 1000) == 0
    assert star.nbytes(5, 1000) == 4000
