from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated
from support.inference_ranks import PLAIN, WITHIN
from sync.conformance.test_inference_mode import Door, offloaded


@pytest.mark.parametrize("policy", ["static:8", "delta", "awp"])
def test_an_offload_to_a_device_trains_on(policy: str) -> None:
    def train(door: Door) -> nn.Module:
        device = Simulated()
        with Kernels(device):
            return offloaded(policy, door, device)

    assert all(map(torch.equal, train(WITHIN).parameters(), train(PLAIN).parameters()))
