"""Layers that live on the device: split by bytes, moved there and back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gradwire.devices import device_of
from gradwire.errors import SpecError
from gradwire.offload.layers import layers_of
from gradwire.offload.replicas import Residents, split_layers
from gradwire_lab.simulated_device.simulated import Simulated


def model_of_four() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, width, bias=False) for width in (8, 1, 2, 5)))  # 32, 4, 8, 20 of 64


@pytest.mark.parametrize(
    ("fraction", "on_device"),
    [
        (1, ""),
        (1.0, ""),
        (0.95, ""),
        (0.9, "1"),
        (0.8, "12"),
        (0.5, "0"),
        (0.4, "01"),
        (0.31, "012"),
        (0, "0123"),
    ],
)
def test_the_first_layers_that_fit_are_the_device_s(fraction: float, on_device: str) -> None:
    model = model_of_four()
    hosts, residents = split_layers(layers_of(model, copy.deepcopy(model)), fraction)
    assert "".join(each.name for each in residents) == on_device
    assert {each.name for each in (*hosts, *residents)} == set("0123")


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), True, "1", None])
def test_a_wrong_fraction_is_refused(fraction: object) -> None:
    with pytest.raises(SpecError, match="expected a number from 0 to 1 for fraction, got"):
        split_layers([], fraction)  # type: ignore[arg-type]


def test_masters_and_the_optimizer_s_state_move_there_and_back() -> None:
    device, model = Simulated(), model_of_four()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    replica = device.adopt(copy.deepcopy(model))
    layers = layers_of(model, replica)[:2]
    homes = [each.replicas[0] for each in layers]
    residents = Residents(layers, optimizer, device)
    for number, master in enumerate(model.parameters()):
        there = device if number < 2 else device_of(torch.zeros(1))
        state = optimizer.state[master]
        assert device_of(master) is device_of(state["exp_avg"]) is device_of(state["exp_avg_sq"]) is there
        assert not state["step"].dim()
        assert (replica.get_submodule(str(number)).weight is master) == (number < 2)
    optimizer.load_state_dict(before[1])
    assert device_of(optimizer.state[layers[0].masters[0]]["exp_avg"]) is device
    residents.close()
    assert [replica.get_submodule(name).weight for name in "01"] == homes
    for master in model.parameters():
        assert device_of(master) is device_of(optimizer.state[master]["exp_avg"]) is device_of(torch.zeros(1))
    torch.testing.assert_close(model.state_dict(), before[0], rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], before[1]["state"], rtol=0, atol=0)
