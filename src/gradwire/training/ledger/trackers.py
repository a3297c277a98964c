"""A ledger's figures in Weights & Biases and MLflow, where they are installed; the tags are TensorBoard's.

Both keep a run elsewhere, so that a step is one call of theirs and not one for each figure.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from gradwire.errors import MissingPackageError, SpecError
from gradwire.training.ledger.sinks import PLAN_TAG, StepCounts, plan_texts, scalars
from gradwire.version import how_to_install

EXTRA = "trackers"
STEP_TAG = "gradwire/step"
"""In Weights & Biases, what the figures are drawn over: the step that its run counts is the program's own."""


class WandB:
    """Gives every step's figures to a run of Weights & Biases.

    The run's own step goes on by one with each call of its ``log``, the program's included; so the figures
    have a step of their own, ``gradwire/step``, over which they are drawn.

    Parameters
    ----------
    run
        What ``wandb.init`` has returned; by default the run that is active. It stays the caller's, who
        finishes it.
    buckets
        Whether every bucket gets tags of its own, besides the sum.

    Raises
    ------
    MissingPackageError
        Without ``run``, if wandb isn't installed.
    SpecError
        If no run is active, and for a run without ``log`` and ``define_metric``.
    """

    def __init__(self, run: Any = None, buckets: bool = True) -> None:
        self._run = _needed("wandb", "WandB").run if run is None else run
        if self._run is None:
            raise SpecError("WandB wants a run, but none is active; call wandb.init() before, or give it one")
        if not all(callable(getattr(self._run, name, None)) for name in ("log", "define_metric")):
            raise SpecError(f"WandB wants what wandb.init() returns, but got {run!r}")
        self._buckets = buckets
        self._run.define_metric(STEP_TAG)
        self._run.define_metric("gradwire/*", step_metric=STEP_TAG)

    def write(self, step: StepCounts) -> None:
        """Log the step's figures and plans at once. Raises what the run raises."""
        values: dict[str, Any] = {STEP_TAG: step.step, **scalars(step, self._buckets)}
        texts = plan_texts(step)
        if texts:
            values[PLAN_TAG] = "\n\n".join(texts)
        self._run.log(values)

    def close(self) -> None:
        """Do nothing: the run is the caller's."""

    def __repr__(self) -> str:
        return f"WandB({getattr(self._run, 'name', None) or 'run'!r})"


class MLflow:
    """Gives every step's figures to a run of MLflow; plans become its artifacts ``gradwire/plan-STEP.md``.

    Parameters
    ----------
    run_id
        Which run; by default the one that is active. It stays the caller's, who ends it.
    buckets
        Whether every bucket gets metrics of its own, besides the sum.

    Raises
    ------
    MissingPackageError
        If neither mlflow nor mlflow-skinny is installed.
    SpecError
        Without ``run_id``, if no run is active.
    """

    def __init__(self, run_id: str | None = None, buckets: bool = True) -> None:
        self._mlflow = _needed("mlflow", "MLflow")
        active: Any = self._mlflow.active_run() if run_id is None else None
        if run_id is None and active is None:
            raise SpecError(
                "MLflow wants a run, but none is active; call mlflow.start_run() before, or name one"
            )
        self.run_id: str = active.info.run_id if run_id is None else run_id
        self._buckets = buckets

    def write(self, step: StepCounts) -> None:
        """Log the step's figures at once, and its plans. Raises what MLflow raises."""
        self._mlflow.log_metrics(scalars(step, self._buckets), step=step.step, run_id=self.run_id)
        texts = plan_texts(step)
        if texts:
            self._mlflow.log_text("\n\n".join(texts), f"{PLAN_TAG}-{step.step}.md", run_id=self.run_id)

    def close(self) -> None:
        """Do nothing: the run is the caller's."""

    def __repr__(self) -> str:
        return f"MLflow({self.run_id!r})"


def _needed(package: str, called: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{called} needs the package {package}, which does not load here ({error}); "
            f"{how_to_install(EXTRA)}",
            name=package,
        ) from error
