from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.devices import Simulated
from gradwire.experiments.a2dtwp.options import POLICIES
from gradwire.experiments.a2dtwp.policies import Recorded, policy_named
from gradwire.training.offload import awp
from gradwire.training.offload.host_offload import HostOffload
from gradwire.training.offload.policies import Static


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_its_bits(name: str) -> None:
    bits = {"fp32": 32, "bf16": 16, "awp": 8, "delta": 16, "delta:fp32": 32}
    found = policy_named(name, threshold=0.0, interval=3).observe([1.0, 2.0])
    assert found == [bits.get(name) or int(name.removeprefix("static:"))] * 2


def test_bf16_rounds_to_nearest_and_leaves_biases_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    policy = policy_named("bf16", threshold=0.0, interval=1)
    offload = HostOffload(model, optimizer, policy, device=Simulated(prompt=True))
    offload.wait()
    for master, replica in zip(model.parameters(), offload.replica.parameters(), strict=True):
        wanted = master.bfloat16().float() if master.dim() > 1 else master
        assert torch.equal(replica, wanted)
    offload.close()


def test_norms_are_kept_and_the_policy_decides() -> None:
    adaptive = awp.AWP(threshold=0.5, interval=1)
    recorded, norms = Recorded(adaptive), [[1.0, 1.0], [1.0, 2.0], [1.0, 2.0]]
    assert [recorded.observe(row) for row in norms] == [[8, 8], [16, 8], [24, 16]]
    assert recorded.norms == norms
    assert Recorded(Static(16)).observe([1.0]) == [16]
