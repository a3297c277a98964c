from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from gradwire.errors import ExchangeError, LinkError
from gradwire.experiments.claim import Claim, Published, Verdict
from gradwire.experiments.papers.pipe_sgd.lengths import (
    WORKERS,
    Options,
    Worker,
    behind,
    cells,
    drawn,
    pipelines,
    rates,
    slope,
    slopes,
    train,
    values,
)

LENGTHS = (10, 100, 1000)


def rows(*powers: float, pipeline: int = 1) -> list[dict[str, float]]:
    """Return a loss that falls as a power of the length, for each seed another one."""
    return [
        {"pipeline": pipeline, "steps": steps, "seed": seed, "loss": seed * steps**power}
        for seed, power in enumerate(powers, start=1)
        for steps in LENGTHS
    ]


def found(*powers: float) -> list[Claim]:
    return [*rates(rows(*powers), "loss", "slope", Published("here", -0.5), 0.1)]


def test_the_slope_is_that_of_the_line() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2)


def test_there_is_a_slope_for_each_seed() -> None:
    both = rows(-0.5, -0.6, pipeline=2) + rows(-1.0)
    assert pipelines(both) == [1, 2]
    assert values(both, "loss", 2, 10) == pytest.approx([10**-0.5, 2 * 10**-0.6])
    assert slopes(both, "loss", 2) == pytest.approx([-0.5, -0.6])
    assert slopes(both, "loss", 1) == pytest.approx([-1.0])


def test_a_rate_is_judged_from_both_sides_by_its_own_interval() -> None:
    # Three slopes with a standard deviation of 0.01: 4.30 x 0.01 / sqrt(3) = 0.025.
    rate, width = found(-0.50, -0.51, -0.52)
    assert (rate.wanted.least, rate.wanted.most) == pytest.approx((-0.5248, -0.4752), abs=1e-4)
    assert (rate.verdict, width.verdict) == (Verdict.REPRODUCED, Verdict.REPRODUCED)


def test_neither_a_steeper_loss_nor_a_flatter_one_is_reproduced() -> None:
    assert found(-0.67, -0.68, -0.69)[0].verdict is Verdict.NOT_REPRODUCED
    assert found(-0.44, -0.45, -0.46)[0].verdict is Verdict.NOT_REPRODUCED
    assert found(0.0, 0.0, 0.0)[0].verdict is Verdict.NOT_REPRODUCED, "a dead training"


def test_scatter_wins_nothing() -> None:
    """Half of the interval is 0.25, within which the published slope is."""
    for slopes_found in ((-0.4, -0.5, -0.59), (-0.42, -0.5, -0.61)):
        rate, width = found(*slopes_found)
        assert rate.verdict is Verdict.NOT_REPRODUCED
        assert width.verdict is Verdict.NOT_REPRODUCED
    assert found(-0.5)[1].verdict is Verdict.NOT_REPRODUCED, "one seed has no interval"


def test_each_length_and_k_is_compared_with_k_of_1() -> None:
    both = rows(-0.5, -0.5) + [
        row | {"loss": 3 * row["loss"]} for row in rows(-0.5, -0.5, pipeline=4) if row["steps"] > 10
    ]
    both += [row | {"loss": 5 * row["loss"]} for row in rows(-0.5, -0.5, pipeline=4) if row["steps"] == 10]
    assert behind(both, "loss", math.sqrt) == pytest.approx(
        {"K = 4, T = 10": 2.5, "K = 4, T = 100": 1.5, "K = 4, T = 1000": 1.5}
    )


def test_there_is_a_cell_for_each_k_seed_and_length() -> None:
    given = cells(Options((1, 2), (10, 20), (3,)))
    assert [(cell["pipeline"], cell["steps"], cell["seed"]) for cell in given] == [
        (1, 10, 3),
        (1, 20, 3),
        (2, 10, 3),
        (2, 20, 3),
    ]


def learner(asked: list[tuple[int, int]], seen: list[list[float]]) -> Callable[[int], Worker]:
    """Return workers whose gradients average to 1.5; note the weights at each step."""

    def worker(rank: int) -> Worker:
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)

        def loss() -> torch.Tensor:
            seen[rank].append(model.weight.item())
            return rank * model.weight.sum()

        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        return Worker(model, optimizer, loss, lambda step: asked.append((rank, step)))

    return worker


@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_four_workers_apply_their_average_k_steps_later(pipeline: int) -> None:
    asked: list[tuple[int, int]] = []
    seen: list[list[float]] = [[] for _ in range(WORKERS)]
    workers = train(pipeline, 5, learner(asked, seen))
    assert sorted(asked) == [(rank, step) for rank in range(4) for step in range(5)]
    assert [next(worker.model.parameters()).item() for worker in workers] == [-7.5] * 4
    stale = [-1.5 * max(0, step - (pipeline - 1)) for step in range(5)]
    assert seen == [stale] * 4


def test_the_first_error_of_a_worker_ends_all() -> None:
    def worker(rank: int) -> Worker:
        if rank == 1:
            raise LinkError("rank 1 is gone")
        return learner([], [[] for _ in range(WORKERS)])(rank)

    with pytest.raises((LinkError, ExchangeError), match="rank 1"):
        train(1, 2, worker)


def test_each_worker_draws_numbers_of_its_own() -> None:
    drawings = {
        (seed, rank): torch.rand(1, generator=drawn(seed, rank)).item() for seed in (1, 2) for rank in (0, 1)
    }
    assert len({*drawings.values()}) == 4
    assert torch.rand(1, generator=drawn(1, 0)).item() == drawings[1, 0]
    assert not math.isnan(drawings[1, 0])
