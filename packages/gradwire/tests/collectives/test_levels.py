"""Levels of algorithms: who joins whom in which part of the bucket, against sums played by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.collectives.hierarchical import ALGORITHMS, Instance, Level, LevelInstances
from gradwire.collectives.step import Step
from support.rendezvous import rendezvous

names = st.sampled_from(sorted(ALGORITHMS))
layouts = st.builds(
    lambda first, size, last, world: LevelInstances([Level(first, size), Level(last, None)], world),
    names,
    st.integers(1, 5),
    names,
    st.integers(1, 9),
)


def test_a_level_joins_no_more_than_there_are() -> None:
    assert [Level("ring", size).joined(5) for size in (None, 3, 5, 9)] == [5, 3, 5, 5]


def test_an_instance_speaks_of_ranks_and_chunks_of_the_whole() -> None:
    instance = Instance("ring", (4, 7), (6, 8, 12))
    assert list(instance.reduce(0)) == [Step(7, (6, 8), 7, (8, 12), combine=True)]
    assert list(instance.reduce(1)) == [Step(4, (8, 12), 4, (6, 8), combine=True)]
    for place in (0, 1):
        for step in (*instance.reduce(place), *instance.broadcast(place)):
            assert (step.send_to, step.recv_from) == (instance.members[1 - place],) * 2
            assert {step.send, step.recv} == {(6, 8), (8, 12)}


@given(layouts)
def test_what_all_send_adds_up_to_the_sum_at_each_owner(layout: LevelInstances) -> None:
    world, chunks = layout.world, layout.chunks
    held = [[{rank} for _ in range(chunks)] for rank in range(world)]
    for message in rendezvous([list(layout.reduce(rank)) for rank in range(world)]):
        for chunk in range(*message.send.send):
            arriving, here = held[message.sender][chunk], held[message.receiver][chunk]
            assert not arriving & here, "a term comes twice"
            held[message.receiver][chunk] = here | arriving
    assert len(layout.owners) == chunks
    for chunk, owner in enumerate(layout.owners):
        assert held[owner][chunk] == set(range(world))
    has = [{chunk for chunk, owner in enumerate(layout.owners) if owner == rank} for rank in range(world)]
    for message in rendezvous([list(layout.broadcast(rank)) for rank in range(world)]):
        sent = set(range(*message.send.send))
        assert sent <= has[message.sender]
        has[message.receiver] |= sent
    assert all(each == set(range(chunks)) for each in has)


@given(layouts)
def test_the_busiest_rank_sends_what_its_steps_send(layout: LevelInstances) -> None:
    def sent(rank: int) -> int:
        return sum(
            stop - start
            for step in (*layout.reduce(rank), *layout.broadcast(rank))
            for start, stop in [step.send]
        )

    assert layout.sent() == max(map(sent, range(layout.world)))


@given(layouts)
def test_instances_of_a_level_cover_chunks_without_overlap(layout: LevelInstances) -> None:
    for level in layout.levels:
        taken = set[tuple[int, int]]()
        for instance in level:
            assert all(start < stop for start, stop in pairwise(instance.cuts))
            for rank in instance.members:
                own = {(rank, chunk) for chunk in range(instance.cuts[0], instance.cuts[-1])}
                assert not own & taken, "a rank sums a chunk twice"
                taken |= own


@pytest.mark.parametrize(("name", "hops"), [("ring", 2 * 7), ("star", 2), ("tree", 6), ("butterfly", 6)])
def test_one_level_of_all_ranks_is_the_algorithm(name: str, hops: int) -> None:
    layout = LevelInstances([Level(name, None)], 8)
    assert layout.chunks == ALGORITHMS[name].chunks(8)
    assert layout.owners == [ALGORITHMS[name].owner(chunk, 8) for chunk in range(layout.chunks)]
    assert list(layout.reduce(3)) == list(ALGORITHMS[name].reduce(3, 8))
    if name != "star":
        assert layout.hops() == hops
