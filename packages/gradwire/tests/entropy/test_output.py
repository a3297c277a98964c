"""Encoders write to the caller's memory, or to their own."""

from __future__ import annotations

import pytest
import torch

from gradwire.entropy.coder import filled_part
from gradwire.errors import TensorError


def write_three(out: torch.Tensor) -> int:
    out[:3] = torch.tensor([1, 2, 3])
    return 3


def test_front_of_new_memory_is_what_was_written() -> None:
    assert filled_part(None, 10, write_three).tolist() == [1, 2, 3]


def test_front_of_the_callers_memory_shares_it() -> None:
    out = torch.zeros(12, dtype=torch.uint8)
    front = filled_part(out, 10, write_three)
    assert front.data_ptr() == out.data_ptr()
    assert front.tolist() == [1, 2, 3]


def test_too_little_memory_is_refused_before_anything_is_written() -> None:
    out = torch.zeros(9, dtype=torch.uint8)
    with pytest.raises(TensorError, match="expected at least 10 bytes in out, got 9; allocate max_n"):
        filled_part(out, 10, write_three)
    assert out.sum() == 0
    with pytest.raises(TensorError, match=r"expected a 1-D contiguous torch\.uint8 tensor .* for out"):
        filled_part(torch.zeros(10), 10, write_three)
