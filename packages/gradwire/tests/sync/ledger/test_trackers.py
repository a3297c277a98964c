"""Weights & Biases and MLflow, by what they are called with; modules of theirs aren't installed for tests."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gradwire.autotune.decision import Decision
from gradwire.errors import MissingPackageError, SpecError
from gradwire.plan import Plan
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.sinks import MLflow, Sink, TensorBoard, WandB
from support.ledgers import SMALL


class Run:
    """What ``wandb.init`` returns, as far as a ledger calls it."""

    name = "swift-1"

    def __init__(self) -> None:
        self.logged: list[dict[str, Any]] = []
        self.defined: list[tuple[str, str | None]] = []

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.defined.append((name, step_metric))

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)


class Tracking(ModuleType):
    """The module ``mlflow``, as far as a ledger calls it."""

    def __init__(self, active: str | None) -> None:
        super().__init__("mlflow")
        self.active = active
        self.metrics: list[tuple[dict[str, float], int, str]] = []
        self.texts: list[tuple[str, str, str]] = []

    def active_run(self) -> Any:
        return None if self.active is None else SimpleNamespace(info=SimpleNamespace(run_id=self.active))

    def log_metrics(self, metrics: dict[str, float], step: int, run_id: str) -> None:
        self.metrics.append((metrics, step, run_id))

    def log_text(self, text: str, artifact_file: str, run_id: str) -> None:
        self.texts.append((text, artifact_file, run_id))


class Writer:
    """TensorBoard's writer."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[str, float]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.steps.setdefault(step, {})[tag] = value


def two_steps(sink: Sink) -> dict[int, dict[str, float]]:
    """Let a ledger count two steps, and return what TensorBoard gets of them."""
    writer = Writer()
    ledger = Ledger(0, [sink, TensorBoard(writer)])
    for step in (1, 2):
        ledger.exchanged("bucket <1>", SMALL)
        if step == 2:
            ledger.decided(2, Decision(Plan.of("quantize:8"), 0.5, 1.25, 0.25, "quantize:8 over ring"))
        ledger.end_step()
    ledger.close()
    assert ledger.summary().lost_sinks == ()
    return writer.steps


def test_a_step_is_one_call_of_the_run_with_the_figures_of_tensorboard() -> None:
    run = Run()
    wanted = two_steps(WandB(run))
    assert run.defined == [("gradwire/step", None), ("gradwire/*", "gradwire/step")]
    assert len(run.logged) == 2
    text = run.logged[1].pop("gradwire/plan")
    assert "quantize:8 over ring" in text
    assert [each.pop("gradwire/step") for each in run.logged] == [1, 2]
    assert run.logged == [wanted[1], wanted[2]]
    assert "gradwire/bucket__1_/ratio" in wanted[1]
    assert repr(WandB(run)) == "WandB('swift-1')"


def test_a_step_is_one_call_of_mlflow_with_the_same_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Tracking("abc")
    monkeypatch.setitem(sys.modules, "mlflow", module)
    wanted = two_steps(MLflow())
    assert module.metrics == [(wanted[1], 1, "abc"), (wanted[2], 2, "abc")]
    ((text, name, run_id),) = module.texts
    assert "quantize:8 over ring" in text
    assert (name, run_id) == ("gradwire/plan-2.md", "abc")
    assert repr(MLflow("other")) == "MLflow('other')"


def test_buckets_may_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module, run = Tracking("abc"), Run()
    monkeypatch.setitem(sys.modules, "mlflow", module)
    two_steps(WandB(run, buckets=False))
    two_steps(MLflow("run-7", buckets=False))
    assert not any("bucket" in tag for tag in run.logged[0])
    assert not any("bucket" in tag for tag in module.metrics[0][0])
    assert module.metrics[0][2] == "run-7"


def test_the_active_run_of_weights_and_biases_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    run, module = Run(), ModuleType("wandb")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    two_steps(WandB())
    assert len(run.logged) == 2


def test_without_a_run_it_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("wandb")
    module.run = None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.setitem(sys.modules, "mlflow", Tracking(None))
    with pytest.raises(SpecError, match=r"call wandb.init\(\) first"):
        WandB()
    with pytest.raises(SpecError, match=r"call mlflow.start_run\(\) first"):
        MLflow()
    with pytest.raises(SpecError, match=r"expected a run of wandb.init\(\), got 'mine'"):
        WandB("mine")


def test_what_is_not_installed_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    for make in (WandB, MLflow):
        with pytest.raises(
            MissingPackageError, match=r"needs the package \w+, .*'\./packages/gradwire\[trackers\]' in"
        ):
            make()


def test_a_tracker_that_fails_stops_no_training() -> None:
    class Broken(Run):
        def log(self, _values: dict[str, Any]) -> None:
            raise ConnectionError("no network")

    ledger = Ledger(0, [WandB(Broken())])
    for _ in range(2):
        ledger.exchanged("bucket", SMALL)
        ledger.end_step()
    assert ledger.summary().lost_sinks == ("WandB('swift-1') failed in step 1 and was dropped: no network",)
