"""Blocks of floats, and the sums of their squares as the CPU adds them up."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def blocks(lanes: int, most_words: int = 9) -> list[Floats]:
    """Return blocks of whole words: of several scales, any bits, subnormals, infinities, zeros, and ones."""
    draw = np.random.default_rng(3)
    made = []
    for at in range(15):
        count = lanes * int(draw.integers(1, most_words))
        x = (draw.standard_normal(count) * 10.0 ** draw.integers(-20, 20)).astype(np.float32)
        if at % 5 == 1:
            x = draw.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
        if at % 5 == 2:  # subnormals, and what is just above them
            x = draw.integers(0, 1 << 24, count).astype(np.uint32).view(np.float32)
        if at % 5 == 3:
            x[::3] = np.inf
        if at % 5 == 4:
            x = np.full(count, at % 2, np.float32)
        made.append(x)
    return made


def sum_of(x: Floats) -> float:
    """Return the sum as the definition in native/kernels/errbound.h adds it up."""
    sums = [0.0] * 16
    for at, value in enumerate(map(float, x)):
        sums[at % 16] += value * value if math.isfinite(value) else 0.0
    for half in (8, 4, 2, 1):
        sums = [sums[at] + sums[at + half] for at in range(half)]
    return sums[0]
