"""Tensors that kernels must not see are refused before any address is taken."""

from __future__ import annotations

import pytest
import torch

from gradwire._native.tensors import check_tensor
from gradwire.errors import TensorError


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16])
def test_flat_tensors_pass(dtype: torch.dtype) -> None:
    check_tensor(torch.zeros(5, dtype=dtype), "x", dtype)
    check_tensor(torch.zeros(0, dtype=dtype), "x", dtype)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(4, dtype=torch.float64),
        torch.zeros(2, 2),
        torch.zeros(8)[::2],
        torch.zeros((), dtype=torch.float32),
        torch.zeros(4, device="meta"),
        torch._efficientzerotensor(4),
    ],
)
def test_others_are_refused_with_advice(wrong: torch.Tensor) -> None:
    with pytest.raises(TensorError, match=r"(?s)expected .*weights.*create flat = weights"):
        check_tensor(wrong, "weights", torch.float32)


def test_what_is_no_tensor_is_named() -> None:
    with pytest.raises(TensorError, match="expected a torch tensor for x, got a list"):
        check_tensor([1.0], "x", torch.float32)  # type: ignore[arg-type]
