"""The context of one link of one model on one rank: options, plan, step, ledger and failure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import torch
import torch.distributed as dist

from gradwire.costs import ExchangeCost
from gradwire.errors import AttachError, ExchangeError, LinkError
from gradwire.exchange import Exchange
from gradwire.exchange.frames import Difference
from gradwire.links.base import Link
from gradwire.plan import Plan
from gradwire.sync.agreement import AFTER_AGREEING, agree, facts_of
from gradwire.sync.connect import connect
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import ErrorSums


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """The options that all front ends share; the same on all ranks.

    Attributes
    ----------
    timeout_s
        How long any single wait for a peer lasts before it is an error.
    begin_timeout_s
        How long a rank that has begun a step waits for the others to begin it; ``timeout_s`` by default.
    strict
        Whether all ranks raise ``LossyError`` at the end of a step in which one of them would warn.
    """

    timeout_s: float = 30.0
    begin_timeout_s: float | None = None
    strict: bool = False


class HostReduction(Protocol):
    """A reduction inside a host, before the exchange between hosts."""

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's share of the host's sum of a bucket; the exchange averages it in place."""

    def gather(self, share: torch.Tensor, tensor: torch.Tensor) -> None:
        """Fill the bucket with the averaged shares of all ranks of the host."""


class _OneRankPerHost:
    """The reduction of a host whose ranks exchange their gradients themselves."""

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the bucket itself."""
        return tensor

    def gather(self, share: torch.Tensor, tensor: torch.Tensor) -> None:
        """Do nothing: the share is the bucket."""


NO_HOST_REDUCTION: HostReduction = _OneRankPerHost()


class Cadence(Protocol):
    """A choice of the steps that exchange their gradients; the same on all ranks."""

    def is_due(self, step: int) -> bool:
        """Return whether this step, counted from 1 up, exchanges."""


class _EveryStep:
    """The cadence of synchronous training."""

    def is_due(self, step: int) -> bool:  # noqa: ARG002
        """Return True."""
        return True


EVERY_STEP: Cadence = _EveryStep()


class LinkUser(Protocol):
    """A thread that uses a link while others do not: the communication thread."""

    @property
    def is_current(self) -> bool:
        """Whether this is called on the thread itself."""

    def give_up(self, failure: BaseException) -> None:
        """Close the link once what is under way is done; everything later ends with ``failure``."""


@dataclass(slots=True, eq=False)
class SyncContext:
    """One link of one model on one rank, and what all exchanges over it share.

    FSDP has one for each purpose and group; all others have one in all.

    Attributes
    ----------
    exchange
        Exchanges buckets over the link, by the plan in use. Its transport alone knows whether it has failed.
    options
        The front end's.
    ledger
        Counts every piece of work that has a name; None: nothing is counted.
    group
        Averages buckets that no codec takes, by torch's own all-reduce; None where there are none.
    model, remedy, late_advice
        The name of this exchange in errors, what they advise once it has failed or is closed, and what they
        advise where the communication thread is late.
    owns_link
        Whether closing the exchange closes the link, too; a failure closes it in any case.
    fails_late
        Whether ``wait`` alone raises a failure, as pipelines need: the error of a step is raised when its
        average is due. Otherwise each call raises it.
    steps_done, steps_before
        Steps of this process, and those of the run before the checkpoint that was loaded.
    is_closed
        Whether the front end has closed it.
    thread
        The communication thread, once there is one.
    siblings
        The contexts of the same model that a failure of this one ends, too; this one may be among them.
    ranks
        The world's ranks in the order of the link's; needed where there are siblings.
    """

    exchange: Exchange
    options: SyncOptions = SyncOptions()
    ledger: Ledger | None = None
    group: dist.ProcessGroup | None = None
    model: str = "this model's exchange"
    remedy: str = "begin with a new link"
    late_advice: str = "give the link a longer timeout_s"
    owns_link: bool = True
    fails_late: bool = False
    steps_done: int = 0
    steps_before: int = 0
    is_closed: bool = False
    thread: LinkUser | None = None
    siblings: list[SyncContext] = field(default_factory=list)
    ranks: Sequence[int] = ()

    @classmethod
    def connect(
        cls,
        group: dist.ProcessGroup,
        plan: Plan,
        options: SyncOptions,
        facts: Mapping[str, str],
        ledger: Ledger | None,
        *,
        remedy: str,
        late_advice: str,
    ) -> Self:
        """Agree with all ranks of a group on plan, options and ``facts``, and connect with them.

        Without a ledger it has one of its own. Raises ``AttachError`` on all ranks, where one differs,
        refuses or does not come in time.
        """
        own = {"strict": str(options.strict), "world": str(dist.get_world_size(group))}
        agree(group, {**facts_of(plan), **own, **facts}, options.timeout_s)
        link = connect(group, options.timeout_s, AttachError, f"; {AFTER_AGREEING}", tos=plan.tos)
        book = Ledger(link.rank) if ledger is None else ledger
        exchange = Exchange(link, plan)
        return cls(exchange, options, book, group, remedy=remedy, late_advice=late_advice)

    @property
    def link(self) -> Link:
        """The end of the link on this rank."""
        return self.exchange.link

    @property
    def rank(self) -> int:
        """The number of this rank, as errors call it: that in ``ranks``, or in the link."""
        return self.ranks[self.link.rank] if self.ranks else self.link.rank

    @property
    def world(self) -> int:
        """The number of ranks of the link."""
        return self.exchange.link.world

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self.exchange.plan

    @property
    def step(self) -> int:
        """The number of steps that the run has taken, those before a checkpoint included."""
        return self.steps_before + self.steps_done

    @property
    def timeout_s(self) -> float:
        """The limit of a single wait for a peer."""
        return self.exchange.link.timeout_s

    @property
    def begin_timeout_s(self) -> float:
        """The limit of a wait for the others to begin a step."""
        return self.timeout_s if self.options.begin_timeout_s is None else self.options.begin_timeout_s

    @property
    def is_over(self) -> bool:
        """Whether no exchange is possible any more: this context has failed or is closed."""
        return self.is_closed or self.exchange.transport.failure is not None

    def count(
        self, name: str, cost: ExchangeCost, exposed_s: float, nbytes: int = 0, lost: ErrorSums | None = None
    ) -> None:
        """Count an exchange of ``nbytes`` of gradient in the ledger, if there is one."""
        if self.ledger is not None:
            self.ledger.exchanged(name, cost, exposed_s, gradient_nbytes=nbytes, lost=lost)

    def resume(self, step: int) -> None:
        """Count on from the step that a checkpoint was written after."""
        self.steps_before = step - self.steps_done
        self.exchange.link.step = step

    def check(self) -> None:
        """Raise ``ExchangeError`` with the remedy if no exchange is possible any more."""
        if self.is_closed:
            raise ExchangeError(f"rank {self.rank}: {self.model} is closed; {self.remedy}")
        failure = self.exchange.transport.failure
        if failure is not None and not self.fails_late:
            raise ExchangeError(
                f"rank {self.rank}: {self.model} has failed before ({failure}), and the weights are those of "
                f"the last complete step; {self.remedy}"
            )

    def fail(self, error: BaseException) -> BaseException:
        """Refuse all later exchanges, close all links, so that the peers learn of it, and return the reason.

        An exchange that fails has closed its own link already (``Exchange._fail``). This closes those of the
        siblings, and the own one if something else failed, such as an observer. Whatever catches an error
        calls it: the communication thread (``Work.execute``), FSDP's collectives (``SyncContexts.using``),
        and what runs on the training thread. The first error counts. A link that the communication thread is
        using is closed once that piece of work is done.

        The reason is ``error``, unless a sibling's link says that ranks are at different steps: a rank that
        waits for a peer in one group has the peer's frames, and its last one, in another group.
        """
        every, reason = dict.fromkeys((self, *self.siblings)), error
        if len(every) > 1 and isinstance(error, ExchangeError) and (found := self._out_of_step(every)):
            found.__cause__, reason = error, found
        for each in every:
            if each.thread is None or each.thread.is_current:
                each.exchange.close(reason)
            else:
                each.thread.give_up(reason)
        return reason

    def _out_of_step(self, every: Iterable[SyncContext]) -> ExchangeError | None:
        """Return the error of ranks at different steps, if one of these links says so and this one does not.

        Every link that has both ranks says so from now on, when it is closed.
        """
        for each in every:
            each.link.step, transport = self.link.step, each.exchange.transport
            if not transport.note_difference(LinkError()) or transport.difference is None:
                continue
            found = transport.difference
            (one, its_step), (other, step) = ((each.ranks[rank], step) for rank, step in found.places)
            for both in every:
                if {one, other} <= set(both.ranks):
                    places = (both.ranks.index(one), its_step), (both.ranks.index(other), step)
                    both.exchange.transport.difference = Difference(places, found.has_left)
            is_said = each is self and not found.has_left
            return None if is_said else ExchangeError(found.in_words(each.link))
        return None
