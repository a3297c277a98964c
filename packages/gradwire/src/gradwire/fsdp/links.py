"""The links of sharded training: one for each group of processes and purpose.

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

from gradwire.collectives import ring
from gradwire.devices import Staging
from gradwire.errors import AttachError, ExchangeError, GradwireError, LinkError
from gradwire.exchange import Exchange
from gradwire.exchange.frames import Difference
from gradwire.plan import Plan
from gradwire.sync.agreement import AFTER_AGREEING
from gradwire.sync.connect import connect


class Purpose(Enum):
    """The purpose of a link; each has its own, so that an all-gather never meets a reduce-scatter."""

    GATHER = "all-gather of the weights"
    SCATTER = "reduce-scatter of the gradients"
    REPLICATE = "all-reduce of the gradients between replicas"
    CHOOSE = "choice of a plan"


@dataclass(frozen=True)
class GroupLink:
    """One group's link, with the exchange over it.

    Attributes
    ----------
    exchange
        Serves one tensor at a time.
    ranks
        The world's ranks, in the order of the link's.
    place
        This rank's place among the group's members.
    staging
        Host memory, for one tensor at a time.
    """

    exchange: Exchange
    ranks: Sequence[int]
    place: int
    staging: Staging = field(default_factory=Staging)

    @property
    def world(self) -> int:
        """The number of the group's members."""
        return len(self.ranks)


class Links:
    """All links of one rank. All ranks connect the same ones in the same order.

    An error in one of them closes all: peers that wait in other groups learn of it at once.

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
        The steps that the run had taken before, by the checkpoint that was loaded.
    """

    def __init__(self, plans: dict[Purpose, Plan], timeout_s: float) -> None:
        self._plans = plans
        self._timeout_s = timeout_s
        self._links: dict[tuple[Purpose, dist.ProcessGroup], GroupLink] = {}
        self.step = self.steps_before = 0

    def connect(self, purpose: Purpose, group: dist.ProcessGroup) -> GroupLink:
        """Return the link of a group; the first call connects with the other members.

        Raises ``AttachError`` if a member is missing, and ``ExchangeError`` once the links are closed.
        """
        if (purpose, group) not in self._links:
            self._links[purpose, group] = self._new_link(purpose, group)
        link = self._links[purpose, group]
        if link.exchange.failure is not None:
            raise ExchangeError(
                f"rank {dist.get_rank()} cannot start the {purpose.value}: {link.exchange.failure}; save the "
                "shards, and begin again on all ranks"
            )
        return link

    @contextmanager
    def using(self, purpose: Purpose, group: dist.ProcessGroup, what: str) -> Iterator[GroupLink]:
        """Lend the link of a group for the exchange of ``what``; an error in it closes all links."""
        link = self.connect(purpose, group)
        link.exchange.link.step = self.step
        try:
            yield link
        except BaseException as error:
            self._fail(link, f"the {purpose.value} ({what})", error)
            raise

    def _fail(self, failed: GroupLink, what: str, error: BaseException) -> None:
        """Close all links, whose peers learn of it; raise ``ExchangeError`` if ranks are out of step."""
        found = self._difference(failed) if isinstance(error, ExchangeError) else ""
        self.close(f"{what} failed: {found or str(error) or type(error).__name__}")
        if found:
            raise ExchangeError(f"in {what}, {found}") from error
        if isinstance(error, GradwireError):
            error.add_note(f"in {what}")

    def _difference(self, failed: GroupLink) -> str:
        """Return which ranks are at different steps, if that is why a link failed; all peers learn of it.

        A rank that waits for a peer in one group has the peer's frames, and its last one, in another group.
        """
        for link in (failed, *self._links.values()):
            end, transport = link.exchange.link, link.exchange.transport
            end.step = self.step
            if transport.note_difference(LinkError()) and transport.difference is not None:
                self._pass_on(link.ranks, transport.difference)
                is_said = link is failed and not transport.difference.has_left
                return "" if is_said else transport.difference.in_words(end)
        return ""

    def _pass_on(self, ranks: Sequence[int], found: Difference) -> None:
        """Let every link with both ranks say, when it is closed, that they are at different steps."""
        (one, its_step), (other, step) = ((ranks[rank], step) for rank, step in found.places)
        for link in self._links.values():
            if {one, other} <= set(link.ranks):
                places = (link.ranks.index(one), its_step), (link.ranks.index(other), step)
                link.exchange.transport.difference = Difference(places, found.has_left)

    def follow(self, plan: Plan) -> None:
        """Let gradients go by another plan from now on; all ranks call this between the same two steps."""
        for purpose in (Purpose.SCATTER, Purpose.REPLICATE):
            self._plans[purpose] = plan
        for (purpose, _), link in self._links.items():
            link.exchange.follow(self._plans[purpose])

    def close(self, reason: str = "what attach_fsdp returned is closed") -> None:
        """Close all links; later calls raise with this reason. May be called twice."""
        for link in self._links.values():
            link.exchange.close(reason)

    def _new_link(self, purpose: Purpose, group: dist.ProcessGroup) -> GroupLink:
        members = dist.get_process_group_ranks(group)
        ranks = in_ring(members) if purpose in (Purpose.GATHER, Purpose.SCATTER) else members
        ending = f", for the {purpose.value}; {AFTER_AGREEING}"
        plan = self._plans[purpose]
        link = connect(group, self._timeout_s, AttachError, ending, ranks, plan.tos)
        return GroupLink(Exchange(link, plan), ranks, members.index(dist.get_rank()))


def in_ring(members: Sequence[int]) -> list[int]:
    """Return the members of a group in the order in which the ring's owner of chunk ``c`` is member ``c``."""
    world = len(members)
    chunk_of = {ring.owner(chunk, world): chunk for chunk in range(world)}
    return [members[chunk_of[rank]] for rank in range(world)]
