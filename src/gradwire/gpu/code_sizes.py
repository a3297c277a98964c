"""How many bytes the codes of ``errbound`` take: values are classified by their bounds, and counted."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.launch import ceil_div, launch, signed, words_of
from gradwire.gpu.squares import (
    ahead_of,
    exponent_of_share,
    longest_row,
    relative_exponents,
    rows_of,
    sum_rows,
)
from gradwire.gpu.words import MAGNITUDE, bits_of, float_of, power_of_two, take

_COUNTED_AT_ONCE = (64, 128, 256, 512, 1024)
"""Blocks of which a program has whole ones, and as many values as are counted together at least."""


@triton.jit
def exponents_at(head, start, at, inside, EXPONENT: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """Return the biased exponent of the bound of each of SIZE values; one for all where they share it."""
    if EXPONENT != 0:
        return tl.full([1], EXPONENT, tl.int32)
    elif BLOCK == 0:
        return tl.load(head + tl.zeros([1], tl.int32)).to(tl.int32)
    elif BLOCK % SIZE == 0:
        return tl.load(head + start // BLOCK + tl.zeros([1], tl.int32)).to(tl.int32)
    else:
        return tl.load(head + (start + at) // BLOCK, mask=inside, other=127).to(tl.int32)


@triton.jit
def _first_above(code):
    """Return the bits of the least magnitude that rounds to more than ``code``, which is 0 or odd."""
    return bits_of(code.to(tl.float32) + 0.5).to(tl.int32, bitcast=True) + (code == 0).to(tl.int32)


@triton.jit
def coded(words, exponent):
    """Return what rounds to each value's code, and whether it takes 1, 2 and 4 bytes at least.

    Values are compared before they are rounded, which is an addition: the last 16 bits of the sum are those
    of the code.
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
    """Return how many bytes values take: 0, 1, 2, 4."""
    return some.to(tl.int32) + wide.to(tl.int32) + tl.where(whole, 2, 0)


@triton.jit
def _counted(some, wide, whole):
    """Return the same, and 2^16 more for each value that takes 2 or more."""
    return some.to(tl.int32) + tl.where(wide, 0x10001, 0) + tl.where(whole, 2, 0)


@triton.jit
def _put_counts(totals, wides, program, count, inside):
    """Store how many bytes the values of programs take, and whether one takes 2 or more."""
    tl.store(totals + program, (count & 0xFFFF).to(tl.int64), mask=inside)
    tl.store(wides + program, (count > 0xFFFF).to(tl.uint8), mask=inside)


@triton.jit
def count_kernel(x, head, n, totals, wides, EXPONENT: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """Count the data bytes of SIZE values a program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, SIZE)
    there = at < n - start
    words = tl.load(x + start + at, mask=there, other=0)
    _, some, wide, whole = coded(words, exponents_at(head, start, at, there, EXPONENT, BLOCK, SIZE))
    _put_counts(totals, wides, tl.program_id(0), tl.sum(_counted(some, wide, whole), axis=0), True)


@triton.jit
def _bound_and_count(
    x,
    n,
    share,
    head,
    blocks,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    FULL: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    total, count = sum_rows(x, n, row, BLOCK, ROWS, AHEAD, FULL)
    exponent = exponent_of_share(total, count, share)
    tl.store(head + row, exponent.to(tl.uint8), mask=row < blocks)
    many = tl.zeros([ROWS, 16], tl.int32)
    for at in range(0, BLOCK if FULL else longest_row(n, BLOCK, ROWS), 16 * AHEAD):
        for each in tl.static_range(AHEAD):
            value = row[:, None] * BLOCK + at + 16 * each + tl.arange(0, 16)[None, :]
            _, some, wide, whole = coded(take(x, value, value < n, FULL), exponent[:, None])
            many += _counted(some, wide, whole)
    return tl.sum(many, axis=1)


@triton.jit(do_not_specialize=["share"])
def bound_and_count_kernel(
    x,
    n,
    share,
    head,
    blocks,
    totals,
    wides,
    programs,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Choose the bounds of ROWS blocks a program, and count their data bytes, which then are in the cache."""
    if n - tl.program_id(0).to(tl.int64) * (ROWS * BLOCK) >= ROWS * BLOCK:
        counts = _bound_and_count(x, n, share, head, blocks, BLOCK, ROWS, AHEAD, True)
    else:
        counts = _bound_and_count(x, n, share, head, blocks, BLOCK, ROWS, AHEAD, False)
    parts: tl.constexpr = ROWS * BLOCK // SIZE
    program = tl.program_id(0) * parts + tl.arange(0, parts)
    counts = tl.sum(tl.reshape(counts, (parts, SIZE // BLOCK)), axis=1)
    _put_counts(totals, wides, program, counts, program < programs)


def queue_sizes(
    x: torch.Tensor, head: torch.Tensor, exponent: int, share: int, block: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queue what chooses the bounds of blocks, if they are relative, and counts bytes.

    Return how many bytes the codes of each ``size`` values take, and whether one takes 2 or more.
    """
    n, count = x.numel(), head.numel()
    programs = ceil_div(n, size)
    totals = torch.empty(programs, dtype=torch.int64, device=x.device)
    wides = torch.empty(programs, dtype=torch.uint8, device=x.device)
    constants = {"BLOCK": block, "SIZE": size}
    if block in _COUNTED_AT_ONCE:
        bound = words_of(x), n, signed(share), head, count, totals, wides, programs
        rows = rows_of(block)
        constants |= {"ROWS": rows, "AHEAD": ahead_of(block, rows)}
        launch(bound_and_count_kernel, ceil_div(count, rows), *bound, warps=1, **constants)
    else:
        if count:
            relative_exponents(x, head, share, block or n)
        counted = words_of(x), head, n, totals, wides
        launch(count_kernel, programs, *counted, EXPONENT=exponent, **constants)
    return totals, wides
