"""The final pass over a sum: the division by the number of ranks, and the check for non-finite values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.words import (
    INFINITY,
    MAGNITUDE,
    QUIET,
    bits_of,
    ceil_div,
    float_of,
    is_nan,
    launch,
    put,
    take,
    words_of,
)

_SIZE = 1024


@triton.jit
def _finish_part(x, left, nonfinite, RANKS, SIZE, FULL):
    at = tl.arange(0, SIZE)
    words = take(x, at, at < left, FULL)
    if RANKS > 1:
        sums = float_of(tl.where(is_nan(words), 0, words).to(tl.uint32))
        quotients = bits_of(tl.div_rn(sums, tl.full([SIZE], RANKS, tl.float32)))
        words = tl.where(is_nan(words), words | QUIET, quotients).to(tl.uint32)
        put(x, at, words, at < left, FULL)
    if tl.max(((words & MAGNITUDE) >= INFINITY).to(tl.int32), axis=0) > 0:
        tl.store(nonfinite, 1)


@triton.jit
def finish_kernel(x, n, nonfinite, RANKS: tl.constexpr, SIZE: tl.constexpr):
    """Divide and check SIZE values per program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if n - start >= SIZE:
        _finish_part(x + start, n - start, nonfinite, RANKS, SIZE, True)
    else:
        _finish_part(x + start, n - start, nonfinite, RANKS, SIZE, False)


def queue_finish(x: torch.Tensor, ranks: int, nonfinite: torch.Tensor) -> None:
    """Queue the division of float32 by ``ranks``; ``nonfinite`` (int32) becomes 1 for a non-finite value.

    The quotients have the host's bits. Torch on a GPU multiplies by the inverse instead, which rounds twice.
    """
    n = x.numel()
    launch(finish_kernel, ceil_div(n, _SIZE), *(words_of(x), n, nonfinite), RANKS=ranks, SIZE=_SIZE)


# Payloads of sizes known only on the device: their bytes are copied to pinned memory, 128 bits at a time.

_CARRY_SIZE = 8192


@triton.jit
def carry_kernel(source, target, nbytes, SIZE: tl.constexpr):
    """Copy SIZE bytes per program, ``nbytes`` in total."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    left = tl.load(nbytes) - start
    at = tl.arange(0, SIZE)
    if left >= SIZE:
        put(target + start, at, take(source + start, at, at < left, True), at < left, True)
    elif left > 0:
        put(target + start, at, take(source + start, at, at < left, False), at < left, False)


def queue_carry(source: torch.Tensor, target: torch.Tensor, nbytes: torch.Tensor) -> None:
    """Queue the copy of ``nbytes`` (int64 on the device); ``target`` has room for all of ``source``."""
    launch(carry_kernel, ceil_div(source.numel(), _CARRY_SIZE), *(source, target, nbytes), SIZE=_CARRY_SIZE)
