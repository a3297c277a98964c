"""The plan that a run begins with: the user's plan, or a safe plan if the run chooses its plan.

The tuner and the recorder are imported only by runs that use them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from gradwire.autotune.rules import CandidateRules
from gradwire.autotune.settings import NAME, Auto, terms_of
from gradwire.plan import Plan, PlanLike
from gradwire.sync.bucket.observe import NO_CHOOSER, PlanChooser

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from gradwire.autotune.recorder import Recorder


@dataclass(frozen=True)
class InitialPlan:
    """The plan that a run begins with, and the settings if the run chooses later plans.

    Attributes
    ----------
    plan
        The plan of the first steps.
    auto
        The settings of a run that chooses its plan; None if the user's plan is kept.
    """

    plan: Plan
    auto: Auto | None = None

    @classmethod
    def of(cls, plan: PlanLike | Auto, name: str = "plan", pipeline: int = 1) -> Self:
        """Read a front end's plan argument. Errors call it ``name``.

        The run chooses its plan if the argument is None, ``"auto"``, or an ``Auto``. ``pipeline`` is the
        default for plans that don't set it. Raises ``SpecError``.
        """
        auto = plan if isinstance(plan, Auto) else Auto() if plan is None or plan == NAME else None
        if auto is None:
            return cls(Plan.of(cast(PlanLike, plan), name, pipeline=pipeline))
        return cls(replace(auto.first_plan, pipeline=pipeline), auto)

    @property
    def facts(self) -> dict[str, str]:
        """The settings of the choice, on which all ranks must agree, or nothing for a fixed plan."""
        return {} if self.auto is None else {NAME: terms_of(self.auto)}

    def chooser(
        self, rules: CandidateRules, parameters: Iterable[tuple[str, torch.Tensor]], settles_at: int = 0
    ) -> PlanChooser:
        """Return an ``Autotuner`` if the run chooses its plan, else a chooser that keeps the plan."""
        if self.auto is None:
            return NO_CHOOSER
        from gradwire.autotune.autotuner import Autotuner

        return Autotuner(self.auto, rules, parameters, settles_at=settles_at)


def new_recorder(kind: str) -> Recorder:
    """Return an observer that records the steps of ``"DDP"`` or ``"FSDP2"`` for estimates."""
    from gradwire.autotune.recorder import Recorder

    return Recorder(kind)
