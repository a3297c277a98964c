"""The matched messages of all ranks' schedules, in dependency order.

A message is a send and its matching receive. Between two ranks, sends and receives match in the order of the
schedules. A message starts once both ends have reached its step (a rendezvous), as all timing models assume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from gradwire.collectives.step import Step
from gradwire.errors import SpecError


class MatchedMessage(NamedTuple):
    """A message with the chunks ``first`` up to ``last``, from a step of ``source`` to a step of ``target``.

    ``combine`` says whether the target adds the chunks. ``round``, the message's communication round, is the
    length of the longest chain of messages before it. In one communication round, each rank is the source of
    at most one message and the target of at most one, both in one step.
    """

    source: int
    target: int
    send_step: int
    recv_step: int
    first: int
    last: int
    combine: bool
    round: int

    @property
    def chunks(self) -> int:
        """The number of chunks in the message."""
        return self.last - self.first


class _Position:
    """The position of one rank in its schedule."""

    def __init__(self, steps: Iterator[Step], begun: int) -> None:
        self.steps = steps
        self.index = -1
        self.open = 0
        self.round = begun
        self.last_round = begun - 1

    def advance(self) -> Step | None:
        """Advance to the next step and return it, or return None at the end."""
        step = next(self.steps, None)
        if step is not None:
            self.step = step
            self.index += 1
            self.open = (step.send_to is not None) + (step.recv_from is not None)
            self.round = self.last_round + 1
        return step


def messages(schedules: Iterable[Iterator[Step]], begun: Sequence[int] = ()) -> Iterator[MatchedMessage]:
    """Yield the messages of all ranks, in the order of each rank's steps.

    Rank ``r`` starts in the communication round ``begun[r]``, by default 0. Raises ``SpecError`` for a
    deadlock, or if the two ends of a message have different chunks.
    """
    ranks = [
        _Position(steps, first) for steps, first in zip(schedules, chain(begun, repeat(0)), strict=False)
    ]
    waiting = set[tuple[int, int]]()
    free = deque(range(len(ranks)))
    while free:
        rank = free.popleft()
        step = ranks[rank].advance()
        if step is None:
            continue
        if ranks[rank].open == 0:
            free.append(rank)
        for source, target in ((rank, step.send_to), (step.recv_from, rank)):
            if source is None or target is None:
                continue
            if (source, target) not in waiting:
                waiting.add((source, target))
                continue
            waiting.remove((source, target))
            yield _meet(ranks, source, target)
            free.extend(end for end in (source, target) if ranks[end].open == 0)
    for source, target in sorted(waiting):
        raise SpecError(
            f"expected matching sends and receives, got no match for the message from rank {source} to "
            f"rank {target}, which deadlocks; add the missing step to the algorithm's schedule"
        )


def hops_after(schedules: Iterable[Iterator[Step]], begun: Sequence[int]) -> list[int]:
    """Return the number of hops after which each rank finishes, if rank ``r`` starts after ``begun[r]`` hops.

    A message takes one hop once both ends have reached their steps.
    """
    through = list(begun)
    for message in messages(schedules, begun):
        for end in (message.source, message.target):
            through[end] = max(through[end], message.round + 1)
    return through


def _meet(ranks: list[_Position], source: int, target: int) -> MatchedMessage:
    sender, receiver = ranks[source], ranks[target]
    if sender.step.send != receiver.step.recv:
        raise SpecError(
            f"expected the chunks {receiver.step.recv} at rank {target}, got {sender.step.send} in step "
            f"{sender.index} of rank {source}; send and receive the same chunks in the algorithm's schedule"
        )
    round_ = max(sender.round, receiver.round)
    for end in (sender, receiver):
        end.last_round = max(end.last_round, round_)
        end.open -= 1
    step = receiver.step
    return MatchedMessage(source, target, sender.index, receiver.index, *step.recv, step.combine, round_)
