"""The networks against table I: layers, kernels, and proportions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire_lab.experiments.a2dtwp.models import FULL_SIDE, Shape, blocks_of, build

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
        model = build(name, Shape(200, 1, norm=False), seed=0)
    convolutions, connected = TABLE_I[name]
    found = [each for each in model.modules() if isinstance(each, nn.Conv2d) and each.kernel_size != (1, 1)]
    assert [(each.out_channels, each.kernel_size[0]) for each in found] == convolutions
    assert [each.out_features for each in model.modules() if isinstance(each, nn.Linear)] == connected


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("name", TABLE_I)
def test_narrow_networks_take_images_and_train(name: str, norm: bool) -> None:
    model = build(name, Shape(10, 32, norm), seed=1)
    logits = model(torch.randn(4, 3, 32, 32))
    assert logits.shape == (4, 10)
    torch.autograd.backward(logits.square().sum())
    assert all(each.grad is not None and bool(each.grad.isfinite().all()) for each in model.parameters())
    again = build(name, Shape(10, 32, norm), seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_residual_blocks_have_names() -> None:
    assert len(blocks_of(build("resnet", Shape(10, 32, norm=True), seed=1))) == 3 + 4 + 6 + 3
    assert blocks_of(build("vgg", Shape(10, 32, norm=True), seed=1)) == []


def test_in_full_size_the_first_connected_layer_has_all_pixels() -> None:
    with torch.device("meta"):
        models = {name: build(name, Shape(200, 1, False, FULL_SIDE), seed=0) for name in TABLE_I}
        first = {
            name: next(each.in_features for each in model.modules() if isinstance(each, nn.Linear))
            for name, model in models.items()
        }
        assert first == {"alexnet": 6 * 6 * 256, "vgg": 7 * 7 * 512, "resnet": 512}
        for model in models.values():
            assert model(torch.randn(2, 3, FULL_SIDE, FULL_SIDE)).shape == (2, 200)


def test_the_first_weights_are_the_published_ones_or_hes() -> None:
    published, he = (build("alexnet", Shape(10, 8, norm=False), seed=1, he=he) for he in (False, True))
    for model in (published, he):
        layers = [each for each in model.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
        assert all(each.bias is not None and bool((each.bias == 0.1).all()) for each in layers)
        wanted = [0.1 if model is published else (2 / each.weight[0].numel()) ** 0.5 for each in layers]
        found = [float(each.weight.detach().std()) for each in layers]
        assert found == pytest.approx(wanted, rel=0.1)
    vgg = build("vgg", Shape(10, 32, norm=False), seed=1)
    assert all(bool((each == 0).all()) for name, each in vgg.named_parameters() if name.endswith("bias"))
    plain, normalised = (build("vgg", Shape(10, 32, norm), seed=1) for norm in (False, True))
    assert not any(isinstance(each, nn.BatchNorm2d) for each in plain.modules())
    assert any(isinstance(each, nn.BatchNorm2d) for each in normalised.modules())
