"""What DDP averages has its bits with gradwire; what it silently leaves unaveraged is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import gradwire
from gradwire.errors import GradwireError

Step = Callable[[DistributedDataParallel, int], None]
_STEPS = 3


class Chain(nn.Module):
    """Two stacks of layers; ``mode`` says what backward computes again."""

    def __init__(self, mode: str = "") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 16))
        self.second, self.mode = nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4)), mode

    def forward(self, x: torch.Tensor) -> Any:
        if self.mode == "branches":
            return self.first(x), {"second": [self.second(x)], "count": 3}
        hidden = self.first(x)
        return (
            checkpoint(self.second, hidden, use_reentrant=self.mode == "reentrant")
            if self.mode
            else (self.second(hidden))
        )


def _batch(step: int) -> torch.Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def _loss(model: Any, step: int) -> torch.Tensor:
    out: torch.Tensor = model(_batch(step))
    return out.square().mean()


def _usual(model: DistributedDataParallel, step: int) -> None:
    torch.autograd.backward(_loss(model, step))


def _two_forward_passes(model: DistributedDataParallel, step: int) -> None:
    torch.autograd.backward(_loss(model, step) + _loss(model, step + 50))


def _a_dropped_loss(model: DistributedDataParallel, step: int) -> None:
    _loss(model, step + 50)
    _usual(model, step)


def _evaluation_with_gradients(model: DistributedDataParallel, step: int) -> None:
    model.eval()
    _loss(model, step)
    _loss(model.module, step)
    model.train()  # type: ignore[no-untyped-call]
    _usual(model, step)


def _accumulated(model: DistributedDataParallel, step: int) -> None:
    with model.no_sync():
        loss = _loss(model, step)
        torch.autograd.backward(loss, retain_graph=True)
        torch.autograd.backward(loss)
    _usual(model, step + 50)


def _penalty(model: DistributedDataParallel, step: int) -> None:
    x = _batch(step).requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.autograd.backward(out.square().mean() + slope.square().mean())


def _saliency(model: DistributedDataParallel, step: int) -> None:
    x = _batch(step).requires_grad_()
    out = model(x)
    torch.autograd.backward(out.square().mean(), retain_graph=True)
    torch.autograd.grad(out.sum(), x, retain_graph=True)
    torch.autograd.grad(out.sum(), list(model.parameters()))


def _branches(model: DistributedDataParallel, step: int) -> None:
    first, rest = model(_batch(step))
    torch.autograd.backward(first.square().mean())
    torch.autograd.backward(rest["second"][0].square().mean())


def _stand_ins(model: DistributedDataParallel, step: int) -> None:
    doubled = {name: 2.0 * each for name, each in model.named_parameters()}
    out = torch.func.functional_call(model, doubled, (_batch(step),))
    torch.autograd.backward(out.square().mean())


def _clipped(model: DistributedDataParallel, step: int) -> None:
    _usual(model, step)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def _watched(model: DistributedDataParallel, step: int) -> None:
    every: list[Any] = list(model.parameters())
    handles = [each.register_post_accumulate_grad_hook(lambda _: None) for each in every]
    handles += [each.register_hook(lambda gradient: 2 * gradient) for each in every]
    _usual(model, step)
    for handle in handles:
        handle.remove()


def _twice(model: DistributedDataParallel, step: int) -> None:
    loss = _loss(model, step)
    torch.autograd.backward(loss, retain_graph=True)
    torch.autograd.backward(0.5 * loss)


def _forward_twice_then_backward_twice(model: DistributedDataParallel, step: int) -> None:
    losses = _loss(model, step), _loss(model, step + 50)
    for loss in losses:
        torch.autograd.backward(loss)


def _assigned(model: DistributedDataParallel, step: int) -> None:
    state = {name: each.clone() for name, each in model.module.state_dict().items()}
    model.module.load_state_dict(state, assign=True)
    _usual(model, step)
    with torch.no_grad():
        for each in model.parameters():
            if each.grad is not None:
                each.sub_(0.1 * each.grad)


def _stepped_in_hooks(model: DistributedDataParallel, step: int) -> None:
    def update(parameter: torch.Tensor) -> None:
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        optimizer.step()
        optimizer.zero_grad()

    every: list[Any] = list(model.parameters())
    handles = [each.register_post_accumulate_grad_hook(update) for each in every]
    try:
        _usual(model, step)
    finally:
        for handle in handles:
            handle.remove()


FINE: dict[str, tuple[Step, str, dict[str, Any]]] = {
    "usual": (_usual, "", {}),
    "two forward passes": (_two_forward_passes, "", {}),
    "a dropped loss": (_a_dropped_loss, "", {}),
    "evaluation with gradients": (_evaluation_with_gradients, "", {}),
    "accumulated": (_accumulated, "", {}),
    "gradient penalty": (_penalty, "", {}),
    "saliency": (_saliency, "", {}),
    "branches": (_branches, "branches", {}),
    "stand-ins": (_stand_ins, "", {}),
    "clipped": (_clipped, "", {}),
    "watched by hooks": (_watched, "", {}),
    "static graph": (_usual, "", {"static_graph": True}),
    "static graph, reentrant": (_usual, "reentrant", {"static_graph": True}),
    "unused parameters": (_usual, "", {"find_unused_parameters": True}),
    "views of buckets": (_usual, "", {"gradient_as_bucket_view": True}),
    "checkpoint": (_usual, "checkpoint", {}),
    "reentrant checkpoint": (_usual, "reentrant", {}),
    "join": (_usual, "", {}),
}
"""Uses with which DDP averages all gradients: the step, the model's mode, and DDP's options."""

UNAVERAGED: dict[str, Step] = {
    "two backward passes": _twice,
    "two forward, then two backward passes": _forward_twice_then_backward_twice,
    "assigned": _assigned,
    "stepped in hooks": _stepped_in_hooks,
}
"""Uses with which DDP leaves gradients as they are on each rank, and says nothing."""


def weights(name: str, plan: str | None) -> tuple[torch.Tensor, str]:
    """Return the weights after some steps and the error that ended them; plan None is plain DDP."""
    use, mode, options = FINE[name] if name in FINE else (UNAVERAGED[name], "", {})
    model = DistributedDataParallel(Chain(mode), bucket_cap_mb=0.002, **options)
    attached = None if plan is None else gradwire.attach(model, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = _STEPS + (dist.get_rank() if name == "join" else 0)
    said = ""
    try:
        with model.join() if name == "join" else nullcontext():
            for step in range(steps):
                optimizer.zero_grad()
                use(model, step)
                optimizer.step()
    except GradwireError as error:
        said = f"{type(error).__name__}: {error}"
    if attached is not None:
        attached.close()
    return nn.utils.parameters_to_vector(model.parameters()).detach(), said


Ranks = Callable[..., list[Any]]
pytestmark = pytest.mark.processes


@pytest.mark.parametrize("name", FINE)
def test_what_ddp_averages_has_its_bits(name: str, run_processes: Ranks) -> None:
    plain, ours = (run_processes(2, weights, name, plan) for plan in (None, "identity"))
    assert torch.equal(plain[0][0], plain[1][0]), "DDP averages it"
    for (oracle, _), (mine, said) in zip(plain, ours, strict=True):
        assert said == ""
        assert torch.equal(mine, oracle)


@pytest.mark.parametrize("name", UNAVERAGED)
def test_what_ddp_leaves_unaveraged_is_refused(name: str, run_processes: Ranks) -> None:
    plain, ours = (run_processes(2, weights, name, plan) for plan in (None, "fp16"))
    assert not torch.equal(plain[0][0], plain[1][0]), "DDP says nothing"
    for _, said in ours:
        assert said.startswith("AttachError: ")
        assert "average" in said
