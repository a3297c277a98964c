"""Forward passes that backward computes again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradwire.errors import SpecError
from gradwire.offload.host_offload import HostOffload


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_pass_that_backward_computes_again_loses_no_gradient(reentrant: bool) -> None:
    model, x = nn.Linear(3, 3), torch.ones(1, 3, requires_grad=True)
    expected = copy.deepcopy(model)
    offload = HostOffload(model, torch.optim.SGD(model.parameters(), lr=0.1), "static:32", device="cpu")
    for run in (expected, offload):
        hidden = checkpoint(run, x, use_reentrant=reentrant)
        backward(checkpoint(run, hidden, use_reentrant=reentrant).square().sum())
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)
    offload.close()


def test_a_gradient_that_comes_twice_is_no_reason_to_step_twice() -> None:
    model, x = nn.Linear(3, 3), torch.ones(1, 3, requires_grad=True)
    offload = HostOffload(
        model, torch.optim.SGD(model.parameters(), lr=0.1), "static:32", device="cpu", step_in_backward=True
    )
    with pytest.raises(SpecError, match="expected each gradient once in a backward pass"):
        backward(offload(checkpoint(offload, x, use_reentrant=True)).sum())
    offload.close()
