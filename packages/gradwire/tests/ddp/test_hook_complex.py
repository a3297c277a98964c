"""DDP hands a complex parameter over as a real view of twice the length; plain DDP is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gradwire
from support import complex_ranks

Ranks = Callable[..., list[Any]]

pytestmark = pytest.mark.processes
WORLD = 2


@pytest.mark.parametrize("plan", ["identity", gradwire.Plan(algorithm="backend")])
def test_what_loses_nothing_has_the_bits_of_plain_ddp(plan: Any, run_processes: Ranks) -> None:
    plain = run_processes(WORLD, complex_ranks.trained, None, 4)
    ours = run_processes(WORLD, complex_ranks.trained, plan, 4)
    for mine, oracle in zip(ours, plain, strict=True):
        assert all(map(torch.equal, mine, oracle))


@pytest.mark.parametrize("plan", ["errbound:2^-8", "quantize:8", "fp16"])
def test_a_lossy_average_is_within_the_bound(plan: str, run_processes: Ranks) -> None:
    results = run_processes(WORLD, complex_ranks.averaged, plan)
    exact = sum(each["into"] for each in results) / WORLD
    error = results[0]["out"] - exact
    assert 0 < error.norm() < 0.01 * exact.norm()
    if plan.startswith("errbound"):
        assert error.abs().max() <= 3 * 2**-8  # of each of three steps
    assert torch.equal(results[0]["out"], results[1]["out"])


@pytest.mark.parametrize("plan", ["topk:0.3", gradwire.Plan.of("quantize:4", residual=True)])
def test_residuals_keep_what_is_lost(plan: Any, run_processes: Ranks) -> None:
    results = run_processes(WORLD, complex_ranks.averaged, plan)
    into = sum(each["into"] for each in results)
    out = WORLD * results[0]["out"]
    left = sum(each["left"] for each in results)
    assert left.abs().max() > 1e-4
    torch.testing.assert_close(out + left, into, rtol=0, atol=1e-5)


def test_auto_samples_and_decides(run_processes: Ranks) -> None:
    plain, ours = (run_processes(WORLD, complex_ranks.trained, plan, 12) for plan in (None, "auto"))
    for mine, oracle in zip(ours[0], plain[0], strict=True):
        torch.testing.assert_close(mine, oracle, rtol=0, atol=0.01)
    assert all(map(torch.equal, ours[0], ours[1]))
