"""Parameters that are frozen or unfrozen in the middle of training are so on the devices, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import gradwire

X = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
Forward = Callable[[int, torch.Tensor], torch.Tensor]


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    return model


def train(model: nn.Sequential, optimizer: torch.optim.Optimizer, forward: Forward, devices: int) -> None:
    for step in range(8):
        if step == 2:
            model[0].requires_grad_(True)  # gradual unfreezing
        if step in (4, 6):
            model.get_parameter("2.weight").requires_grad_(step == 6)
        optimizer.zero_grad()
        parts = X.chunk(devices)
        torch.autograd.backward([forward(place, part).square().mean() for place, part in enumerate(parts)])
        optimizer.step()


@pytest.mark.parametrize(
    ("devices", "in_backward"), [(1, False), (1, True), (2, False)], ids=["one", "in backward", "two"]
)
def test_what_is_frozen_and_unfrozen_follows_on_each_device(devices: int, in_backward: bool) -> None:
    plain, model = make_model(), make_model()
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), lambda _, x: plain(x), devices)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    names = [f"cpu:{place}" for place in range(devices)]
    offload = gradwire.HostOffload(model, optimizer, "static:32", device=names, step_in_backward=in_backward)

    def forward(place: int, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = offload.replicas[place](x)
        return found

    train(model, optimizer, forward, devices)
    offload.close()
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(one, other)
