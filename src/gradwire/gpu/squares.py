"""Bounds relative to a root mean square, which is summed in the host's order: 16 lanes, then as a tree.

Floating-point sums depend on their order. The host adds element i of a block to lane i mod 16, so that here a
block's lanes are added one after the other, too, and blocks side by side.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.launch import ceil_div, launch, signed, words_of
from gradwire.gpu.words import INFINITY, MAGNITUDE, float_of

_LONGEST = 65536
"""Values whose sum is made in one go (kSquaresBlock)."""


@triton.jit
def _fold(lanes, ROWS: tl.constexpr, HALF: tl.constexpr):
    low, high = tl.split(tl.trans(tl.reshape(lanes, (ROWS, 2, HALF)), (0, 2, 1)))
    return low + high


@triton.jit
def longest_row(n, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Return how long the longest of the blocks of this program is: shorter than BLOCK in a short chunk."""
    return tl.minimum(n - tl.program_id(0).to(tl.int64) * ROWS * BLOCK, BLOCK).to(tl.int32)


@triton.jit
def sum_rows(x, n, row, BLOCK: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr, FULL: tl.constexpr):
    """Return the sums of the squares of the finite values of ROWS blocks, and how many values are.

    AHEAD times 16 values of each block are on their way at a time.
    """
    lane = tl.arange(0, 16)[None, :]
    lanes = tl.zeros([ROWS, 16], tl.float64)
    count = tl.zeros([ROWS, 16], tl.int32)
    for at in range(0, BLOCK if FULL else longest_row(n, BLOCK, ROWS), 16 * AHEAD):
        for each in tl.static_range(AHEAD):
            value = row[:, None] * BLOCK + at + 16 * each + lane
            if FULL:
                words = tl.load(x + value)
            else:
                words = tl.load(x + value, mask=value < n, other=INFINITY).to(tl.uint32)
            finite = (words & MAGNITUDE) < INFINITY
            number = float_of(tl.where(finite, words, 0).to(tl.uint32)).to(tl.float64)
            lanes += number * number
            count += finite.to(tl.int32)
    eight = _fold(lanes, ROWS, 8)
    two = _fold(_fold(eight, ROWS, 4), ROWS, 2)
    total = tl.sum(two, axis=1)  # of two values: their order doesn't matter
    return total, tl.sum(count, axis=1).to(tl.int64)


@triton.jit
def sum_kernel(x, n, sums, counts, blocks, BLOCK: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr):
    """Sum up ROWS blocks a program."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    total, count = sum_rows(x, n, row, BLOCK, ROWS, AHEAD, False)
    tl.store(sums + row, total, mask=row < blocks)
    tl.store(counts + row, count, mask=row < blocks)


@triton.jit
def add_up_kernel(sums, counts, blocks):
    """Add up the blocks of a chunk, in their order, into the first."""
    total = tl.load(sums)
    count = tl.load(counts)
    for block in range(1, blocks):
        total += tl.load(sums + block)
        count += tl.load(counts + block)
    tl.store(sums, total)
    tl.store(counts, count)


@triton.jit
def exponent_of_share(total, count, share):
    """Return the largest power of two that is not above share * RMS, as a biased exponent; share is bits."""
    mean = total / tl.maximum(count, 1).to(tl.float64)
    rms = tl.sqrt(mean) * float_of(share.to(tl.uint32, bitcast=True)).to(tl.float64)
    exponent = ((rms.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - 1023 + 127
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    return tl.where(total > 0.0, exponent, 1)


@triton.jit(do_not_specialize=["share"])
def exponents_kernel(sums, counts, share, head, blocks, SIZE: tl.constexpr):
    """Write the exponents of SIZE blocks a program."""
    block = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    total = tl.load(sums + block, mask=block < blocks, other=0.0)
    count = tl.load(counts + block, mask=block < blocks, other=1)
    exponent = exponent_of_share(total, count, share)
    tl.store(head + block, exponent.to(tl.uint8), mask=block < blocks)


def rows_of(length: int) -> int:
    """Return how many blocks of this length a program of one warp sums up."""
    return max(min(2048 // length, 32), 1)


def ahead_of(length: int, rows: int) -> int:
    """Return AHEAD for these blocks: 16 loads a thread at most."""
    return max(min(length, 256) // 16 // max(rows // 2, 1), 1)


def relative_exponents(x: torch.Tensor, head: torch.Tensor, share: int, block: int) -> None:
    """Queue what writes the exponent of each block; of the chunk, if that is one block.

    ``share`` is the bits of a float.
    """
    n = x.numel()
    length = min(block, _LONGEST) if head.numel() > 1 or n <= _LONGEST else _LONGEST
    length = triton.next_power_of_2(length)
    blocks = ceil_div(n, length)
    sums = torch.empty(blocks, dtype=torch.float64, device=x.device)
    counts = torch.empty(blocks, dtype=torch.int64, device=x.device)
    rows = rows_of(length)
    launch(
        sum_kernel,
        ceil_div(blocks, rows),
        *(words_of(x), n, sums, counts, blocks),
        warps=1,
        BLOCK=length,
        ROWS=rows,
        AHEAD=ahead_of(length, rows),
    )
    if head.numel() < blocks:
        launch(add_up_kernel, 1, *(sums, counts, blocks), warps=1)
    written = head.numel()
    named = sums, counts, signed(share), head, written
    launch(exponents_kernel, ceil_div(written, 256), *named, SIZE=256)
