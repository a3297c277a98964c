"""The tasks: equal weights on all ranks, batches by rank and seed, and a loss that training lowers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from gradwire_lab.experiments import auto
from gradwire_lab.experiments.auto.runs import COLUMNS, TASKS
from gradwire_lab.experiments.tasks import TrainingTask


def made(name: str, rank: int = 0, seed: int = 1) -> TrainingTask:
    return TASKS[name](rank, seed, None, None)


def test_the_experiment_names_them() -> None:
    assert set(auto.TASKS) == set(TASKS)


@pytest.mark.parametrize("name", TASKS)
def test_ranks_begin_with_equal_weights_and_have_batches_of_their_own(name: str) -> None:
    tasks = [made(name), made(name), made(name, rank=1), made(name, seed=2)]
    for first, second in pairwise(tasks[:3]):
        for ours, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(first.held_out[0], second.held_out[0])
    own, again, of_rank, of_seed = (next(each.batches)[0] for each in tasks)
    assert torch.equal(own, again)
    assert not torch.equal(own, of_rank)
    assert not torch.equal(own, of_seed)


@pytest.mark.parametrize("name", TASKS)
def test_steps_lower_the_held_out_loss(name: str) -> None:
    task = made(name)
    optimizer = task.optimizer(task.model)
    before = task.held_out_loss(task.model)
    for _ in range(12):
        optimizer.zero_grad()
        task.loss(task.model, next(task.batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert task.held_out_loss(task.model) < before


def test_the_columns_of_the_table_have_scales_of_their_own() -> None:
    rows, _ = made("table").held_out
    deviations = rows.std(0)
    assert len(deviations) == COLUMNS
    assert float(deviations[-1] / deviations[0]) == pytest.approx(1000, rel=0.1)
