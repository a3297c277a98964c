"""What holds for every algorithm of the table, counted and simulated from its steps."""

from __future__ import annotations

from collections import Counter

import pytest

from gradwire.collectives import NAMES, TABLE, Collective, Step, get
from gradwire.errors import SpecError
from support.cases import for_each
from support.project import DOCS
from support.rendezvous import rendezvous, rounds

WORLDS = range(1, 18)
DOCUMENTS = DOCS / "collectives"
COMPOSED = (
    "hierarchical:2",
    "hierarchical:4,ring+star",
    "hierarchical:4x2,star+star+star",
    "hierarchical:3x2",
    "hierarchical:3,butterfly+tree",
    "hierarchical:5,tree+butterfly",
    "hierarchical:1x6x2,star+butterfly+ring+tree",
)
ALGORITHMS = pytest.mark.parametrize(
    "algorithm", [pytest.param(get(spec), id=spec) for spec in (*TABLE, *COMPOSED)]
)
EACH_WORLD = for_each("world", WORLDS)
HALVES = for_each("half", ["reduce", "broadcast", "schedule"])


def all_ranks(algorithm: Collective, half: str, world: int) -> list[list[Step]]:
    return [list(getattr(algorithm, half)(rank, world)) for rank in range(world)]


def own_shares(algorithm: Collective, world: int) -> list[list[Counter[int]]]:
    """Say for every rank and chunk whose shares are in it, and how often: at first its own, once."""
    return [[Counter({rank: 1}) for _ in range(algorithm.chunks(world))] for rank in range(world)]


def everybody(world: int) -> Counter[int]:
    return Counter(dict.fromkeys(range(world), 1))


@ALGORITHMS
@EACH_WORLD
@HALVES
def test_every_send_has_its_receive_without_deadlock(algorithm: Collective, half: str, world: int) -> None:
    for message in rendezvous(all_ranks(algorithm, half, world)):
        assert message.sender != message.receiver
        assert message.send.send == message.recv.recv
        assert message.send.combine == message.recv.combine


@ALGORITHMS
@EACH_WORLD
def test_schedules_run_in_rounds(algorithm: Collective, world: int) -> None:
    schedules = all_ranks(algorithm, "schedule", world)
    assert sum(len(steps) for steps in rounds(schedules)) == sum(len(schedule) for schedule in schedules)


@ALGORITHMS
@EACH_WORLD
def test_the_schedule_is_the_reduce_half_and_then_the_broadcast_half(
    algorithm: Collective, world: int
) -> None:
    for rank in range(world):
        reduce, broadcast = list(algorithm.reduce(rank, world)), list(algorithm.broadcast(rank, world))
        assert list(algorithm.schedule(rank, world)) == reduce + broadcast
        assert all(step.combine for step in reduce)
        assert not any(step.combine for step in broadcast)


@ALGORITHMS
@EACH_WORLD
def test_every_rank_ends_with_each_share_of_each_chunk_exactly_once(
    algorithm: Collective, world: int
) -> None:
    shares = own_shares(algorithm, world)
    for message in rendezvous(all_ranks(algorithm, "schedule", world)):
        for chunk in range(*message.send.send):
            came, own = shares[message.sender][chunk], shares[message.receiver][chunk]
            shares[message.receiver][chunk] = own + came if message.recv.combine else came
    assert shares == [[everybody(world)] * algorithm.chunks(world) for _ in range(world)]


@ALGORITHMS
@EACH_WORLD
def test_the_owner_of_a_chunk_has_the_whole_sum_after_the_reduce_half(
    algorithm: Collective, world: int
) -> None:
    shares = own_shares(algorithm, world)
    for message in rendezvous(all_ranks(algorithm, "reduce", world)):
        for chunk in range(*message.send.send):
            shares[message.receiver][chunk] += shares[message.sender][chunk]
    for chunk in range(algorithm.chunks(world)):
        assert shares[algorithm.owner(chunk, world)][chunk] == everybody(world)


@ALGORITHMS
@EACH_WORLD
def test_the_broadcast_half_takes_a_chunk_once_to_everybody_but_its_owner(
    algorithm: Collective, world: int
) -> None:
    chunks = range(algorithm.chunks(world))
    finished = [{chunk for chunk in chunks if algorithm.owner(chunk, world) == rank} for rank in range(world)]
    for message in rendezvous(all_ranks(algorithm, "broadcast", world)):
        passed = set(range(*message.send.send))
        assert passed <= finished[message.sender]
        assert not passed & finished[message.receiver]
        finished[message.receiver] |= passed
    assert finished == [set(chunks)] * world


@ALGORITHMS
@EACH_WORLD
def test_within_a_step_the_ways_out_and_in_are_equal_or_apart(algorithm: Collective, world: int) -> None:
    for schedule in all_ranks(algorithm, "schedule", world):
        for step in schedule:
            out, back = set(range(*step.send)), set(range(*step.recv))
            assert out == back or not out & back
            assert all(0 <= chunk < algorithm.chunks(world) for chunk in out | back)
            assert (step.send_to is None) == (not out)
            assert (step.recv_from is None) == (not back)


@ALGORITHMS
@EACH_WORLD
def test_the_card_counts_the_hops_of_the_critical_path(algorithm: Collective, world: int) -> None:
    messages = rendezvous(all_ranks(algorithm, "schedule", world))
    assert algorithm.steps(world) == max((message.hops for message in messages), default=0)


@ALGORITHMS
@EACH_WORLD
@for_each("share", [1, 1000])
def test_the_card_counts_the_bytes_of_the_busiest_rank(algorithm: Collective, world: int, share: int) -> None:
    sent = [
        sum(len(range(*step.send)) * share for step in schedule)
        for schedule in all_ranks(algorithm, "schedule", world)
    ]
    assert algorithm.nbytes(world, share * algorithm.chunks(world)) == pytest.approx(max(sent), rel=1e-12)


@ALGORITHMS
def test_all_ranks_do_what_rank_0_does_just_where_the_algorithm_says_so(algorithm: Collective) -> None:
    assert all(rotates(algorithm, world) for world in WORLDS) == algorithm.ROTATES


def rotates(algorithm: Collective, world: int) -> bool:
    """Return whether all ranks do what rank 0 does, shifted, one chunk at a time."""
    chunks, at_0 = algorithm.chunks(world), list(algorithm.schedule(0, world))
    if any(None in (step.send_to, step.recv_from) or step.send[1] - step.send[0] != 1 for step in at_0):
        return False
    return all(
        list(algorithm.schedule(rank, world))
        == [
            Step(
                ((step.send_to or 0) + rank) % world,
                ((step.send[0] + rank) % chunks, (step.send[0] + rank) % chunks + 1),
                ((step.recv_from or 0) + rank) % world,
                ((step.recv[0] + rank) % chunks, (step.recv[0] + rank) % chunks + 1),
                step.combine,
            )
            for step in at_0
        ]
        for rank in range(world)
    )


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_document_has_the_card_of_the_module(name: str) -> None:
    documented = (DOCUMENTS / f"{name}.md").read_text()
    card = (get(name).__doc__ or "").partition("- steps: ")[2].partition("\n\n")[0].replace("``", "`")
    assert all(word in card for word in ("bytes sent", "extra memory: ", "exactness: ", "source: "))
    assert " ".join(card.split()) in " ".join(documented.split())


def test_an_unknown_algorithm_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        SpecError,
        match="unknown algorithm 'rign'; choose one of backend, butterfly, hierarchical, pairwise, ",
    ):
        get("rign")
    assert all(get(name) is TABLE[name] for name in TABLE)
