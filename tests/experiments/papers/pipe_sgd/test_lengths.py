from __future__ import annotations

import pytest
import torch

from gradwire.experiments.papers.pipe_sgd.lengths import Options, cells, mean, pipelines, slope, slopes, train

ROWS = [
    {"pipeline": pipeline, "steps": steps, "seed": seed, "loss": pipeline * seed / steps**2}
    for pipeline in (2, 1)
    for steps in (10, 1000, 100)
    for seed in (1, 3)
]


def test_the_slope_is_that_of_the_line() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2)


def test_slopes_are_those_of_the_means_over_seeds() -> None:
    assert pipelines(ROWS) == [2, 1]
    assert mean(ROWS, "loss", 2, 10) == pytest.approx(0.04)
    assert slopes(ROWS, "loss") == {"K = 2": pytest.approx(-2), "K = 1": pytest.approx(-2)}


def test_there_is_a_cell_for_each_k_length_and_seed() -> None:
    found = cells(Options((1, 2), (10, 20), (3,)))
    assert [(cell["pipeline"], cell["steps"], cell["seed"]) for cell in found] == [
        (1, 10, 3),
        (1, 20, 3),
        (2, 10, 3),
        (2, 20, 3),
    ]


@pytest.mark.parametrize("pipeline", [1, 2])
def test_all_gradients_are_applied_with_k_under_way(pipeline: int) -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    asked: list[int] = []
    train(model, optimizer, {"pipeline": pipeline, "steps": 5}, lambda: model.weight.sum(), asked.append)
    assert asked == [0, 1, 2, 3, 4]
    assert model.weight.item() == -5
