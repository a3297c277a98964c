"""Trainings on the links of published systems: what is timed and evaluated, and how fast links are."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.offload.policies import Static
from gradwire_lab.experiments.a2dtwp.trainee import Learner, Trainee, link_rates, train_side_by_side


def trainee(*systems: str) -> Trainee:
    """Return a training of one weight, whose error is the weight."""
    masters = nn.Linear(1, 1, bias=False)
    nn.init.ones_(masters.weight)
    optimizer = torch.optim.SGD(masters.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    learner = Learner(
        masters,
        optimizer,
        schedule,
        lambda model, batch: (model(batch[0]) * batch[1]).sum(),
        lambda model: float(model(torch.ones(1, 1))),
    )
    return Trainee(learner, Static(32), systems)


def test_trainings_take_turns_on_the_links_and_are_evaluated_at_the_end() -> None:
    both = [trainee("x86", "power"), trainee("x86", "power")]
    batches = [(torch.ones(1, 1), torch.full((1, 1), 2.0**-number)) for number in range(6)]
    assert [*train_side_by_side(both, batches, 1e-9, 2)] == [2, 4, 5]
    for each in both:
        # A cycle begins with the update that the gradient of the batch before asks for.
        assert each.errors == [
            (count, 1 - sum(2.0**-number for number in range(count))) for count in (2, 4, 5)
        ]
        assert {name: len(each.compute_s(name)) for name in ("x86", "power")} == {"x86": 2, "power": 3}
        assert each.figures()["sizes"] == [1]
        each.close()


def test_links_have_the_published_proportions() -> None:
    # At the pace of the paper's own system, 1000 bytes take the paper's milliseconds.
    assert link_rates("x86", 0.16223, 1000) == pytest.approx((1000 / 0.15393, 1000 / 0.06851))
    assert link_rates("power", 2 * 0.08244, 1000) == pytest.approx((500 / 0.03912, 500 / 0.01734))
    assert link_rates("unlimited", 0.1, 1000) == (None, None)
