"""Error feedback of a bucket on a GPU: residuals, sums of squares by range, and the bucket's final pass.

The passes compute the same floats as native/kernels/norms.h. The sums are added in a different, but fixed
order: each program sums its part of each range, and a second kernel sums the programs' parts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.words import (
    INFINITY,
    MAGNITUDE,
    QUIET,
    add,
    bits_of,
    ceil_div,
    float_of,
    is_nan,
    launch,
    put,
    take,
    words_of,
)

LOOK, ADD, SUBTRACT, ADOPT = range(4)
"""The passes over x and y. LOOK: no change; ADD: x += y; SUBTRACT: y = x - y; ADOPT: x, y = y, x - y."""
_LOOK, _ADD, _ADOPT = tl.constexpr(LOOK), tl.constexpr(ADD), tl.constexpr(ADOPT)
_SIZE = tl.constexpr(1024)
_PARTS = tl.constexpr(256)


@triton.jit
def _range_of(borders, ranges, element):
    """Return the index of the range between ``borders`` that contains an element."""
    low = tl.zeros_like(element)
    high = low + ranges
    while low < high:
        middle = (low + high) // 2
        is_after = tl.load(borders + middle + 1) <= element
        low = tl.where(is_after, middle + 1, low)
        high = tl.where(is_after, high, middle)
    return low


@triton.jit
def _sum_ranges(words, begin, count, borders, ranges, parts):
    """Write a program's sums of squares, one for its part of each range, the first range's to ``parts``."""
    number = float_of(words).to(tl.float64)
    square = number * number
    element = begin + tl.arange(0, _SIZE)
    first = _range_of(borders, ranges, begin)
    for each in range(first, _range_of(borders, ranges, begin + count - 1) + 1):
        inside = (element >= tl.load(borders + each)) & (element < tl.load(borders + each + 1))
        part = tl.sum(tl.where(inside & (element < begin + count), square, 0.0), axis=0)
        tl.store(parts + each, part)


@triton.jit
def pass_kernel(
    x, y, start, n, nonfinite, borders, ranges, parts, row, HOW: tl.constexpr, ROWS: tl.constexpr
):
    """Run the pass HOW over values. ``x`` starts at element ``start`` of the bucket."""
    program = tl.program_id(0).to(tl.int64)
    at, first = tl.arange(0, _SIZE), program * _SIZE
    x, y, parts, begin = x + first, y + first, parts + program, start + first
    count = tl.minimum(n - first, _SIZE)
    for full in tl.static_range(2):
        if (count == _SIZE) == full:
            words = take(x, at, at < count, full)
            summed = words
            if HOW == _ADD:
                put(x, at, add(words, take(y, at, at < count, full)), at < count, full)
            elif HOW != _LOOK:
                decoded = take(y, at, at < count, full)
                summed = bits_of(float_of(words) - float_of(decoded))
                put(y, at, summed, at < count, full)
                if HOW == _ADOPT:
                    put(x, at, decoded, at < count, full)
                if tl.max(((summed & MAGNITUDE) >= INFINITY).to(tl.int32), axis=0) > 0:
                    tl.store(nonfinite, 1)
                if ROWS == 3:
                    _sum_ranges(words, begin, count, borders, ranges, parts + row)
                    _sum_ranges(decoded, begin, count, borders, ranges, parts + 2 * row)
            if ROWS > 0:
                _sum_ranges(summed, begin, count, borders, ranges, parts)


@triton.jit
def add_up_kernel(parts, row, start, n, borders, sums, ranges, ROWS: tl.constexpr):
    """Add the partial sums of squares that ``pass_kernel`` stored to ``sums``, one range per program."""
    each = tl.program_id(0).to(tl.int64)
    begin = tl.maximum(tl.load(borders + each), start)
    end = tl.minimum(tl.load(borders + each + 1), start + n)
    if begin < end:
        last = (end - 1 - start) // _SIZE
        for kind in tl.static_range(ROWS):
            total = tl.zeros([_PARTS], tl.float64)
            for at in range((begin - start) // _SIZE, last + 1, _PARTS):
                part = at + tl.arange(0, _PARTS)
                total += tl.load(parts + kind * row + part + each, mask=part <= last, other=0.0)
            place = sums + kind * ranges + each
            tl.store(place, tl.load(place) + tl.sum(total, axis=0))


@triton.jit
def keep_kernel(residual, lost, n, nonfinite):
    """Replace residuals with encoding errors or, if ``nonfinite`` is set, only clear non-finite residuals."""
    start = tl.program_id(0).to(tl.int64) * _SIZE
    residual, lost, left = residual + start, lost + start, n - start
    at = tl.arange(0, _SIZE)
    is_bad = tl.load(nonfinite) != 0
    for full in tl.static_range(2):
        if (left >= _SIZE) == full:
            before = take(residual, at, at < left, full)
            before = tl.where((before & MAGNITUDE) >= INFINITY, 0, before)
            after = take(lost, at, at < left, full)
            put(residual, at, tl.where(is_bad, before, after).to(tl.uint32), at < left, full)


def queue_pass(
    how: int,
    x: Tensor,
    y: Tensor,
    nonfinite: Tensor,
    start: int = 0,
    borders: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Queue the pass ``how`` over ``x`` and ``y``, both float32.

    ``x`` starts at element ``start`` of a bucket. ``nonfinite``, an int32, becomes 1 if a new ``y`` is
    non-finite. The sum of squares of each range between ``borders`` (int64) is added to the range's column of
    ``sums`` (float64). The squares are those of the old x, or after ``SUBTRACT`` and ``ADOPT`` those of the
    new y. With three rows, the squares of the old x and y are also added.
    """
    n, tiles = x.numel(), ceil_div(x.numel(), _SIZE.value)
    if borders is None or sums is None:
        passed = words_of(x), words_of(y), start, n, nonfinite, nonfinite, 0, nonfinite, 0
        launch(pass_kernel, tiles, *passed, HOW=how, ROWS=0)
        return
    rows, ranges = sums.shape
    parts = torch.empty(rows, tiles + ranges, dtype=torch.float64, device=x.device)
    passed = words_of(x), words_of(y), start, n, nonfinite, borders, ranges, parts, tiles + ranges
    launch(pass_kernel, tiles, *passed, HOW=how, ROWS=rows)
    added = parts, tiles + ranges, start, n, borders, sums, ranges
    launch(add_up_kernel, ranges if n else 0, *added, ROWS=rows)


def queue_keep(residual: Tensor, lost: Tensor, nonfinite: Tensor) -> None:
    """Queue the update of a residual to ``lost``. If ``nonfinite`` isn't 0, only clear non-finite values."""
    n = residual.numel()
    launch(keep_kernel, ceil_div(n, _SIZE.value), words_of(residual), words_of(lost), n, nonfinite)


# The final pass over a bucket's sum: it divides by the number of ranks, and checks for non-finite values.


@triton.jit
def finish_kernel(x, n, nonfinite, RANKS: tl.constexpr):
    """Divide values by RANKS, and set ``nonfinite`` if a value is non-finite."""
    start = tl.program_id(0).to(tl.int64) * _SIZE
    x, left = x + start, n - start
    at = tl.arange(0, _SIZE)
    for full in tl.static_range(2):
        if (left >= _SIZE) == full:
            words = take(x, at, at < left, full)
            if RANKS > 1:
                sums = float_of(tl.where(is_nan(words), 0, words).to(tl.uint32))
                quotients = bits_of(tl.div_rn(sums, tl.full([_SIZE], RANKS, tl.float32)))
                words = tl.where(is_nan(words), words | QUIET, quotients).to(tl.uint32)
                put(x, at, words, at < left, full)
            if tl.max(((words & MAGNITUDE) >= INFINITY).to(tl.int32), axis=0) > 0:
                tl.store(nonfinite, 1)


def queue_finish(x: Tensor, ranks: int, nonfinite: Tensor) -> None:
    """Queue the division of ``x`` by ``ranks``. ``nonfinite`` (int32) becomes 1 if a value is non-finite.

    The quotients have the same bits as on the host. torch on a GPU would multiply by the inverse, which
    rounds twice.
    """
    n = x.numel()
    launch(finish_kernel, ceil_div(n, _SIZE.value), words_of(x), n, nonfinite, RANKS=ranks)


# Copies of payloads whose sizes only the device knows: a kernel copies 128 bits at a time to pinned memory.

_CARRIED = tl.constexpr(8192)


@triton.jit
def carry_kernel(source, target, nbytes):
    """Copy ``nbytes`` bytes from ``source`` to ``target``."""
    start = tl.program_id(0).to(tl.int64) * _CARRIED
    source, target, left = source + start, target + start, tl.load(nbytes) - start
    at = tl.arange(0, _CARRIED)
    if left > 0:
        for full in tl.static_range(2):
            if (left >= _CARRIED) == full:
                put(target, at, take(source, at, at < left, full), at < left, full)


def queue_carry(source: Tensor, target: Tensor, nbytes: Tensor) -> None:
    """Queue the copy of the first ``nbytes`` (an int64 on the device) bytes of ``source`` to ``target``."""
    launch(carry_kernel, ceil_div(source.numel(), _CARRIED.value), source, target, nbytes)
