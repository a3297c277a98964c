from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire import _native
from gradwire.gpu import feedback
from support import gpu_cases
from support.gpu_builds import TARGETS, build, recorded

HOWS = {
    feedback.LOOK: _native.Pass.LOOK,
    feedback.ADD: _native.Pass.ADD,
    feedback.SUBTRACT: _native.Pass.SUBTRACT,
    feedback.ADOPT: _native.Pass.ADOPT,
}


def check_pass(how: int, borders: list[int], start: int, x: torch.Tensor, y: torch.Tensor) -> None:
    """Compare one pass with the host's: bits, sums, and whether something is not finite."""
    at = torch.tensor(borders)
    rows = 3 if how in (feedback.SUBTRACT, feedback.ADOPT) else 1
    wanted, sums = torch.rand(2, rows, len(borders) - 1, dtype=torch.float64)
    sums.copy_(wanted)
    nonfinite = torch.zeros(1, dtype=torch.int32)
    here, beside = x.clone(), y.clone()
    feedback.queue_pass(how, here, beside, nonfinite, start, at, sums)
    if rows == 3:
        _native.sum_norms(_native.Pass.LOOK, x, x, start, at, wanted[1])
        _native.sum_norms(_native.Pass.LOOK, y, y, start, at, wanted[2])
    total = _native.sum_norms(HOWS[how], x, y, start, at, wanted[0])
    if how in (feedback.SUBTRACT, feedback.ADOPT):
        assert bool(nonfinite) == (not math.isfinite(total))
    torch.testing.assert_close(sums, wanted, rtol=1e-12, atol=0.0, equal_nan=True)
    for found, expected in ((here, x), (beside, y)):
        finite = expected.isfinite()  # which NaN a difference is, nobody uses
        gpu_cases.assert_same_bits(found[finite], expected[finite], f"pass {how}")
        assert not found[~finite].isfinite().any()


def check_passes(how: int) -> None:
    for borders, start, n in (([0, 5, 5, 900, 2200, 2500], 0, 2500), ([0, 3000], 100, 2048), ([0, 0], 0, 0)):
        check_pass(how, borders, start, gpu_cases.gradient(n), gpu_cases.gradient(n, 1))
    n = 1100
    check_pass(how, [0, 10, n], 0, gpu_cases.gradients_of_layers(n), gpu_cases.gradient(n).clamp(-1, 1))


@pytest.mark.parametrize("how", HOWS)
def test_passes_are_those_of_the_host(interpreted: Callable[..., Any], how: int) -> None:
    interpreted(check_passes, how)


def check_keeping() -> None:
    n = 1500
    for bad in (0, 1):
        residual, lost = gpu_cases.gradients_of_layers(n), gpu_cases.gradient(n)
        wanted = torch.nan_to_num(residual, posinf=0.0, neginf=0.0) if bad else lost.clone()
        feedback.queue_keep(residual, lost, torch.tensor([bad], dtype=torch.int32))
        gpu_cases.assert_same_bits(residual, wanted, f"kept, {bad=}")


def test_a_residual_is_kept_or_replaced(interpreted: Callable[..., Any]) -> None:
    interpreted(check_keeping)


def passes() -> None:
    x, y, word = torch.empty(1 << 20), torch.empty(1 << 20), torch.zeros(1, dtype=torch.int32)
    sums = torch.zeros(3, 4, dtype=torch.float64)
    feedback.queue_pass(feedback.ADOPT, x, y, word, 0, torch.zeros(5).long(), sums)
    feedback.queue_keep(x, y, word)


def test_they_compile_as_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    found = recorded(passes, monkeypatch)
    for name in ("pass_kernel", "keep_kernel", "add_up_kernel"):
        for target in TARGETS:
            built = build(found[name], TARGETS[target], tmp_path)
            where = f"{name} {target}: {built.registers} registers"
            assert built.spilled == 0, where
            assert built.registers <= 128, where
            assert ".ftz" not in built.assembly, where
            assert name == "add_up_kernel" or built.widest == {"load", "store"}, where
