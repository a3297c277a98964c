"""The sync contexts of sharded training: one for each group of processes and purpose, each with its own link.

FSDP gives shard ``r`` to member ``r`` of a group. A ring's reduce half leaves chunk ``c`` with another rank,
``collectives.ring.owner``. So the members of a sharding group sit in the ring in an order in which the owner
of chunk ``c`` is member ``c``, and no byte is moved to set it right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

import torch
import torch.distributed as dist

from gradwire.codecs import Codec
from gradwire.collectives import ring
from gradwire.devices import Staging
from gradwire.errors import AttachError, GradwireError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.agreement import AFTER_AGREEING
from gradwire.sync.connect import connect
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.ledger.ledger import Ledger, profiled

_REMEDY = "save model.state_dict(), which has the shards, and restart all ranks"
_LATE_ADVICE = "call attach_fsdp with a longer timeout_s"


class Purpose(Enum):
    """The purpose of a link; each has its own, so that an all-gather never meets a reduce-scatter."""

    GATHER = "all-gather of the weights"
    SCATTER = "reduce-scatter of the gradients"
    REPLICATE = "all-reduce of the gradients between replicas"
    AGREE = "agreement of all ranks"


@dataclass(frozen=True)
class GroupMember:
    """One rank as a member of one group, for one purpose; it exchanges one tensor at a time.

    ``place`` is its place among the members, and ``staging`` is host memory for the tensor on its way.
    """

    context: SyncContext
    place: int
    staging: Staging = field(default_factory=Staging)

    @property
    def world(self) -> int:
        """The number of the group's members."""
        return self.context.world

    def own_shard(self, values: torch.Tensor) -> torch.Tensor:
        """Return the part of all members' values that belongs to this rank."""
        return values.chunk(self.world)[self.place]


class SyncContexts:
    """All contexts of one rank. All ranks connect the same ones in the same order.

    An error in one of them closes the links of all (``SyncContext.fail``): peers that wait in other groups
    learn of it at once. ``plan`` is that of the gradients, and ``weights`` the codec of the weights.

    Attributes
    ----------
    step
        The training step that exchanges are part of, or that was the last one.
    """

    def __init__(self, plan: Plan, weights: Codec | None, options: SyncOptions, ledger: Ledger) -> None:
        ring_plan = replace(plan, algorithm="ring")
        self._plans = {
            Purpose.GATHER: ring_plan if weights is None else replace(ring_plan, codec=weights),
            Purpose.SCATTER: ring_plan,
            Purpose.REPLICATE: plan,
            Purpose.AGREE: plan,
        }
        self._options, self._ledger = options, ledger
        self._members: dict[tuple[Purpose, dist.ProcessGroup], GroupMember] = {}
        self._contexts: list[SyncContext] = []
        self.step = 0

    def connect(self, purpose: Purpose, group: dist.ProcessGroup) -> GroupMember:
        """Return this rank as a member of a group; the first call connects with the other members.

        Raises ``AttachError`` if a member is missing.
        """
        if (purpose, group) not in self._members:
            self._members[purpose, group] = self._new_member(purpose, group)
        return self._members[purpose, group]

    @contextmanager
    def using(self, purpose: Purpose, group: dist.ProcessGroup, what: str) -> Iterator[GroupMember]:
        """Yield the member of a group for the exchange of ``what``, which a profile shows.

        An error in it, such as a dead peer, ends all contexts; its note names the collective and the module,
        and says what to do. Raises ``ExchangeError`` once the contexts have ended.
        """
        member = self.connect(purpose, group)
        context = member.context
        context.check()
        context.link.step = self.step
        try:
            with profiled(what):
                yield member
        except BaseException as error:
            failure = context.fail(error)
            if isinstance(failure, GradwireError):
                failure.add_note(f"in the {purpose.value} ({what}); {context.remedy}")
            if failure is not error:
                raise failure from error
            raise

    def follow(self, plan: Plan) -> None:
        """Let gradients go by another plan from now on; all ranks call this between the same two steps."""
        self._plans |= dict.fromkeys((Purpose.SCATTER, Purpose.REPLICATE, Purpose.AGREE), plan)
        for (purpose, _), member in self._members.items():
            member.context.exchange.follow(self._plans[purpose])

    def close(self) -> None:
        """Close all links; later calls raise. May be called twice."""
        for context in self._contexts:
            context.is_closed = context.is_closed or not context.is_over
            context.exchange.close("what attach_fsdp returned is closed")

    def _new_member(self, purpose: Purpose, group: dist.ProcessGroup) -> GroupMember:
        members = dist.get_process_group_ranks(group)
        ranks = in_ring(members) if purpose in (Purpose.GATHER, Purpose.SCATTER) else members
        ending = f", for the {purpose.value}; {AFTER_AGREEING}"
        plan = self._plans[purpose]
        link = connect(group, self._options.timeout_s, AttachError, ending, ranks, plan.tos)
        context = SyncContext(
            Exchange(link, plan),
            self._options,
            self._ledger,
            group,
            remedy=_REMEDY,
            late_advice=_LATE_ADVICE,
            ranks=ranks,
            siblings=self._contexts,
        )
        self._contexts.append(context)
        return GroupMember(context, members.index(dist.get_rank()))


def in_ring(members: Sequence[int]) -> list[int]:
    """Return the members of a group in the order in which the ring's owner of chunk ``c`` is member ``c``."""
    world = len(members)
    chunk_of = {ring.owner(chunk, world): chunk for chunk in range(world)}
    return [members[chunk_of[rank]] for rank in range(world)]
