"""Observers of steps and buckets, and null observers, so that callers never check for None.

An error in an observer ends the step on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.bucket.work import NULL_BUCKET, BucketObserver, BucketWork
from gradwire.sync.context import SyncContext
from gradwire.sync.ledger.counts import PlanChoice

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
        The step's number from 1, including steps before a checkpoint.
    wait_s
        Seconds for which the training thread waited for averages.
    exchange
        The total cost of these exchanges.
    """

    step: int
    wait_s: float = 0.0
    exchange: ExchangeCost = field(default_factory=ExchangeCost)


class BetweenSteps(Protocol):
    """The part of ``GradientSync`` that an observer may use before a step."""

    @property
    def context(self) -> SyncContext:
        """The context: rank, world, link, plan, ledger and step."""

    def exchange_now(self, what: str, call: Callable[[Exchange], T]) -> T:
        """Run ``call`` on the communication thread and return its value; all ranks make the same call."""

    def connect_lanes(self, number: int) -> str:
        """Connect up to this number of lanes; all ranks return why that failed, or all return ``""``."""


class StepObserver:
    """The base class of observers of one model's steps on the training thread; its methods do nothing."""

    def connected(self, context: SyncContext) -> None:
        """Receive the context; called once, after the ranks have connected and before the first step."""

    def begin(self, step: int, sync: BetweenSteps) -> Plan | None:  # noqa: ARG002
        """Return the plan from this step on, or None to keep the current plan; the same on all ranks.

        At most one observer of a model returns plans. All ranks call this before the first bucket of each
        step, numbered from 1 in this process, and again for a repeated step. An observer may run exchanges.
        """
        return None

    def bucket(self, work: BucketWork) -> BucketObserver:  # noqa: ARG002
        """Return the observer of a bucket whose exchange is about to start."""
        return NULL_BUCKET

    def gathered(self, count: int, wait_s: float) -> None:
        """Record a wait of ``wait_s`` seconds for an all-gather of ``count`` weights."""

    def end(self, cost: StepCost) -> None:
        """Record the cost of a step, after all of its averages have arrived."""

    def state(self) -> Mapping[str, Any]:
        """Return the observer's fields of a checkpoint, under names that no other observer uses."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the observer's fields, if any, from a checkpoint's state. Raises ``StateError``."""


class PlanChooser(StepObserver):
    """An observer that may choose the plan of each step; this base class never chooses a plan.

    ``decisions`` has every decision that chose a plan, with the first step that uses the plan.
    """

    decisions: Sequence[tuple[int, PlanChoice]] = ()

    def prepare(self, sync: BetweenSteps) -> None:
        """Measure before the first step; called once, on all ranks, after all ranks agreed on settings."""

    def leave_out(self, seconds: float) -> None:
        """Subtract ``seconds``, which training spent on something else, from the current step's time."""

    @property
    def intention(self) -> str:
        """The words after the codec in the first line of a run's log; empty if no plan is ever chosen."""
        return ""

    @property
    def loaded_plan(self) -> Plan | None:
        """The plan that the loaded checkpoint gives the next step, or None."""
        return None


NO_CHOOSER = PlanChooser()
