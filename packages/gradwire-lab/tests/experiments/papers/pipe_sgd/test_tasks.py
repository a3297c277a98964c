from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire_lab.experiments.papers.pipe_sgd import tasks as features
from gradwire_lab.experiments.papers.pipe_sgd.tasks import TASKS, RankTask, RankWork

OPTIONS: dict[str, Any] = {
    "steps": 20,
    "batch": 40,
    "momenta": [0.0, 0.9],
    "lrs": [0.3, 0.1],
    "lr": 0.2,
    "warmup": 0.1,
}
CELL = {"kind": "train", "data": "digits", "momentum": 0.9, "seed": 3, "network": "AlexNet"}


def task(name: str, worker: int = 0, workers: int = 1) -> RankTask:
    return TASKS[name](RankWork(OPTIONS, CELL, worker, workers))


@pytest.mark.parametrize("name", ["mnist-mlp", "small-network"])
def test_workers_share_a_batch_and_begin_alike(name: str) -> None:
    whole, one, other = task(name), task(name, 0, 2), task(name, 1, 2)
    both = (one.loss(5).item() + other.loss(5).item()) / 2
    assert both == pytest.approx(whole.loss(5).item(), rel=1e-4)
    assert one.loss(5).item() != other.loss(5).item()
    assert one.loss(5).item() != one.loss(6).item()


def test_a_rate_rises_to_that_of_the_momentum_and_falls() -> None:
    own = task("mnist-mlp")
    assert own.optimizer.defaults["momentum"] == 0.9
    assert max(map(own.rate, range(20))) == pytest.approx(0.1)
    assert own.rate(0) < own.rate(1) > own.rate(19) == own.rate(25)
    assert task("small-network").warmup_steps == 2


def test_a_task_learns() -> None:
    own = task("mnist-mlp")
    before = own.accuracy()
    for step in range(20):
        own.optimizer.zero_grad()
        own.loss(step).backward()  # type: ignore[no-untyped-call]
        for group in own.optimizer.param_groups:
            group["lr"] = own.rate(step)
        own.optimizer.step()
    assert own.accuracy() > max(before, 0.7)


def test_timed_steps_compute_the_features_that_trainings_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        images = SimpleNamespace(train_labels=torch.arange(80) % 10, classes=10)
        train = torch.randn(80, features.COUNT, generator=torch.Generator().manual_seed(0))
        passed = 0

        def of_images(self, own: torch.Tensor) -> torch.Tensor:
            self.passed += len(own)
            return self.train[own]

    known = Known()
    monkeypatch.setattr(features, "read", lambda _: known)
    trained = TASKS["last-layer"](RankWork(OPTIONS, CELL, 1, 2))
    timed = TASKS["last-layer"](RankWork(OPTIONS, {**CELL, "kind": "time"}, 1, 2))
    torch.nn.init.normal_(trained.model.weight)  # type: ignore[arg-type]
    timed.model.load_state_dict(trained.model.state_dict())
    assert torch.equal(trained.loss(1), timed.loss(1))
    assert known.passed == 20, "half of the batch passed the network"
