"""The loss-prediction experiment: its cells, its tasks, and its table."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch

from gradwire.errors import GradwireError
from gradwire.tables import Table, lines
from gradwire_lab.experiments import loss_prediction


def words(**given: object) -> argparse.Namespace:
    usual = {"hosts": 2, "rates": "1gbit", "tasks": "mlp", "codecs": "quantize:8"}
    return argparse.Namespace(**{**usual, **given})


def row(codec: str, pipeline: int, to_loss_s: float, predicted_s: float) -> Any:
    return {
        "hosts": 2,
        "rate": "1gbit",
        "task": "mlp",
        "codec": codec,
        "pipeline": pipeline,
        "exact_steps": 100,
        "step_s": 0.1,
        "extra": 0.1,
        "to_loss_s": to_loss_s,
        "predicted_step_s": 0.11,
        "predicted_extra": 0.05,
        "predicted_deviation": 0.02,
        "predicted_to_loss_s": predicted_s,
    }


def test_the_exact_training_comes_first() -> None:
    options = loss_prediction.EXPERIMENT.read(words(tasks="gpt,mlp", rates="1gbit,100mbit"))
    cells = loss_prediction.cells(options)
    first, second, third, *_ = [(each["codec"], each["pipeline"]) for each in cells]
    assert (first, second, third) == (("identity", 1), ("identity", 2), ("quantize:8", 1))
    assert len(cells) == 2 * 2 * 2 * 2
    assert loss_prediction.plan_of(cells[3]).pipeline == 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"tasks": "resnet"}, "expected --tasks from mlp, cnn, gpt, got 'resnet'"),
        ({"codecs": "zip"}, "unknown codec 'zip'"),
        ({"hosts": 1}, "at least 2 hosts"),
    ],
)
def test_a_mistake_is_one_sentence(given: dict[str, object], reason: str) -> None:
    with pytest.raises(GradwireError, match=reason):
        loss_prediction.EXPERIMENT.read(words(**given))


@pytest.mark.parametrize("name", loss_prediction.TASKS)
def test_a_task_can_be_trained(name: str) -> None:
    task = loss_prediction.task_of(name, 1, 4)
    loss = task.loss(task.model, next(task.batches))
    gradients = torch.autograd.grad(loss, list(task.model.parameters()))
    assert all(bool(each.isfinite().all()) for each in gradients)
    assert sum(each.numel() for each in gradients) < 400_000
    assert task.held_out_loss(task.model) > 0.1


def test_the_table_says_how_far_off_predictions_and_choices_are() -> None:
    rows = [
        row("identity", 1, 10.0, 11.0),
        row("quantize:8", 1, 5.0, 4.0),
        row("ecsq:2", 1, 4.0, 6.0),
        row("quantize:8", 2, 3.0, 3.3),
        row("ecsq:2", 2, 10.0, 9.0),
    ]
    found = loss_prediction.table(rows)
    text = "\n".join(lines(*found))
    assert "mlp, 2 hosts at 1gbit: exact DDP needs 100 steps" in text
    table = next(each for each in found if isinstance(each, Table))
    assert table.rows[0][-1] == "+10.0"
    assert table.rows[-1][-1] == "-10.0"
    told = " ".join(text.split())
    assert "Error of 5 predicted times to loss: median 10.0 % (goal: 15 %), largest 50.0 %." in told
    assert "1 of 2 choices by prediction are within 5 % of the best plan." in told
