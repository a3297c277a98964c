"""Payloads whose sizes only the device knows: as many bytes cross to pinned memory, 128 bits at a time."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.launch import ceil_div, launch
from gradwire.gpu.words import put, take

_SIZE = 8192


@triton.jit
def carry_kernel(source, target, nbytes, SIZE: tl.constexpr):
    """Copy SIZE bytes a program, of ``nbytes``."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    left = tl.load(nbytes) - start
    at = tl.arange(0, SIZE)
    if left >= SIZE:
        put(target + start, at, take(source + start, at, at < left, True), at < left, True)
    elif left > 0:
        put(target + start, at, take(source + start, at, at < left, False), at < left, False)


def queue_carry(source: torch.Tensor, target: torch.Tensor, nbytes: torch.Tensor) -> None:
    """Queue the copy of so many bytes, an int64 on the device, into memory that has the capacity."""
    launch(carry_kernel, ceil_div(source.numel(), _SIZE), *(source, target, nbytes), SIZE=_SIZE)
