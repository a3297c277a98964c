from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.offload.host_offload import HostOffload
from gradwire_lab.experiments.a2dtwp.options import AWP_FORMATS, POLICIES, TIMED
from gradwire_lab.experiments.a2dtwp.trainee import policy_named
from gradwire_lab.simulated_device.simulated import Simulated


@pytest.mark.parametrize("name", dict.fromkeys([*POLICIES, *TIMED]))
def test_every_policy_has_its_bits(name: str) -> None:
    policy = policy_named(name, interval=3, watched=2)
    bits = {"fp32": 32, "bf16": 16, "awp": 32, "delta": 16, "delta:fp32": 32, **AWP_FORMATS}
    wanted = [bits.get(name) or int(name.removeprefix("static:"))] * 2
    assert policy.observe([1.0, 2.0]) == wanted
    assert policy.observe([1.0, 0.5]) == wanted
    assert policy.wants_norms is name.startswith("awp")


def test_bf16_rounds_to_nearest_and_leaves_biases_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = policy_named("bf16")
    offload = HostOffload(model, optimizer, policy, device=Simulated(prompt=True))
    offload.wait()
    for master, replica in zip(model.parameters(), offload.replica.parameters(), strict=True):
        wanted = master.bfloat16().float() if master.dim() > 1 else master
        assert torch.equal(replica, wanted)
    offload.close()
