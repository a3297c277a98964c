import pytest

from gradwire.collectives import ring
from gradwire.errors import SpecError
from gradwire.gateware.ring_routes import Routes, host_order


@pytest.mark.parametrize("world", range(2, 9))
def test_the_routes_count_what_the_steps_do(world: int) -> None:
    routes = Routes.of(world)
    assert len(routes.received_is_forwarded) == len(routes.sent_is_forwarded) == ring.steps(world)
    assert sum(routes.received_is_forwarded) == sum(routes.sent_is_forwarded) == world - 2
    assert sum(routes.decoded_is_added) == world - 1
    assert routes.decoded_is_own.index(True) == world - 1
    assert sum(routes.decoded_is_own) == sum(routes.encoded_is_local) == sum(routes.encoded_is_published) == 1
    assert routes.encoded_is_local[0]
    assert routes.encoded_is_published[-1]


@pytest.mark.parametrize("world", [2, 3, 5])
def test_a_host_gives_and_gets_every_chunk_once(world: int) -> None:
    for rank in range(world):
        taken, given = host_order(rank, world)
        assert sorted(taken) == sorted(given) == list(range(world))
        assert taken[0] == rank
        assert ring.owner(given[0], world) == rank


def test_one_rank_is_no_ring() -> None:
    with pytest.raises(SpecError, match="2 ranks or more, but got 1; add a rank"):
        Routes.of(1)
