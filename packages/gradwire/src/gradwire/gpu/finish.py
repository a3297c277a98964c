"""The end of a sum over ranks: the division by their number, and the check that all values are finite."""

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
    """Divide SIZE values per program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if n - start >= SIZE:
        _finish_part(x + start, n - start, nonfinite, RANKS, SIZE, True)
    else:
        _finish_part(x + start, n - start, nonfinite, RANKS, SIZE, False)


def queue_finish(x: torch.Tensor, ranks: int, nonfinite: torch.Tensor) -> None:
    """Queue the division of float32 by ``ranks``, which sets an int32 to 1 if a value is not finite.

    The quotients are those of the host. On a GPU torch multiplies by the inverse of a number instead, which
    rounds twice.
    """
    n = x.numel()
    launch(finish_kernel, ceil_div(n, _SIZE), *(words_of(x), n, nonfinite), RANKS=ranks, SIZE=_SIZE)


# Payloads whose sizes only the device knows: their bytes cross to pinned memory, 128 bits at a time.

_CARRY_SIZE = 8192


@triton.jit
def carry_kernel(source, target, nbytes, SIZE: tl.constexpr):
    """Copy SIZE bytes per program, of ``nbytes``."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    left = tl.load(nbytes) - start
    at = tl.arange(0, SIZE)
    if left >= SIZE:
        put(target + start, at, take(source + start, at, at < left, True), at < left, True)
    elif left > 0:
        put(target + start, at, take(source + start, at, at < left, False), at < left, False)


def queue_carry(source: torch.Tensor, target: torch.Tensor, nbytes: torch.Tensor) -> None:
    """Queue the copy of ``nbytes``, an int64 on the device, into memory with room for all of ``source``."""
    launch(carry_kernel, ceil_div(source.numel(), _CARRY_SIZE), *(source, target, nbytes), SIZE=_CARRY_SIZE)
