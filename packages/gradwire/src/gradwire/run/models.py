"""The models that have begun training, and the turns in which different methods average their gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from gradwire.attached import Attached
from gradwire.plan import Plan
from gradwire.planner.explain import name_plan
from gradwire.run.comparison import ATTACHED, Turns
from gradwire.run.methods import AttachableModel, Passed
from gradwire.run.outcome import ModelOutcome
from gradwire.script.steps import Marks, marks_of
from gradwire.sync.bucket.observe import NO_CHOOSER
from gradwire.sync.ledger.summary import ledger_fields

SETTLING = 10
"""The steps with an unchanged plan before a comparison: more than a trial of a plan, which takes 5 or 6."""

IDLE_STEPS = 100
"""The steps of smaller models after which the timed model counts as finished; a GAN's turns are shorter."""


@dataclass(eq=False)
class RunModel:
    """A script's model that has begun training, with gradwire's handle, or the reason why it has none."""

    trained: AttachableModel
    passed: Passed  # called at the end of each step, with the method that averaged it
    attached: Attached | None = None
    problem: str = ""
    floats: int = field(init=False)

    def __post_init__(self) -> None:
        parameters = self.trained.module.parameters()
        self.floats = sum(each.numel() for each in parameters if each.requires_grad)

    @property
    def handle(self) -> Attached:
        """Gradwire's handle on this model. Gradwire must be attached to the model."""
        assert self.attached is not None, "callers check that gradwire is attached"
        return self.attached

    @property
    def has_chosen(self) -> bool:
        """Whether this model's plan is final: passed by the user, or already chosen by the run."""
        return self.handle._chooser is NO_CHOOSER or bool(self.handle.decisions)

    def outcome(self) -> ModelOutcome:
        """Return the model's part of the run's outcome."""
        if self.attached is None:
            return ModelOutcome(self.trained.name, self.problem)
        ledger = self.attached.ledger
        fields = ledger_fields(ledger.state_dict(), ledger.summary())
        return ModelOutcome(self.trained.name, plan=name_plan(self.attached.plan), ledger=fields)


class ModelTurns:
    """The turns of averaging methods in ``cycles`` cycles, shared by all attached models of a process.

    In each turn, one method averages the gradients of all models. Only steps of the model with the most
    parameters are timed. If a model is added, or the timed model's plan changes, the comparison starts over.
    It also starts over if the other models train for ``IDLE_STEPS`` steps without the timed model, which the
    script may have deleted. Then another model is timed. All ranks switch after the same steps, because turns
    depend only on steps and plans, and not on when Python collects a deleted model.
    """

    def __init__(self, cycles: int) -> None:
        self._cycles = cycles
        self._models: list[RunModel] = []
        self._turns: Turns | None = None
        self._marks: Marks | None = None
        self._mark: Any = None
        self._plan: Plan | None = None
        self._same, self._idle, self._attached_until_s = 0, 0, 0.0

    @property
    def is_over(self) -> bool:
        """Whether all cycles are complete."""
        return self._turns is not None and self._turns.is_over

    @property
    def plan(self) -> str:
        """The plan of the attached steps, in words; empty before the first step."""
        return "" if self._plan is None else name_plan(self._plan)

    def cycles_s(self) -> dict[str, tuple[float, ...]] | None:
        """Return each method's step times in the complete cycles, or None without a comparison."""
        if not self._cycles:
            return None
        if self._turns is None or self._marks is None:
            return {}
        return self._turns.cycles(self._marks.seconds)

    def add(self, model: RunModel) -> None:
        """Add an attached model to the turns."""
        if not self.is_over:
            self._restart()
        self._models.append(model)

    def passed(self, model: RunModel, method: str) -> None:
        """Record the end of a step that ``method`` averaged, and choose the method of the next step."""
        if not self._cycles or self.is_over:
            return
        if model not in self._models:
            self.add(model)  # it trains again
        timed = max(self._models, key=lambda each: each.floats)
        self._idle = 0 if model is timed else self._idle + 1
        if self._idle >= IDLE_STEPS:
            self._restart()
            self._models.remove(timed)
        if model is not timed:
            return
        if method == ATTACHED and timed.handle.plan != self._plan:
            self._restart()
            self._plan = timed.handle.plan
        if self._turns is None or self._marks is None:
            self._same += timed.has_chosen
            if self._same >= SETTLING:
                self._start(timed)
        elif method == self._turns.method:  # false under DDP's join, whose steps gradwire always averages
            began, self._mark = self._mark, self._marks.now()
            self._turns.passed(began, self._mark)
            self._use(self._turns.method, method)

    def _start(self, timed: RunModel) -> None:
        every = [model.trained.methods for model in self._models]
        methods = [method for method in timed.trained.methods if all(method in each for each in every)]
        self._turns = Turns(methods, self._cycles)
        self._marks = marks_of(timed.trained.device)
        self._mark = self._marks.now()
        self._use(self._turns.method, ATTACHED)

    def _restart(self) -> None:
        if self._turns is not None:
            self._use(ATTACHED, self._turns.method)
        self._turns, self._same, self._idle = None, 0, 0

    def _use(self, method: str, before: str) -> None:
        """Switch all models from the method ``before`` to ``method``, from the next step on."""
        if method == before:
            return
        now_s = perf_counter()
        if before == ATTACHED:
            self._attached_until_s = now_s
        for each in self._models:
            each.trained.use(method, each.passed)
            if method == ATTACHED:
                each.handle._leave_out(now_s - self._attached_until_s)
