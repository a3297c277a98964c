"""Kernels that determine the code sizes of ``errbound``: error bounds, size classes, and byte counts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.words import (
    INFINITY,
    MAGNITUDE,
    bits_of,
    ceil_div,
    float_of,
    launch,
    power_of_two,
    signed,
    take,
    words_of,
)

# Bounds relative to a root mean square. Squares are summed in the host's order: 16 lanes, then a tree.
#
# Floating-point sums depend on their order. The host adds element i of a block to lane i mod 16. Therefore,
# these kernels also add a block's values to 16 lanes in order; only different blocks are processed in
# parallel. SHAPE is (BLOCK, ROWS, AHEAD): ROWS blocks of BLOCK values per program, of which AHEAD times 16
# values each are loaded at a time.

_LONGEST = 65536
"""The largest number of values in one sum (``kSquaresBlock`` of the native kernels)."""
SIZE = tl.constexpr(1024)
"""The number of values whose code bytes are counted, and encoded, together."""


@triton.jit
def _fold(lanes, ROWS, HALF):
    low, high = tl.split(tl.trans(tl.reshape(lanes, (ROWS, 2, HALF)), (0, 2, 1)))
    return low + high


@triton.jit
def longest_row(n, SHAPE):
    """Return the length of this program's longest block, which is less than BLOCK in a short chunk."""
    return tl.minimum(n - tl.program_id(0).to(tl.int64) * SHAPE[1] * SHAPE[0], SHAPE[0]).to(tl.int32)


@triton.jit
def sum_rows(x, n, row, SHAPE, FULL):
    """Return the sum of squares, and the number of finite values, for each of ROWS blocks."""
    lane = tl.arange(0, 16)[None, :]
    rows: tl.constexpr = SHAPE[1]
    ahead: tl.constexpr = SHAPE[2]
    lanes = tl.zeros([rows, 16], tl.float64)
    count = tl.zeros([rows, 16], tl.int32)
    for at in range(0, SHAPE[0] if FULL else longest_row(n, SHAPE), 16 * ahead):
        for each in tl.static_range(ahead):
            value = row[:, None] * SHAPE[0] + at + 16 * each + lane
            if FULL:
                words = tl.load(x + value)
            else:
                words = tl.load(x + value, mask=value < n, other=INFINITY).to(tl.uint32)
            finite = (words & MAGNITUDE) < INFINITY
            number = float_of(tl.where(finite, words, 0).to(tl.uint32)).to(tl.float64)
            lanes += number * number
            count += finite.to(tl.int32)
    two = _fold(_fold(_fold(lanes, rows, 8), rows, 4), rows, 2)
    total = tl.sum(two, axis=1)  # sums of two values don't depend on their order
    return total, tl.sum(count, axis=1).to(tl.int64)


@triton.jit
def sum_kernel(x, n, sums, counts, blocks, SHAPE: tl.constexpr):
    """Store the sums of squares and the counts of finite values of ROWS blocks per program."""
    row = tl.program_id(0).to(tl.int64) * SHAPE[1] + tl.arange(0, SHAPE[1])
    total, count = sum_rows(x, n, row, SHAPE, False)
    tl.store(sums + row, total, mask=row < blocks)
    tl.store(counts + row, count, mask=row < blocks)


@triton.jit
def add_up_kernel(sums, counts, blocks):
    """Add the sums and counts of a chunk's blocks, in order, to those of the first block."""
    total = tl.load(sums)
    count = tl.load(counts)
    for block in range(1, blocks):
        total += tl.load(sums + block)
        count += tl.load(counts + block)
    tl.store(sums, total)
    tl.store(counts, count)


@triton.jit
def exponent_of_share(total, count, share):
    """Return the biased exponent of the largest power of two up to share * RMS.

    ``share`` is a float's bits.
    """
    mean = total / tl.maximum(count, 1).to(tl.float64)
    rms = tl.sqrt(mean) * float_of(share.to(tl.uint32, bitcast=True)).to(tl.float64)
    exponent = ((rms.to(tl.int64, bitcast=True) >> 52) & 0x7FF).to(tl.int32) - 1023 + 127
    exponent = tl.minimum(tl.maximum(exponent, 1), 253)
    return tl.where(total > 0.0, exponent, 1)


@triton.jit(do_not_specialize=["share"])
def exponents_kernel(sums, counts, share, head, blocks):
    """Write the exponents of the error bounds of 256 blocks per program."""
    block = tl.program_id(0).to(tl.int64) * 256 + tl.arange(0, 256)
    total = tl.load(sums + block, mask=block < blocks, other=0.0)
    count = tl.load(counts + block, mask=block < blocks, other=1)
    exponent = exponent_of_share(total, count, share)
    tl.store(head + block, exponent.to(tl.uint8), mask=block < blocks)


def _shape(block: int) -> tuple[int, int, int]:
    """Return the constant SHAPE for programs of one warp, which limits the loads per thread to 16."""
    rows = max(min(2048 // block, 32), 1)
    return block, rows, max(min(block, 256) // 16 // max(rows // 2, 1), 1)


def relative_exponents(x: Tensor, head: Tensor, share: int, block: int) -> None:
    """Queue the kernels that write the exponent of each block's bound, or of the chunk's, to ``head``.

    ``share`` is a float's bits.
    """
    n, written = x.numel(), head.numel()
    length = min(block, _LONGEST) if written > 1 or n <= _LONGEST else _LONGEST
    shape = _shape(triton.next_power_of_2(length))
    blocks = ceil_div(n, shape[0])
    sums = torch.empty(blocks, dtype=torch.float64, device=x.device)
    counts = torch.empty(blocks, dtype=torch.int64, device=x.device)
    summed = words_of(x), n, sums, counts, blocks
    launch(sum_kernel, ceil_div(blocks, shape[1]), *summed, warps=1, SHAPE=shape)
    if written < blocks:
        launch(add_up_kernel, 1, sums, counts, blocks, warps=1)
    launch(exponents_kernel, ceil_div(written, 256), sums, counts, signed(share), head, written)


_COUNTED_AT_ONCE = (64, 128, 256, 512, 1024)
"""The block sizes for which one kernel computes both bounds and counts, as each program has whole blocks."""


@triton.jit
def exponents_at(head, start, at, n, EXPONENT, BLOCK, COUNT):
    """Return the biased exponents of COUNT values' error bounds, or one exponent that all values share."""
    if EXPONENT != 0:
        return tl.full([1], EXPONENT, tl.int32)
    elif BLOCK == 0:
        return tl.load(head + tl.zeros([1], tl.int32)).to(tl.int32)
    elif BLOCK >= COUNT:  # both are powers of two
        place = head + start // BLOCK + tl.zeros([1], tl.int32)
        return tl.load(place, mask=start < n, other=127).to(tl.int32)
    else:
        return tl.load(head + (start + at) // BLOCK, mask=at < n - start, other=127).to(tl.int32)


@triton.jit
def _first_above(code):
    """Return the bits of the smallest magnitude that rounds to more than ``code``, which is 0 or odd."""
    return bits_of(code.to(tl.float32) + 0.5).to(tl.int32, bitcast=True) + (code == 0).to(tl.int32)


@triton.jit
def coded(words, exponent):
    """Return sums whose low 16 bits are the codes, and whether each code takes at least 1, 2, and 4 bytes.

    The sizes are determined from the values before the addition rounds them.
    """
    scaled = float_of(words) * power_of_two(126 - exponent)
    magnitude = (bits_of(scaled) & MAGNITUDE).to(tl.int32, bitcast=True)
    # 2^(254 - E) times 2 bound is 2^128, which overflows a float.
    largest = (1 << tl.where(exponent > 238, 254 - exponent, 16)) - 1
    some = magnitude > 0x3F000000  # a half rounds to 0
    wide = magnitude >= _first_above(tl.minimum(127, largest))
    whole = magnitude >= _first_above(tl.minimum(32767, largest))
    return bits_of(scaled + 12582912.0), some, wide, whole


@triton.jit
def nbytes_of(some, wide, whole):
    """Return the size of each code: 0, 1, 2 or 4 bytes."""
    return some.to(tl.int32) + wide.to(tl.int32) + tl.where(whole, 2, 0)


@triton.jit
def _counted(some, wide, whole):
    """Return the size of each code in bytes, plus 2^16 if the size is 2 or more."""
    return some.to(tl.int32) + tl.where(wide, 0x10001, 0) + tl.where(whole, 2, 0)


@triton.jit
def _put_counts(totals, wides, program, count, inside):
    """Store a program's number of code bytes, and whether any of its codes takes 2 or more bytes."""
    tl.store(totals + program, (count & 0xFFFF).to(tl.int64), mask=inside)
    tl.store(wides + program, (count > 0xFFFF).to(tl.uint8), mask=inside)


@triton.jit
def count_kernel(x, head, n, totals, wides, EXPONENT: tl.constexpr, BLOCK: tl.constexpr):
    """Count the code bytes of SIZE values per program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, SIZE)
    there = at < n - start
    words = tl.load(x + start + at, mask=there, other=0)
    _, some, wide, whole = coded(words, exponents_at(head, start, at, n, EXPONENT, BLOCK, SIZE))
    _put_counts(totals, wides, tl.program_id(0), tl.sum(_counted(some, wide, whole), axis=0), True)


@triton.jit
def _bound_and_count(x, n, share, head, blocks, SHAPE, FULL):
    row = tl.program_id(0).to(tl.int64) * SHAPE[1] + tl.arange(0, SHAPE[1])
    total, count = sum_rows(x, n, row, SHAPE, FULL)
    exponent = exponent_of_share(total, count, share)
    tl.store(head + row, exponent.to(tl.uint8), mask=row < blocks)
    rows: tl.constexpr = SHAPE[1]
    ahead: tl.constexpr = SHAPE[2]
    many = tl.zeros([rows, 16], tl.int32)
    for at in range(0, SHAPE[0] if FULL else longest_row(n, SHAPE), 16 * ahead):
        for each in tl.static_range(ahead):
            value = row[:, None] * SHAPE[0] + at + 16 * each + tl.arange(0, 16)[None, :]
            _, some, wide, whole = coded(take(x, value, value < n, FULL), exponent[:, None])
            many += _counted(some, wide, whole)
    return tl.sum(many, axis=1)


@triton.jit(do_not_specialize=["share"])
def bound_and_count_kernel(x, n, share, head, blocks, totals, wides, programs, SHAPE: tl.constexpr):
    """Compute the bounds of ROWS blocks per program, and count their code bytes from the cached values."""
    length: tl.constexpr = SHAPE[0] * SHAPE[1]
    if n - tl.program_id(0).to(tl.int64) * length >= length:
        counts = _bound_and_count(x, n, share, head, blocks, SHAPE, True)
    else:
        counts = _bound_and_count(x, n, share, head, blocks, SHAPE, False)
    parts: tl.constexpr = length // SIZE
    program = tl.program_id(0) * parts + tl.arange(0, parts)
    counts = tl.sum(tl.reshape(counts, (parts, SIZE // SHAPE[0])), axis=1)
    _put_counts(totals, wides, program, counts, program < programs)


def queue_sizes(x: Tensor, head: Tensor, exponent: int, share: int, block: int) -> tuple[Tensor, Tensor]:
    """Queue the kernels that compute relative bounds and count code bytes.

    Return, for each group of ``SIZE`` values, the number of code bytes, and whether any code takes 2 or more
    bytes.
    """
    n, count = x.numel(), head.numel()
    programs = ceil_div(n, SIZE.value)
    totals = torch.empty(programs, dtype=torch.int64, device=x.device)
    wides = torch.empty(programs, dtype=torch.uint8, device=x.device)
    if block in _COUNTED_AT_ONCE:
        args, shape = (words_of(x), n, signed(share), head, count, totals, wides, programs), _shape(block)
        launch(bound_and_count_kernel, ceil_div(count, shape[1]), *args, warps=1, SHAPE=shape)
        return totals, wides
    if count:
        relative_exponents(x, head, share, block or n)
    launch(count_kernel, programs, words_of(x), head, n, totals, wides, EXPONENT=exponent, BLOCK=block)
    return totals, wides
