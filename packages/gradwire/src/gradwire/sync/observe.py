"""Observers of steps and buckets, and the null default: no caller asks whether there is one.

``GradientSync`` has a tuple of them. An error in one of them ends the step on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.context import SyncContext
from gradwire.sync.ledger.counts import PlanChoice
from gradwire.sync.work import NULL_BUCKET, BucketObserver, BucketWork

__all__ = [
    "NO_CHOOSER", "NULL_BUCKET", "BetweenSteps", "BucketObserver", "PlanChooser", "StepCost", "StepObserver"
]  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepCost:
    """The cost of the gradients of one training step on this rank.

    Attributes
    ----------
    step
        Counted from 1 up, those before a checkpoint included.
    wait_s
        Seconds for which the training thread waited for averages.
    exchange
        The sum over these averages.
    """

    step: int
    wait_s: float = 0.0
    exchange: ExchangeCost = field(default_factory=ExchangeCost)


class BetweenSteps(Protocol):
    """The part of ``GradientSync`` that an observer may use before a step."""

    @property
    def context(self) -> SyncContext:
        """Rank, world, link, plan, ledger and step."""

    def exchange_now(self, what: str, call: Callable[[Exchange], T]) -> T:
        """Call ``call`` on the communication thread and return its value; all ranks make the same call."""


class StepObserver:
    """Watches the steps of one model, on the training thread; does nothing by default."""

    def connected(self, context: SyncContext) -> None:
        """Note what the ranks share; called once, after they have connected and before the first step."""

    def begin(self, step: int, sync: BetweenSteps) -> Plan | None:  # noqa: ARG002
        """Return the plan from this step on, or None for the present one; the same on all ranks.

        At most one observer of a model returns plans. All ranks call it before the first bucket of each step,
        with steps of this process, counted from 1 up; again for a step that is retried. It may exchange.
        """
        return None

    def bucket(self, work: BucketWork) -> BucketObserver:  # noqa: ARG002
        """Return the observer of a bucket that is about to be handed over."""
        return NULL_BUCKET

    def gathered(self, count: int, wait_s: float) -> None:
        """Note that the step has waited so long for an all-gather of ``count`` floats of weights."""

    def end(self, cost: StepCost) -> None:
        """Note that all averages that a step waits for are there."""

    def state(self) -> Mapping[str, Any]:
        """Return the fields that a checkpoint keeps; their names are the observer's own."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Adopt the fields of a checkpoint, which may lack the observer's. Raises ``StateError``."""


class PlanChooser(StepObserver):
    """An observer that may choose the plan of each step; this one never does.

    Attributes
    ----------
    decisions
        The steps before which all ranks took a plan, and the decisions.
    """

    decisions: Sequence[tuple[int, PlanChoice]] = ()

    @property
    def loaded_plan(self) -> Plan | None:
        """The plan with which the next step goes on, if a checkpoint was loaded that has one."""
        return None


NO_CHOOSER = PlanChooser()
