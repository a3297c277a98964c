"""What holds for every algorithm of the table, counted and simulated from its steps."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from gradwire.collectives import TABLE, Collective, Step, get
from gradwire.errors import SpecError

WORLDS = range(1, 18)
DOCUMENTS = Path(__file__).parents[2] / "docs" / "collectives"
ALGORITHMS = pytest.mark.parametrize("algorithm", [pytest.param(TABLE[name], id=name) for name in TABLE])
EACH_WORLD = pytest.mark.parametrize("world", WORLDS)
HALVES = pytest.mark.parametrize("half", ["reduce", "broadcast", "schedule"])


def rendezvous(schedules: list[list[Step]]) -> list[tuple[int, int, Step, Step]]:
    """Play schedules where a message passes only when both sides are at it; return the messages in order.

    Each is (sender, receiver, the sender's step, the receiver's step). Fails on a deadlock.
    """
    at = [0] * len(schedules)
    open_ways = [_ways(schedule, 0) for schedule in schedules]
    messages = []
    progress = True
    while progress:
        progress = False
        for sender, schedule in enumerate(schedules):
            if "send" not in open_ways[sender]:
                continue
            step = schedule[at[sender]]
            receiver = step.send_to
            assert receiver is not None
            if "recv" not in open_ways[receiver] or schedules[receiver][at[receiver]].recv_from != sender:
                continue
            messages.append((sender, receiver, step, schedules[receiver][at[receiver]]))
            open_ways[sender].discard("send")
            open_ways[receiver].discard("recv")
            for rank in {sender, receiver}:
                if not open_ways[rank]:
                    at[rank] += 1
                    open_ways[rank] = _ways(schedules[rank], at[rank])
            progress = True
    assert at == [len(schedule) for schedule in schedules], "deadlock"
    return messages


def _ways(schedule: list[Step], at: int) -> set[str]:
    if at == len(schedule):
        return set()
    sides = {"send": schedule[at].send_to, "recv": schedule[at].recv_from}
    return {way for way, peer in sides.items() if peer is not None}


def all_ranks(algorithm: Collective, half: str, world: int) -> list[list[Step]]:
    return [list(getattr(algorithm, half)(rank, world)) for rank in range(world)]


def chunk_nbytes(n: int, chunks: int) -> list[int]:
    return [n * (c + 1) // chunks - n * c // chunks for c in range(chunks)]


@ALGORITHMS
@EACH_WORLD
@HALVES
def test_every_send_has_its_receive_without_deadlock(algorithm: Collective, half: str, world: int) -> None:
    for sender, receiver, send, recv in rendezvous(all_ranks(algorithm, half, world)):
        assert sender != receiver
        assert send.send == recv.recv
        assert send.combine == recv.combine


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
    chunks = algorithm.chunks(world)
    shares = [[Counter({rank: 1}) for _ in range(chunks)] for rank in range(world)]
    for sender, receiver, send, recv in rendezvous(all_ranks(algorithm, "schedule", world)):
        for chunk in range(*send.send):
            came = shares[sender][chunk]
            shares[receiver][chunk] = shares[receiver][chunk] + came if recv.combine else came
    everybody = Counter(dict.fromkeys(range(world), 1))
    assert shares == [[everybody] * chunks for _ in range(world)]


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
def test_the_card_counts_the_steps(algorithm: Collective, world: int) -> None:
    longest = max(len(schedule) for schedule in all_ranks(algorithm, "schedule", world))
    assert algorithm.steps(world) == longest


@ALGORITHMS
@EACH_WORLD
@pytest.mark.parametrize("share", [1, 1000])
def test_the_card_counts_the_bytes_of_the_busiest_rank(algorithm: Collective, world: int, share: int) -> None:
    n = share * world  # so that all chunks are equal
    sizes = chunk_nbytes(n, algorithm.chunks(world))
    sent = [
        sum(sum(sizes[slice(*step.send)]) for step in schedule)
        for schedule in all_ranks(algorithm, "schedule", world)
    ]
    assert algorithm.nbytes(world, n) == pytest.approx(max(sent), rel=1e-12)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_document_has_the_card_of_the_module(name: str) -> None:
    documented = (DOCUMENTS / f"{name}.md").read_text()
    card = (TABLE[name].__doc__ or "").partition("- steps: ")[2].replace("``", "`")
    assert all(word in card for word in ("bytes sent", "extra memory: ", "exactness: ", "source: "))
    assert " ".join(card.split()) in " ".join(documented.split())


def test_an_unknown_algorithm_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"no algorithm is called 'rign'; choose one of ring, star"):
        get("rign")
    assert get("ring") is TABLE["ring"]
