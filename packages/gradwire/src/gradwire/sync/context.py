"""The context of one model's link on one rank: options, plan, step, ledger and failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch.distributed as dist

from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, FrameError, GradwireError, LinkError, PayloadError, add_note
from gradwire.exchange import Exchange
from gradwire.exchange.frames import Difference
from gradwire.links.base import Link
from gradwire.plan import Plan
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.lost import ErrorSums
from gradwire.wire import OutOfStepError


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Options shared by all front ends, the same on all ranks.

    Attributes
    ----------
    timeout_s
        The limit for any single wait for a peer, in seconds.
    begin_timeout_s
        The limit for a wait for the other ranks to begin a step; ``timeout_s`` by default.
    strict
        Whether all ranks raise ``LossyError`` at the end of a step in which any rank would warn.
    """

    timeout_s: float = 30.0
    begin_timeout_s: float | None = None
    strict: bool = False


class LinkUser(Protocol):
    """The communication thread's interface for ``SyncContext.fail``. The thread owns a link."""

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""

    def give_up(self, failure: BaseException) -> None:
        """Close the link after the current work, and fail all later work with ``failure``."""


@dataclass(slots=True, eq=False)
class SyncContext:
    """The state shared by all exchanges over one model's link on one rank.

    FSDP has one context for each purpose and group; every other front end has one for each lane. The
    exchange's ``transport`` records the failure, if any. With ``fails_late``, only ``wait`` raises it, so
    that a pipeline raises a step's error when the step's average is due; otherwise every call does.
    """

    exchange: Exchange
    options: SyncOptions = SyncOptions()
    ledger: Ledger | None = None
    group: dist.ProcessGroup | None = None  # averages what no codec supports; None if a link was passed
    model: str = "this model's exchange"  # used in errors, like the next two fields
    remedy: str = "create a new link"
    late_advice: str = "give the link a longer timeout_s"  # if the communication thread is late
    owns_link: bool = True  # whether closing the exchange also closes the link, as a failure does
    fails_late: bool = False
    steps_done: int = 0  # by this process
    steps_before: int = 0  # by the run, before this process
    is_closed: bool = False
    thread: LinkUser | None = None  # once it runs
    siblings: list[SyncContext] = field(default_factory=list)  # of the same model; a failure ends all of them
    ranks: Sequence[int] = ()  # the rank in the world of each rank of the link, needed with siblings

    @property
    def link(self) -> Link:
        """The link of this rank."""
        return self.exchange.link

    @property
    def rank(self) -> int:
        """The rank in error messages: the entry in ``ranks`` if set, else the rank in the link."""
        return self.ranks[self.link.rank] if self.ranks else self.link.rank

    @property
    def world(self) -> int:
        """The number of ranks in the link."""
        return self.exchange.link.world

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self.exchange.plan

    @property
    def step(self) -> int:
        """The number of completed steps of the run, including steps before a checkpoint."""
        return self.steps_before + self.steps_done

    @property
    def timeout_s(self) -> float:
        """The limit for a single wait for a peer, in seconds."""
        return self.exchange.link.timeout_s

    @property
    def begin_timeout_s(self) -> float:
        """The limit for a wait for the other ranks to begin a step, in seconds."""
        return self.timeout_s if self.options.begin_timeout_s is None else self.options.begin_timeout_s

    @property
    def is_over(self) -> bool:
        """Whether this context has failed or is closed."""
        return self.is_closed or self.exchange.transport.failure is not None

    def count(
        self, name: str, cost: ExchangeCost, exposed_s: float, nbytes: int = 0, lost: ErrorSums | None = None
    ) -> None:
        """Count an exchange of ``nbytes`` bytes of gradient in the ledger, if the context has a ledger."""
        if self.ledger is not None:
            self.ledger.exchanged(name, cost, exposed_s, gradient_nbytes=nbytes, lost=lost)

    def resume(self, step: int) -> None:
        """Continue to count steps from ``step``, the last step before the loaded checkpoint."""
        self.steps_before = step - self.steps_done
        self.exchange.link.step = step

    def check(self) -> None:
        """Raise ``ExchangeError`` if this context is closed or, unless ``fails_late``, has failed."""
        if self.is_closed:
            raise ExchangeError(f"rank {self.rank}: {self.model} is closed; {self.remedy}")
        failure = self.exchange.transport.failure
        if failure is not None and not self.fails_late:
            raise ExchangeError(
                f"rank {self.rank}: {self.model} failed earlier ({failure}), and the weights are from "
                f"the last complete step; {self.remedy}"
            )

    def annotate(self, error: BaseException, doing: str) -> None:
        """Add a note to an error that names the failed work (``doing``) and the remedy."""
        add_note(error, f"{doing}; {self.remedy}")

    def fail(self, error: BaseException) -> BaseException:
        """Refuse all later exchanges, close all links to notify the peers, and return the reason.

        Every handler of errors calls this: the communication thread, FSDP's collectives, and the training
        thread. A failed exchange has already closed its own link; this closes the siblings' links, and the
        own link if something else failed, such as an observer. Later calls keep the first error. A link that
        the communication thread is using is closed after the running work.

        The reason is ``error``, unless a sibling's link shows that ranks are at different steps. A rank that
        waits for a peer in one group may already have the peer's last frame in another group. But if this
        rank has refused a frame, its peers leave for that reason, and their last frames show no other.
        """
        every, reason = dict.fromkeys((self, *self.siblings)), error
        if len(every) > 1 and isinstance(error, ExchangeError) and (found := self._out_of_step(every, error)):
            found.__cause__, reason = error, found
        for each in every:
            if each.thread is None or each.thread.is_current:
                each.exchange.close(reason)
            else:
                each.thread.give_up(reason)
        return reason

    @contextmanager
    def failing(self, doing: str) -> Iterator[None]:
        """Run a ``with`` block in which any error ends this context, with a note that contains ``doing``."""
        try:
            yield
        except BaseException as error:
            failure = self.fail(error)
            if isinstance(failure, GradwireError):
                self.annotate(failure, doing)
            if failure is not error:
                raise failure from error
            raise

    def _out_of_step(self, every: Iterable[SyncContext], error: ExchangeError) -> ExchangeError | None:
        """Return an error if a link of ``every`` shows that two ranks are at different steps, else None.

        Also None if this context's exchange has reported the difference. Every link that connects both ranks
        sends the difference to its peers when it is closed.
        """
        for each in every:
            if each.thread is not None and not each.thread.is_current:
                continue  # the link's thread may be receiving
            each.link.step = self.link.step
            found = each.exchange.transport.note_difference(LinkError())
            if found is None or (found.has_left and _has_refused(error)):
                continue
            (one, its_step), (other, step) = ((each.ranks[rank], step) for rank, step in found.places)
            for both in every:
                if {one, other} <= set(both.ranks):
                    places = (both.ranks.index(one), its_step), (both.ranks.index(other), step)
                    both.exchange.transport.difference = Difference(places, found.has_left)
            if each is self and not found.has_left:
                return None
            own, words = each.link.rank, found.in_words(each.link)
            is_named = own in (rank for rank, _ in found.places)
            return ExchangeError(words if is_named else f"{each.link.name_of(own)}: {words}")
        return None


def _has_refused(error: ExchangeError) -> bool:
    """Return whether this rank refused a frame of its own step."""
    cause = error.__cause__
    return isinstance(cause, (FrameError, PayloadError)) and not isinstance(cause, OutOfStepError)
