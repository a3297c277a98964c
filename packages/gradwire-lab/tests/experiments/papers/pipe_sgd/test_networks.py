from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire_lab.experiments.papers.pipe_sgd.tasks import networks_build as build


@pytest.mark.parametrize(("name", "convolutions", "linear"), [("AlexNet", 5, 3), ("ResNet-18", 20, 1)])
def test_depths_are_those_published(name: str, convolutions: int, linear: int) -> None:
    model = build(name, 8, 10, 0)
    kinds = [type(module) for module in model.modules()]
    # ResNet-18's 17 on the way, and those of three shortcuts where the shape changes.
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (convolutions, linear)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert build(name, 28, 10, 0)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_weights_depend_on_the_seed_alone() -> None:
    one, same, other = (build("AlexNet", 8, 10, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
