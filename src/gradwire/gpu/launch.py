"""Start kernels: the one place that knows how."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_turn: AbstractContextManager[object] = Lock() if _INTERPRETED else nullcontext()
"""Triton's interpreter has one state, so that threads take turns."""


def launch(kernel: Any, programs: int, *args: Any, warps: int = 4, **constants: Any) -> None:
    """Queue a kernel on the current stream. No product may be fused with a sum: the host's are not."""
    if programs:
        with _turn:
            kernel[(programs,)](*args, num_warps=warps, enable_fp_fusion=False, **constants)


def words_of(x: torch.Tensor) -> torch.Tensor:
    """Return float32 as the 32-bit words that kernels see; also bytes, at a multiple of 4."""
    return x.view(torch.uint32)


def ceil_div(n: int, size: int) -> int:
    """Return how many parts of ``size`` cover ``n``."""
    return -(-n // size)


def signed(word: int) -> int:
    """Return 32 bits as the number that kernels take, whatever its size: with a sign."""
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)
