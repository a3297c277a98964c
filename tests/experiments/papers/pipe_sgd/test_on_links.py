from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradwire.experiments.papers.pipe_sgd.on_links import WAYS, Task, Trainee, Way, train
from gradwire.experiments.papers.processes import on_processes

COUNT = 10_000


def task(rank: int) -> Task:
    """A weight that gradients of 1 and 3 move, a float in a bucket of 40 kB."""
    model = torch.nn.Linear(COUNT, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    x = torch.full((1, COUNT), 1.0 + 2 * rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return Task(model, optimizer, lambda _step: model(x).sum(), lambda: float(model.weight.detach()[0, 0]))


@pytest.mark.parametrize("name", [*WAYS])
def test_each_way_applies_the_mean_gradient_of_all_steps(name: str) -> None:
    found = train(2, Trainee(WAYS[name], task, 4))
    assert found.accuracy == pytest.approx(-4 * 0.5 * 2.0, rel=0.02)
    assert found.step_s > 0


def test_steps_take_their_bytes_time_and_two_under_way_no_longer() -> None:
    # Two ranks exchange half of 40 kB twice, at 1 MB/s.
    alone = train(2, Trainee(Way("ring", "identity", 1), task, 6), nbytes_per_s=1e6)
    assert alone.step_s >= 0.95 * 0.04
    halved = train(2, Trainee(Way("ring", "truncate:16", 1), task, 6), nbytes_per_s=1e6)
    assert halved.step_s >= 0.95 * 0.02


def test_the_warm_up_is_synchronous() -> None:
    found = train(2, Trainee(WAYS["Pipe-SGD"], task, 6, warmup_steps=2))
    assert found.accuracy == pytest.approx(-6.0)


def test_the_rate_falls() -> None:
    found = train(2, Trainee(WAYS["D-Sync"], lambda rank: replace(task(rank), falls_at=2), 4))
    assert found.accuracy == pytest.approx(-(2 + 2 / 10))


@pytest.mark.processes
def test_processes_train_as_threads_do() -> None:
    trainee = Trainee(WAYS["D-Sync"], task, 3)
    assert train(2, trainee, on=on_processes).accuracy == train(2, trainee).accuracy
