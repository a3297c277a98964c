"""Who talks to whom in sharded training: one line per group of processes and purpose.

FSDP gives shard ``r`` to member ``r`` of a group. A ring's reduce half leaves chunk ``c`` with another rank,
``collectives.ring.owner``. So the members of a sharding group sit in the ring in an order in which the owner
of chunk ``c`` is member ``c``, and no byte is moved to set it right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import torch.distributed as dist

from gradwire.api import connect
from gradwire.collectives import ring
from gradwire.devices import Staging
from gradwire.errors import AttachError, ExchangeError, GradwireError, LinkError
from gradwire.exchange import Exchange
from gradwire.exchange.steps import Difference
from gradwire.plan import Plan
from gradwire.training.replicas.agreement import AFTER_AGREEING


class Purpose(Enum):
    """What a line is for; each has its own, so that an all-gather never meets a reduce-scatter."""

    GATHER = "all-gather of the weights"
    SCATTER = "reduce-scatter of the gradients"
    REPLICATE = "all-reduce of the gradients between replicas"
    CHOOSE = "choice of a plan"


@dataclass(frozen=True)
class Line:
    """An exchange among the members of one group.

    ``ranks`` are the world's ranks in the order of the link's, and ``place`` is this rank's in the group.
    ``staging`` serves one tensor at a time, as the exchange does.
    """

    exchange: Exchange
    ranks: Sequence[int]
    place: int
    staging: Staging = field(default_factory=Staging)

    @property
    def world(self) -> int:
        """How many members the group has."""
        return len(self.ranks)


class Lines:
    """All lines of one rank. All ranks ask for the same lines in the same order.

    After an error all of them are closed, not only the one that failed: peers that wait in other groups learn
    of it at once.

    Parameters
    ----------
    plans
        The plan for each purpose.
    timeout_s
        How long any single wait for a peer lasts.

    Attributes
    ----------
    step
        The training step that exchanges are part of, or that was the last one.
    steps_before
        How many steps the run had taken before, by the checkpoint that was loaded.
    """

    def __init__(self, plans: dict[Purpose, Plan], timeout_s: float) -> None:
        self._plans = plans
        self._timeout_s = timeout_s
        self._lines: dict[tuple[Purpose, dist.ProcessGroup], Line] = {}
        self.step = self.steps_before = 0

    def connect(self, purpose: Purpose, group: dist.ProcessGroup) -> Line:
        """Return the line of a group; the first call connects with the others.

        Raises ``AttachError`` when they do not come, and ``ExchangeError`` once the lines are closed.
        """
        if (purpose, group) not in self._lines:
            self._lines[purpose, group] = self._new_line(purpose, group)
        line = self._lines[purpose, group]
        if line.exchange.failure is not None:
            raise ExchangeError(
                f"rank {dist.get_rank()} cannot start the {purpose.value}: {line.exchange.failure}; save the "
                "shards, and begin again on all ranks"
            )
        return line

    @contextmanager
    def using(self, purpose: Purpose, group: dist.ProcessGroup, what: str) -> Iterator[Line]:
        """Lend the line of a group; an error in it closes all lines."""
        line = self.connect(purpose, group)
        line.exchange.link.step = self.step
        try:
            yield line
        except BaseException as error:
            found = self._difference(line, error)
            self.close(f"the {purpose.value} ({what}) failed: {found or str(error) or type(error).__name__}")
            if found:
                raise ExchangeError(f"in the {purpose.value} ({what}), {found}") from error
            if isinstance(error, GradwireError):
                error.add_note(f"in the {purpose.value} ({what})")
            raise

    def _difference(self, failed: Line, error: BaseException) -> str:
        """Return which ranks are at different steps, if an exchange failed for that, and let all peers know.

        A rank that waits in one group for a peer has its frames, and its last one, in another group.
        """
        if not isinstance(error, ExchangeError):
            return ""
        for line in (failed, *self._lines.values()):
            line.exchange.link.step = self.step
            if line.exchange.note_difference(LinkError()) and line.exchange.difference is not None:
                self._tell(line.ranks, line.exchange.difference)
                told = line is failed and not line.exchange.difference.has_left
                return "" if told else line.exchange.difference.in_words(line.exchange.link)
        return ""

    def _tell(self, ranks: Sequence[int], found: Difference) -> None:
        one, other = ((ranks[rank], step) for rank, step in found.places)
        for line in self._lines.values():
            if {one[0], other[0]} <= set(line.ranks):
                places = ((line.ranks.index(one[0]), one[1]), (line.ranks.index(other[0]), other[1]))
                line.exchange.difference = Difference(places, found.has_left)

    def follow(self, plan: Plan) -> None:
        """Let gradients go by another plan from now on; all ranks call this between the same two steps."""
        for purpose in (Purpose.SCATTER, Purpose.REPLICATE):
            self._plans[purpose] = plan
        for (purpose, _), line in self._lines.items():
            line.exchange.follow(self._plans[purpose])

    def close(self, reason: str = "what attach_fsdp returned is closed") -> None:
        """Close all lines; later calls raise, with this reason. May be called twice."""
        for line in self._lines.values():
            line.exchange.close(reason)

    def _new_line(self, purpose: Purpose, group: dist.ProcessGroup) -> Line:
        members = dist.get_process_group_ranks(group)
        ranks = in_ring(members) if purpose in (Purpose.GATHER, Purpose.SCATTER) else members
        ending = f", for the {purpose.value}; {AFTER_AGREEING}"
        plan = self._plans[purpose]
        link = connect(group, self._timeout_s, AttachError, ending, ranks, plan.tos)
        return Line(Exchange(link, plan), ranks, members.index(dist.get_rank()))


def in_ring(members: Sequence[int]) -> list[int]:
    """Return the members of a group in the order in which the ring's owner of chunk ``c`` is member ``c``."""
    world = len(members)
    chunk_of = {ring.owner(chunk, world): chunk for chunk in range(world)}
    return [members[chunk_of[rank]] for rank in range(world)]
