"""DDP hands a complex parameter over as a real view of twice the length; plain DDP is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from support.saved_residuals import residuals_in

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
    kept = residuals_in(attached.state_dict())
    named = [name for name, each in Spectrum().named_parameters() if each.dtype != torch.complex128]
    left = torch.cat([kept[name] for name in named]).double() if kept else torch.zeros(())
    attached.close()
    return {"into": into, "out": out, "left": left}


Ranks = Callable[..., list[Any]]

pytestmark = pytest.mark.processes
WORLD = 2


@pytest.mark.parametrize("plan", ["identity", gradwire.Plan(algorithm="backend")])
def test_what_loses_nothing_has_the_bits_of_plain_ddp(plan: Any, run_processes: Ranks) -> None:
    plain = run_processes(WORLD, trained, None, 4)
    ours = run_processes(WORLD, trained, plan, 4)
    for mine, oracle in zip(ours, plain, strict=True):
        assert all(map(torch.equal, mine, oracle))


@pytest.mark.parametrize("plan", ["errbound:2^-8", "quantize:8", "fp16"])
def test_a_lossy_average_is_within_the_bound(plan: str, run_processes: Ranks) -> None:
    results = run_processes(WORLD, averaged, plan)
    exact = sum(each["into"] for each in results) / WORLD
    error = results[0]["out"] - exact
    assert 0 < error.norm() < 0.01 * exact.norm()
    if plan.startswith("errbound"):
        assert error.abs().max() <= 3 * 2**-8  # of each of three steps
    assert torch.equal(results[0]["out"], results[1]["out"])


@pytest.mark.parametrize("plan", ["topk:0.3", gradwire.Plan.of("quantize:4", residual=True)])
def test_residuals_keep_what_is_lost(plan: Any, run_processes: Ranks) -> None:
    results = run_processes(WORLD, averaged, plan)
    into = sum(each["into"] for each in results)
    out = WORLD * results[0]["out"]
    left = sum(each["left"] for each in results)
    assert left.abs().max() > 1e-4
    torch.testing.assert_close(out + left, into, rtol=0, atol=1e-5)


def test_auto_samples_and_decides(run_processes: Ranks) -> None:
    plain, ours = (run_processes(WORLD, trained, plan, 12) for plan in (None, "auto"))
    for mine, oracle in zip(ours[0], plain[0], strict=True):
        torch.testing.assert_close(mine, oracle, rtol=0, atol=0.01)
    assert all(map(torch.equal, ours[0], ours[1]))
