from __future__ import annotations

import pytest
import torch

from gradwire.autotune.steps import joined, shares, stretch


@pytest.mark.parametrize(
    ("counts", "most", "wanted"),
    [([3, 4], 7, [3, 4]), ([300, 100, 1], 40, [29, 9, 0]), ([], 5, []), ([10], 1, [1])],
)
def test_every_tensor_has_its_share(counts: list[int], most: int, wanted: list[int]) -> None:
    assert shares(counts, most) == wanted
    assert sum(wanted) <= most


def test_a_stretch_is_a_copy_from_the_middle() -> None:
    values = torch.arange(10.0).view(5, 2).t()
    found = stretch(values, 4)
    assert found.tolist() == values.reshape(-1)[3:7].tolist()
    found.zero_()
    assert values.sum() == 45
    assert stretch(values, 99).tolist() == values.reshape(-1).tolist()
    assert stretch(values.to_sparse(), 2).numel() == 2


def test_excerpts_of_one_step_are_float32_on_the_host() -> None:
    found = joined([torch.ones(2, dtype=torch.bfloat16), torch.zeros(1)])
    assert (found.tolist(), found.dtype) == ([1.0, 1.0, 0.0], torch.float32)
