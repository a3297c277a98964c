import pytest

from gradwire.codecs import parse
from gradwire.collectives import ring
from gradwire.errors import SpecError
from gradwire_gateware.ring_routes import Ring, Routes, host_order


@pytest.mark.parametrize("world", range(2, 9))
def test_the_routes_count_what_the_steps_do(world: int) -> None:
    routes = Routes.of(world)
    assert len(routes.received_is_forwarded) == len(routes.sent_is_forwarded) == ring.steps(world)
    assert sum(routes.received_is_forwarded) == sum(routes.sent_is_forwarded) == world - 2
    assert sum(routes.decoded_is_added) == world - 1
    assert len(routes.decoded_is_added) == ring.steps(world)
    assert len(routes.given_is_own) == world
    assert routes.given_is_own[0]
    assert sum(routes.given_is_own) == sum(routes.encoded_is_local) == sum(routes.encoded_is_published) == 1
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
    with pytest.raises(SpecError, match="at least 2 ranks, got 1; add a rank"):
        Routes.of(1)


@pytest.mark.parametrize(
    ("spec", "words", "sentence"),
    [
        ("bfp:7x64", 12, "whole blocks of 8 words, got 12 words; round chunk_words up"),
        ("fp16", 8, "expected codec identity, inceptionn, or bfp, got 'fp16'"),
    ],
)
def test_a_ring_without_hardware_is_refused(spec: str, words: int, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Ring.of(parse(spec), 2, words)


def test_a_memory_holds_the_largest_payload() -> None:
    assert Ring.of(parse("identity"), 2, 100).payload_words == 104
    assert Ring.of(parse("inceptionn:2^-10"), 2, 100).payload_words == 111
