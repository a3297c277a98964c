"""The bits of each batch, which are chosen on another thread."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from gradwire.offload.awp import AWP
from gradwire.offload.host_offload import HostOffload


def test_bits_by_batch_waits_for_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, may_observe = AWP(threshold=1.0, interval=1), threading.Event()
    observe = policy.observe
    monkeypatch.setattr(policy, "observe", lambda norms: may_observe.wait(5) and observe(norms))
    model = nn.Linear(3, 2)
    offload = HostOffload(model, torch.optim.SGD(model.parameters(), lr=0.1), policy, device="cpu")
    may_observe.set()
    offload(torch.ones(1, 3)).sum().backward()
    may_observe.clear()
    offload.optimizer.step()
    threading.Timer(0.05, may_observe.set).start()
    assert offload.bits_by_batch == [[8], [16]]
    offload.close()


def test_a_resumed_run_sends_in_the_bits_of_its_own_policy_at_once() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(30, 20), torch.randn(4, 30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    offload = HostOffload(model, optimizer, "static:8", device="cpu")
    coarse = offload(x).detach()
    saved = offload.state_dict()
    offload.close()
    offload = HostOffload(model, optimizer, "static:32", device="cpu")
    offload.load_state_dict(saved)
    exact = offload(x).detach()
    offload.close()
    assert torch.equal(exact, model(x))
    assert not torch.equal(exact, coarse)
