from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from support import gpu_cases

LENGTH = 256
SHARE = 0.25


def oracle(x: torch.Tensor) -> int:
    """Return the exponent that the sums of native/kernels/errbound_scalar.cc give, with shorter blocks."""
    finite = np.where(np.isfinite(x.numpy()), x.numpy(), 0).astype(np.float64)
    total = 0.0
    for first in range(0, finite.size, LENGTH):
        lanes = np.zeros(16)
        for index, value in enumerate(finite[first : first + LENGTH]):
            lanes[index % 16] += value * value
        while lanes.size > 1:
            lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
        total += float(lanes[0])
    return math.frexp(SHARE * math.sqrt(total / int(x.isfinite().sum())))[1] - 1 + 127


def check_a_chunk_of_several_sums() -> None:
    from gradwire.gpu import code_sizes as squares  # imports Triton, which here is the interpreter

    squares._LONGEST = LENGTH
    for n in (LENGTH, 3 * LENGTH + 100):
        x, head = gpu_cases.gradients_of_layers(n), torch.zeros(1, dtype=torch.uint8)
        squares.relative_exponents(x, head, int(np.float32(SHARE).view(np.int32)), n)
        assert int(head) == oracle(x)
    squares._LONGEST = 65536


def test_a_chunk_of_several_sums(interpreted: Callable[..., Any]) -> None:
    interpreted(check_a_chunk_of_several_sums)
