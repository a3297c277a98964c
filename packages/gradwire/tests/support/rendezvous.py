"""Plays schedules, without the code that walks them: the oracle for what algorithms claim of themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from gradwire.collectives import Step

Schedules = Sequence[Sequence[Step]]


@dataclass(frozen=True)
class Message:
    """One hop: the steps of both sides, and how many hops it takes until it has passed."""

    sender: int
    receiver: int
    send: Step
    recv: Step
    hops: int


def rendezvous(schedules: Schedules) -> list[Message]:
    """Let a message pass only when both sides are at it; return the messages in an order of passing.

    A step begins when the one before has both sent and received; a hop lasts one unit of time. Fails on a
    deadlock.
    """
    world = len(schedules)
    at, began, ended = [0] * world, [0] * world, [0] * world
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
            hops = 1 + max(began[sender], began[receiver])
            messages.append(Message(sender, receiver, step, schedules[receiver][at[receiver]], hops))
            open_ways[sender].discard("send")
            open_ways[receiver].discard("recv")
            for rank in {sender, receiver}:
                ended[rank] = max(ended[rank], hops)
                if not open_ways[rank]:
                    at[rank] += 1
                    began[rank] = ended[rank]
                    open_ways[rank] = _ways(schedules[rank], at[rank])
            progress = True
    assert at == [len(schedule) for schedule in schedules], "deadlock"
    return messages


def rounds(schedules: Schedules) -> list[list[tuple[int, int]]]:
    """Return the steps, as pairs of rank and place, by rounds: those that a message joins are in one.

    Raises ``graphlib.CycleError`` where a round would come before itself on some rank.
    """
    round_of = {(rank, i): [(rank, i)] for rank, steps in enumerate(schedules) for i in range(len(steps))}
    receives: dict[tuple[int | None, int | None, int], tuple[int, int]] = {
        (step.recv_from, rank, number): (rank, i)
        for rank, steps in enumerate(schedules)
        for i, step, number in _numbered(steps, "recv_from")
    }
    for rank, steps in enumerate(schedules):
        for i, step, number in _numbered(steps, "send_to"):
            one, other = round_of[rank, i], round_of[receives[rank, step.send_to, number]]
            if one is not other:
                one += other
                round_of.update(dict.fromkeys(other, one))
    key = {step: min(members) for step, members in round_of.items()}
    before: dict[tuple[int, int], set[tuple[int, int]]] = {own: set() for own in key.values()}
    for (rank, i), own in key.items():
        if i:
            before[own].add(key[rank, i - 1])
    return [round_of[own] for own in TopologicalSorter(before).static_order()]


def _numbered(steps: Sequence[Step], peer: str) -> list[tuple[int, Step, int]]:
    """Return place, step and the number of the message between the same two ranks."""
    seen, found = Counter[int](), []
    for i, step in enumerate(steps):
        other = getattr(step, peer)
        if other is not None:
            found.append((i, step, seen[other]))
            seen[other] += 1
    return found


def _ways(schedule: Sequence[Step], at: int) -> set[str]:
    if at == len(schedule):
        return set()
    sides = {"send": schedule[at].send_to, "recv": schedule[at].recv_from}
    return {way for way, peer in sides.items() if peer is not None}
