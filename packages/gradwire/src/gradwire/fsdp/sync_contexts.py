"""The sync contexts of sharded training. Each pair of process group and purpose has a context and a link.

In FSDP, member ``r`` of a group owns shard ``r``. After a ring's reduce half, chunk ``c`` belongs to the rank
``collectives.ring.owner``, which is not ``c``. Therefore, the ring orders the members of a sharding group
such that the owner of chunk ``c`` is member ``c``, and no shard has to be moved.
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
from gradwire.errors import AttachError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.context import SyncContext, SyncOptions
from gradwire.sync.group import AFTER_AGREEING, connect
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.sinks import profiled

_REMEDY = "save model.state_dict(), which contains the shards, and restart all ranks"


class Purpose(Enum):
    """The purpose of a link. Each purpose has its own link, so that collectives' messages don't mix."""

    GATHER = "all-gather of the weights"
    SCATTER = "reduce-scatter of the gradients"
    REPLICATE = "all-reduce of the gradients between replicas"
    AGREE = "agreement of all ranks"


@dataclass(frozen=True)
class GroupMember:
    """One rank's membership in a group, for one purpose. A member exchanges one tensor at a time."""

    context: SyncContext
    place: int  # the rank's index among the members
    staging: Staging = field(default_factory=Staging)  # host memory for the current tensor

    @property
    def world(self) -> int:
        """The number of members in the process group."""
        return self.context.world

    def own_shard(self, values: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of all members' values."""
        return values.chunk(self.world)[self.place]


class SyncContexts:
    """The sync contexts of one rank. All ranks connect their contexts in the same order.

    An error in one context closes the links of all contexts (``SyncContext.fail``), so that peers waiting in
    other groups fail at once. ``step`` is the training step of the current or last exchanges.
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
        """Return this rank's membership in a group. The first call connects to the other members.

        Raises ``AttachError`` if a member is missing.
        """
        if (purpose, group) in self._members:
            return self._members[purpose, group]
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
            late_advice="call attach_fsdp with a longer timeout_s",
            ranks=ranks,
            siblings=self._contexts,
        )
        self._contexts.append(context)
        member = self._members[purpose, group] = GroupMember(context, members.index(dist.get_rank()))
        return member

    @contextmanager
    def using(self, purpose: Purpose, group: dist.ProcessGroup, what: str) -> Iterator[GroupMember]:
        """Yield this rank's membership in a group for one exchange, which profiles show as ``what``.

        An error in the exchange, such as a dead peer, ends all contexts. The error's note contains the
        collective, the module, and a remedy. Raises ``ExchangeError`` if the contexts have ended.
        """
        member = self.connect(purpose, group)
        context = member.context
        context.check()
        context.link.step = self.step
        with context.failing(f"in the {purpose.value} ({what})"), profiled(what):
            yield member

    def follow(self, plan: Plan) -> None:
        """Switch the gradients to a different plan. All ranks must do so between the same two steps."""
        self._plans |= dict.fromkeys((Purpose.SCATTER, Purpose.REPLICATE, Purpose.AGREE), plan)
        for (purpose, _), member in self._members.items():
            member.context.exchange.follow(self._plans[purpose])

    def close(self) -> None:
        """Close all links. Later exchanges raise an error."""
        for context in self._contexts:
            context.is_closed = context.is_closed or not context.is_over
            context.exchange.close("the attachment of attach_fsdp is closed")


def in_ring(members: Sequence[int]) -> list[int]:
    """Return the members of a group, ordered such that the ring's owner of chunk ``c`` is member ``c``."""
    world = len(members)
    chunk_of = {ring.owner(chunk, world): chunk for chunk in range(world)}
    return [members[chunk_of[rank]] for rank in range(world)]
