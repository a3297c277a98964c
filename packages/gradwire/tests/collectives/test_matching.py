from __future__ import annotations

import pytest

from gradwire import collectives
from gradwire.collectives import Step
from gradwire.collectives.matching import MatchedMessage, messages
from gradwire.errors import SpecError
from support.cases import for_each

NOTHING = (0, 0)


def written(*schedules: list[Step]) -> list[MatchedMessage]:
    """Return the messages of schedules written down by hand."""
    return list(messages(iter(steps) for steps in schedules))


def of(name: str, world: int) -> list[MatchedMessage]:
    return list(messages(collectives.get(name).schedule(rank, world) for rank in range(world)))


def send(to: int, chunks: tuple[int, int] = (0, 1)) -> Step:
    return Step(to, chunks, None, NOTHING, combine=True)


def receive(source: int, chunks: tuple[int, int] = (0, 1)) -> Step:
    return Step(None, NOTHING, source, chunks, combine=True)


def test_messages_come_after_those_that_they_wait_for() -> None:
    """0 -> 1, then 1 -> 2; and 2 -> 0 only once 2 has received."""
    assert written([send(1), receive(2)], [receive(0), send(2)], [receive(1), send(0)]) == [
        MatchedMessage(0, 1, 0, 0, 0, 1, True, 0),
        MatchedMessage(1, 2, 1, 0, 0, 1, True, 1),
        MatchedMessage(2, 0, 1, 1, 0, 1, True, 2),
    ]


def test_a_step_without_a_message_is_passed_over() -> None:
    idle = Step(None, NOTHING, None, NOTHING, combine=False)
    assert written([idle, send(1, (0, 2))], [receive(0, (0, 2)), idle]) == [
        MatchedMessage(0, 1, 1, 0, 0, 2, True, 0)
    ]


@pytest.mark.parametrize("name", sorted(collectives.TABLE))
@for_each("world", range(1, 18))
def test_every_step_of_every_rank_has_its_messages_once_and_in_order(name: str, world: int) -> None:
    found = of(name, world)
    for rank in range(world):
        steps = list(collectives.get(name).schedule(rank, world))
        sends = [(m.send_step, m.target, (m.first, m.last)) for m in found if m.source == rank]
        receives = [(m.recv_step, m.source, (m.first, m.last), m.combine) for m in found if m.target == rank]
        assert sends == [(k, s.send_to, s.send) for k, s in enumerate(steps) if s.send_to is not None]
        assert receives == [
            (k, s.recv_from, s.recv, s.combine) for k, s in enumerate(steps) if s.recv_from is not None
        ]


@pytest.mark.parametrize("name", sorted(collectives.TABLE))
@pytest.mark.parametrize("world", [2, 5, 8, 17])
def test_rounds_rise_along_every_schedule(name: str, world: int) -> None:
    last = [(-1, -1)] * world
    for message in sorted(of(name, world), key=lambda each: each.round):
        for rank, step in ((message.source, message.send_step), (message.target, message.recv_step)):
            seen_step, seen_round = last[rank]
            assert step == seen_step or message.round > seen_round
            assert step >= seen_step
            last[rank] = (step, message.round)


def test_schedules_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(SpecError, match=r"no match for the message from rank 0 to rank 1, which deadlocks"):
        written([send(1), receive(1)], [send(0), receive(0)])


def test_two_ends_that_mean_different_chunks_are_refused() -> None:
    with pytest.raises(SpecError, match=r"at rank 1, got \(0, 2\) in step 0 of rank 0"):
        written([send(1, (0, 2))], [receive(0, (1, 2))])
