"""Sums of squares by ranges against NumPy's, on all targets and for any number of threads."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from gradwire import _native
from gradwire._native import Pass

LARGE = 400_001


def on_all_targets(
    how: Pass, x: torch.Tensor, y: torch.Tensor, start: int, borders: list[int]
) -> tuple[torch.Tensor, torch.Tensor, list[float], float]:
    """Return x, y, sums and their total; the same bits on every target and for every number of threads."""
    found = []
    for name in _native.available_targets():
        for threads in ("1", "3"):
            with pytest.MonkeyPatch.context() as patch, _native.use_target(name):
                patch.setenv("GRADWIRE_THREADS", threads)
                ours, others = x.clone(), y.clone()
                sums = torch.zeros(len(borders) - 1, dtype=torch.float64)
                total = _native.sum_norms(how, ours, others, start, torch.tensor(borders), sums)
            found.append((ours, others, sums.tolist(), total))
    for ours, others, listed, total in found[1:]:
        assert torch.equal(ours.view(torch.int32), found[0][0].view(torch.int32))
        assert torch.equal(others.view(torch.int32), found[0][1].view(torch.int32))
        assert str((listed, total)) == str(found[0][2:])  # NaN, too
    return found[0]


def squares(x: torch.Tensor, start: int, borders: list[int]) -> list[float]:
    values = x.numpy().astype(np.float64) ** 2
    parts = [(max(a - start, 0), max(b - start, 0)) for a, b in pairwise(borders)]
    return [math.fsum(values[a:b].tolist()) for a, b in parts]


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 1000, LARGE])
@pytest.mark.parametrize("start", [0, 5])
def test_every_pass_does_and_sums_what_it_says(n: int, start: int) -> None:
    generator = torch.Generator().manual_seed(n)
    x, y = torch.randn(2, n, generator=generator)
    end = start + n
    borders = [*sorted({0, start // 2, end // 7, end // 3, end // 3 + 1, end}), end]  # an empty one, too
    lost = x - y
    for how, ours, others, squared in (
        (Pass.LOOK, x, y, x),
        (Pass.ADD, x + y, y, x),
        (Pass.SUBTRACT, x, lost, lost),
        (Pass.ADOPT, y, lost, lost),
    ):
        found_x, found_y, sums, total = on_all_targets(how, x, y, start, borders)
        assert torch.equal(found_x, ours)
        assert torch.equal(found_y, others)
        assert sums == pytest.approx(squares(squared, start, borders), rel=1e-12)
        assert total == pytest.approx(sum(sums), rel=1e-12)


def test_a_sum_is_finite_where_all_values_are() -> None:
    huge = torch.full((70_000,), torch.finfo(torch.float32).max)
    borders = [0, 35_000, 70_000]
    *_, sums, total = on_all_targets(Pass.LOOK, huge, huge, 0, borders)
    assert sums == pytest.approx([35_000 * float(huge[0]) ** 2] * 2)
    assert math.isfinite(total)
    for value in (math.inf, -math.inf, math.nan):
        huge[69_999] = value
        *_, sums, total = on_all_targets(Pass.LOOK, huge, huge, 0, borders)
        assert [math.isfinite(each) for each in (*sums, total)] == [True, False, False]


def test_the_smallest_values_count() -> None:
    least = torch.full((3,), 2.0**-149)
    *_, sums, _ = on_all_targets(Pass.LOOK, least, least, 0, [0, 3])
    assert sums == [3 * 2.0**-298]


def test_without_ranges_there_is_a_total() -> None:
    x = torch.arange(5.0)
    assert _native.sum_norms(Pass.LOOK, x, x) == 30.0


def test_sums_are_added_to() -> None:
    x, sums = torch.ones(4), torch.tensor([10.0, 20.0], dtype=torch.float64)
    _native.sum_norms(Pass.LOOK, x, x, 0, torch.tensor([0, 1, 4]), sums)
    assert sums.tolist() == [11.0, 23.0]
