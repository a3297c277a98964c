"""The networks against table I: layers, kernels, and proportions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.experiments.a2dtwp.models import blocks_of, build

TABLE_I = {
    "alexnet": ([(64, 11), (192, 5), (384, 3), (384, 3), (256, 3)], [4096, 4096, 4096, 200]),
    "vgg": ([(width, 3) for width in (64, 128, 256, 256, 512, 512, 512, 512)], [4096, 4096, 200]),
    "resnet": (
        [(64, 7), *[(64, 3)] * 6, *[(128, 3)] * 8, *[(256, 3)] * 12, *[(512, 3)] * 6],
        [200],
    ),
}


@pytest.mark.parametrize("name", TABLE_I)
def test_the_layers_are_those_of_table_1(name: str) -> None:
    with torch.device("meta"):
        model = build(name, 200, 1, seed=0)
    convolutions, connected = TABLE_I[name]
    found = [each for each in model.modules() if isinstance(each, nn.Conv2d) and each.kernel_size != (1, 1)]
    assert [(each.out_channels, each.kernel_size[0]) for each in found] == convolutions
    assert [each.out_features for each in model.modules() if isinstance(each, nn.Linear)] == connected


@pytest.mark.parametrize("name", TABLE_I)
def test_narrow_networks_take_images_and_train(name: str) -> None:
    model = build(name, 10, 32, seed=1)
    logits = model(torch.randn(4, 3, 32, 32))
    assert logits.shape == (4, 10)
    torch.autograd.backward(logits.square().sum())
    assert all(each.grad is not None and bool(each.grad.isfinite().all()) for each in model.parameters())
    again = build(name, 10, 32, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_residual_blocks_have_names() -> None:
    assert len(blocks_of(build("resnet", 10, 32, seed=1))) == 3 + 4 + 6 + 3
    assert blocks_of(build("vgg", 10, 32, seed=1)) == []
