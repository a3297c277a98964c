"""Automatic choice of a plan during training, as in ``attach(model, "auto")``.

The tuner is imported only by runs that choose their plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from gradwire.autotune.settings import NAME, Auto, AutoConfig, CandidateRules, terms_of
from gradwire.plan import Plan, PlanLike

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from gradwire.sync.bucket.observe import PlanChooser

__all__ = ["Auto", "AutoConfig", "InitialPlan"]


@dataclass(frozen=True)
class InitialPlan:
    """The plan that a run begins with, and the settings if the run chooses later plans."""

    plan: Plan  # the user's plan, or a safe default if the run chooses its plan
    auto: Auto | None = None  # None if the user's plan is kept

    @classmethod
    def of(cls, plan: PlanLike | Auto, name: str = "plan", pipeline: int = 1) -> Self:
        """Read a front end's plan argument. Errors call the argument ``name``.

        The run chooses its plan if the argument is None, ``"auto"``, or an ``Auto``. ``pipeline`` is the
        default number of steps in flight. Raises ``SpecError``.
        """
        auto = plan if isinstance(plan, Auto) else Auto() if plan is None or plan == NAME else None
        if auto is None:
            return cls(Plan.of(cast(PlanLike, plan), name, pipeline=pipeline))
        return cls(replace(auto.first_plan, pipeline=pipeline), auto)

    @property
    def facts(self) -> dict[str, str]:
        """The settings of the choice, on which all ranks must agree; empty for a fixed plan."""
        return {} if self.auto is None else {NAME: terms_of(self.auto)}

    def chooser(
        self, rules: CandidateRules, parameters: Iterable[tuple[str, torch.Tensor]], settles_at: int = 0
    ) -> PlanChooser:
        """Return an ``Autotuner`` if the run chooses its plan, else a chooser that keeps the plan."""
        if self.auto is None:
            from gradwire.sync.bucket.observe import NO_CHOOSER

            return NO_CHOOSER
        from gradwire.autotune.autotuner import Autotuner

        return Autotuner(self.auto, rules, parameters, settles_at=settles_at)
