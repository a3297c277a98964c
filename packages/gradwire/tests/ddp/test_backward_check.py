from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.ddp.checks import BackwardCheck, CopiedNotes
from gradwire.errors import AttachError, GradwireError
from support.fake_buckets import FakeBucket

X = torch.ones(2, 3)


class FakeSync:
    steps_done, given = 0, 0

    def __init__(self) -> None:
        self.context = SimpleNamespace(rank=1, is_over=False)

    def fail(self, error: GradwireError) -> GradwireError:
        self.given += 1
        return error


@pytest.fixture(autouse=True)
def _group() -> Iterator[None]:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _noted(model: nn.Module) -> tuple[BackwardCheck, Any]:
    sync: Any = FakeSync()
    check = BackwardCheck(sync, model.parameters())
    model.register_forward_hook(check)
    return check, sync


def test_a_pass_after_the_step_is_refused_if_it_reaches_a_parameter() -> None:
    model = nn.Linear(3, 2)
    _, sync = _noted(model)
    x = X.clone().requires_grad_()
    out = model(x)
    torch.autograd.backward(out.sum(), retain_graph=True)  # DDP waits for it
    sync.steps_done += 1
    torch.autograd.grad(out.sum(), x, retain_graph=True)
    torch.autograd.grad(out.sum(), list(model.parameters()), retain_graph=True)
    kept = _gradient(model)
    with pytest.raises(
        AttachError, match=r"rank 1: expected one backward pass after each forward pass.* within no_sync"
    ):
        torch.autograd.backward(out.sum(), retain_graph=True)
    assert torch.equal(_gradient(model), kept), "nothing was added"
    torch.autograd.backward(model(X).sum())  # another forward pass
    sync.context.is_over = True
    torch.autograd.backward(out.sum())  # the next forward pass tells why not


def _gradient(model: nn.Linear) -> torch.Tensor:
    assert model.weight.grad is not None
    return model.weight.grad.clone()


@pytest.mark.parametrize("grad", [True, False])
def test_a_pass_without_gradients_or_synchronisation_is_not_noted(grad: bool) -> None:
    model = nn.Linear(3, 2)
    _, sync = _noted(model)
    model.require_backward_grad_sync = False  # type: ignore[assignment]
    with torch.set_grad_enabled(grad):
        out = model(X)
    sync.steps_done += 1
    if grad:
        torch.autograd.backward(out.sum())


def test_outputs_are_found_wherever_they_are() -> None:
    class Nested(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {"loss": [super().forward(x)], "count": torch.ones(1), "weight": self.weight}

    model = Nested(3, 2)
    _, sync = _noted(model)
    out = model(X)
    sync.steps_done += 1
    with pytest.raises(AttachError, match="expected one backward pass after each forward pass"):
        torch.autograd.backward(out["loss"][0].sum())
    assert not model.weight._backward_hooks, "a leaf would keep every hook"


@dataclass
class Part:
    loss: torch.Tensor
    owner: object = None
    later: object = field(init=False)


def test_outputs_may_hold_each_other_or_be_unset() -> None:
    class Circular(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            part = Part(super().forward(x))
            part.owner = [part]
            return part, Part

    model = Circular(3, 2)
    _, sync = _noted(model)
    out, _ = model(X)
    sync.steps_done += 1
    with pytest.raises(AttachError, match="expected one backward pass after each forward pass"):
        torch.autograd.backward(out.loss.sum())


@pytest.mark.filterwarnings("error")
def test_an_output_can_be_saved() -> None:
    model = nn.Linear(3, 2)
    _noted(model)
    torch.save(model(X), io.BytesIO())


def test_what_is_added_within_no_sync_waits_for_the_next_average() -> None:
    model = nn.Linear(3, 2)
    _, sync = _noted(model)
    out = model(X)
    torch.autograd.backward(out.sum(), retain_graph=True)
    sync.steps_done += 1
    model.require_backward_grad_sync = False  # type: ignore[assignment]
    torch.autograd.backward(out.sum(), retain_graph=True)
    torch.autograd.backward((model(X) * out).sum(), retain_graph=True)  # as for states of earlier passes
    model.require_backward_grad_sync = True  # type: ignore[assignment]
    with pytest.raises(AttachError, match="expected one backward pass after each forward pass"):
        torch.autograd.backward(out.sum())


def test_a_parameter_that_a_hook_has_changed_ends_the_run() -> None:
    model = nn.Linear(3, 2)
    check, sync = _noted(model)
    model.weight.register_post_accumulate_grad_hook(lambda _: None)  # type: ignore[no-untyped-call]
    bucket = FakeBucket(0, torch.zeros(6), last=True, owners=[model.weight])
    for changes in (False, True):
        model(X)
        if changes:
            with torch.no_grad():
                model.weight.add_(1.0)
            with pytest.raises(
                AttachError,
                match=r"rank 1: expected parameters to change only after .*, got a parameter .* \(2, 3\)",
            ):
                check.check_unwritten(bucket)
        check.check_unwritten(FakeBucket(0, torch.zeros(2), owners=[model.bias]))
        if not changes:
            check.check_unwritten(bucket)
            with torch.no_grad():
                model.weight.add_(1.0)  # after its last bucket, as an optimizer does
            check.check_unwritten(bucket)
    assert sync.given == 1
    with torch.no_grad():
        model.weight.add_(1.0)
    model.require_backward_grad_sync = False  # type: ignore[assignment]
    model(X)  # DDP still waits for a backward pass, and averages that of this one
    check.check_unwritten(bucket)


def test_a_copy_notes_nothing_and_can_be_attached() -> None:
    model = DistributedDataParallel(nn.Linear(3, 1))
    with gradwire.attach(model, "fp16"):
        twin = copy.deepcopy(model)
        assert any(isinstance(each, CopiedNotes) for each in twin._forward_hooks.values())
        with gradwire.attach(twin, "fp16"):
            assert not any(isinstance(each, CopiedNotes) for each in twin._forward_hooks.values())
            torch.autograd.backward(twin(X).sum())
