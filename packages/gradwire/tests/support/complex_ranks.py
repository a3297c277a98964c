"""What the processes of the tests of complex parameters run."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

WIDTH = 24


class Spectrum(nn.Module):
    """Real weights, complex ones in single and double precision, and a complex bias."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.before, self.after = nn.Linear(16, 15), nn.Linear(WIDTH, 3)
        self.weight = nn.Parameter(torch.randn(15, WIDTH, dtype=torch.complex64) / 5)
        self.bias = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64) / 5)
        self.wide = nn.Parameter(torch.randn(4, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.before(x).to(torch.complex64) @ self.weight + self.bias
        out: torch.Tensor = self.after(hidden.abs()) + self.wide.abs().square().sum().float()
        return out


def _loss(model: nn.Module, step: int) -> torch.Tensor:
    seed = 1000 * step + dist.get_rank()
    out: torch.Tensor = model(torch.randn(8, 16, generator=torch.Generator().manual_seed(seed)))
    return out.square().mean()


def _wrapped(plan: Any) -> tuple[DistributedDataParallel, Any]:
    model = DistributedDataParallel(Spectrum(), bucket_cap_mb=0.002)
    return model, None if plan is None else gradwire.attach(model, plan)


def _flat(model: nn.Module) -> torch.Tensor:
    """Return the gradients of complex64 and float32 parameters as floats."""
    narrow = [each for each in model.parameters() if each is not _wide(model)]
    found = [each.grad for each in narrow if each.grad is not None]
    return torch.cat([(torch.view_as_real(g) if g.is_complex() else g).reshape(-1) for g in found])


def _wide(model: nn.Module) -> nn.Parameter | None:
    return next((each for each in model.parameters() if each.dtype == torch.complex128), None)


def trained(plan: Any, steps: int) -> list[torch.Tensor]:
    """Return the weights after some steps; None is plain DDP."""
    model, attached = _wrapped(plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(_loss(model, step))
        optimizer.step()
    if attached is not None:
        attached.check_replicas()
        attached.close()
    return [each.detach().clone() for each in model.parameters()]


def averaged(plan: Any) -> dict[str, torch.Tensor]:
    """Return the gradients of three steps at the same weights: this rank's, all ranks', and what is left."""
    model, attached = _wrapped(plan)
    into = out = torch.zeros(())
    for step in range(3):
        local = Spectrum()
        torch.autograd.backward(_loss(local, step))
        model.zero_grad()
        torch.autograd.backward(_loss(model, step))
        into, out = into + _flat(local).double(), out + _flat(model).double()
    kept = attached.state_dict()["residuals"]
    named = [name for name, each in Spectrum().named_parameters() if each.dtype != torch.complex128]
    left = torch.cat([kept[name] for name in named]).double() if kept else torch.zeros(())
    attached.close()
    return {"into": into, "out": out, "left": left}
