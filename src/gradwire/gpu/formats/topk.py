"""``topk``: the largest magnitudes and their places (codecs/topk.py).

The smallest magnitude that is kept is found digit by digit, by counting; magnitudes are ordered as their bits
are. Where a kept value goes is a sum over all before it, as in ``errbound``.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.contract import Format, Params
from gradwire.gpu.formats.pack import PACK
from gradwire.gpu.launch import ceil_div, launch, words_of
from gradwire.gpu.words import QUIET_NAN, take

_SIZE = 2048
_BITS = 8
_SHIFTS = (24, 16, 8, 0)
"""Where the digits of a magnitude begin."""
_LARGEST = tl.constexpr(0xFF000000)
_NAN_INDEX = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _magnitudes(words):
    """Return twice the bits of magnitudes; what is not finite is the largest, and the same."""
    return tl.minimum((words << 1).to(tl.uint32), _LARGEST)


@triton.jit
def _count_part(
    x,
    left,
    found,
    counts,
    SHIFT: tl.constexpr,
    BITS: tl.constexpr,
    SIZE: tl.constexpr,
    FULL: tl.constexpr,
):
    at = tl.arange(0, SIZE)
    magnitude = _magnitudes(take(x, at, at < left, FULL))
    wanted = at < left
    if SHIFT + BITS < 32:
        wanted &= (magnitude >> (SHIFT + BITS)).to(tl.int64) == tl.load(found)
    digit = ((magnitude >> SHIFT) & ((1 << BITS) - 1)).to(tl.int32)
    many = tl.histogram(digit, 1 << BITS, mask=wanted)
    tl.atomic_add(counts + tl.arange(0, 1 << BITS), many.to(tl.int64), mask=many > 0)


@triton.jit
def count_kernel(x, n, found, counts, SHIFT: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Count each digit among the magnitudes whose digits above are the found ones."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if n - start >= SIZE:
        _count_part(x + start, n - start, found, counts, SHIFT, BITS, SIZE, True)
    else:
        _count_part(x + start, n - start, found, counts, SHIFT, BITS, SIZE, False)


@triton.jit
def narrow_kernel(counts, found, k, IS_FIRST: tl.constexpr, BITS: tl.constexpr):
    """Find the next digit of the k-th largest; how many of its equals are kept, and how many there are."""
    digit = tl.arange(0, 1 << BITS)
    count = tl.load(counts + digit)
    above = tl.sum(count, axis=0) - tl.cumsum(count, axis=0)
    left = tl.full((), 0, tl.int64) + k
    if not IS_FIRST:
        left = tl.load(found + 1)
    chosen = (above < left) & (above + count >= left)
    tl.store(found, (tl.load(found) << BITS) + tl.sum(tl.where(chosen, digit, 0).to(tl.int64), axis=0))
    tl.store(found + 1, left - tl.sum(tl.where(chosen, above, 0), axis=0))
    tl.store(found + 2, tl.sum(tl.where(chosen, count, 0), axis=0))


@triton.jit
def _compared(x, left, least, SIZE: tl.constexpr, FULL: tl.constexpr):
    """Return words, and whether each is above the least that is kept, or equal to it."""
    at = tl.arange(0, SIZE)
    words = take(x, at, at < left, FULL)
    magnitude = _magnitudes(words).to(tl.int64)
    return words, (at < left) & (magnitude > least), (at < left) & (magnitude == least)


@triton.jit
def _tally_part(x, left, found, above, equal, SIZE: tl.constexpr, FULL: tl.constexpr):
    _, is_above, is_equal = _compared(x, left, tl.load(found), SIZE, FULL)
    tl.store(above, tl.sum(is_above.to(tl.int32), axis=0).to(tl.int64))
    tl.store(equal, tl.sum(is_equal.to(tl.int32), axis=0).to(tl.int64))


@triton.jit
def tally_kernel(x, n, found, above, equal, SIZE: tl.constexpr):
    """Count both in SIZE values a program."""
    program = tl.program_id(0)
    start = program.to(tl.int64) * SIZE
    if n - start >= SIZE:
        _tally_part(x + start, n - start, found, above + program, equal + program, SIZE, True)
    else:
        _tally_part(x + start, n - start, found, above + program, equal + program, SIZE, False)


@triton.jit
def _write_part(x, start, left, found, above, equal, out, k, SIZE: tl.constexpr, FULL: tl.constexpr):
    least, wanted = tl.load(found), tl.load(found + 1)
    words, is_above, is_equal = _compared(x, left, least, SIZE, FULL)
    higher, equals = is_above.to(tl.int32), is_equal.to(tl.int32)
    higher = above - tl.sum(higher, axis=0) + tl.cumsum(higher, axis=0) - higher
    equals = equal - tl.sum(equals, axis=0) + tl.cumsum(equals, axis=0) - equals
    place = higher + tl.minimum(equals, wanted)
    kept = is_above | (is_equal & (equals < wanted))
    is_bad = (least == _LARGEST) & (tl.load(found + 2) > wanted)
    value = start + tl.arange(0, SIZE)
    tl.store(out + place, tl.where(is_bad, _NAN_INDEX, value).to(tl.uint32), mask=kept)
    tl.store(out + k + place, tl.where(is_bad, QUIET_NAN, words).to(tl.uint32), mask=kept)


@triton.jit
def write_kernel(x, n, found, above, equal, out, k, SIZE: tl.constexpr):
    """Write what is kept of SIZE values a program, and marks for a bad chunk; the sums include its own."""
    program = tl.program_id(0)
    start = program.to(tl.int64) * SIZE
    before, equals = tl.load(above + program), tl.load(equal + program)
    if n - start >= SIZE:
        _write_part(x + start, start, n - start, found, before, equals, out, k, SIZE, True)
    else:
        _write_part(x + start, start, n - start, found, before, equals, out, k, SIZE, False)


@triton.jit
def check_kernel(payload, k, n, status, SIZE: tl.constexpr):
    """Look at indices; if the first is that of a bad chunk, at values, too."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    index = tl.load(payload + at, mask=at < k, other=0).to(tl.int64)
    after = tl.load(payload + at + 1, mask=at + 1 < k, other=_NAN_INDEX).to(tl.int64)
    value = tl.load(payload + k + at, mask=at < k, other=0)
    is_bad = tl.load(payload) == _NAN_INDEX
    wrong = tl.where(is_bad, index != _NAN_INDEX, (index >= n) | (index >= after))
    fault = tl.where(wrong, 2, (is_bad & (value != QUIET_NAN)).to(tl.int32))
    tl.atomic_max(status, tl.max(tl.where(at < k, fault, 0), axis=0))


@triton.jit
def fill_kernel(payload, out, n, status, SIZE: tl.constexpr):
    """Write SIZE zeros a program, or NaN if the chunk is bad."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    if tl.load(status) == 0:
        word = tl.where(tl.load(payload) == _NAN_INDEX, QUIET_NAN, 0).to(tl.uint32)
        tl.store(out + at, tl.zeros([SIZE], tl.uint32) + word, mask=at < n)


@triton.jit
def scatter_kernel(payload, out, k, status, SIZE: tl.constexpr):
    """Write SIZE kept values a program to their places."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    if tl.load(status) == 0:
        index = tl.load(payload + at, mask=at < k, other=_NAN_INDEX)
        value = tl.load(payload + k + at, mask=at < k, other=0)
        tl.store(out + index.to(tl.int64), value, mask=index != _NAN_INDEX)


class TopK(Format):
    """The parameters: the numerator and the denominator of the share that is kept."""

    faults = (
        "a chunk marked as NaN must hold quiet NaN only",
        "its indices must ascend strictly and be less than the count",
    )

    def max_nbytes(self, name: str, n: int, params: Params) -> int:
        """Return 8 bytes per kept value."""
        return 8 * _kept(n, params)

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernels that find the least value to keep, and those that write."""
        n, k = x.numel(), _kept(x.numel(), params)
        if not k:
            return
        programs = ceil_div(n, _SIZE)
        found = torch.zeros(3, dtype=torch.int64, device=x.device)
        counts = torch.zeros(len(_SHIFTS), 1 << _BITS, dtype=torch.int64, device=x.device)
        for each, shift in zip(counts, _SHIFTS, strict=True):
            counted = words_of(x), n, found, each
            launch(count_kernel, programs, *counted, SHIFT=shift, BITS=_BITS, SIZE=_SIZE)
            launch(narrow_kernel, 1, *(each, found, k), IS_FIRST=shift == _SHIFTS[0], BITS=_BITS)
        above, equal = totals = torch.empty(2, programs, dtype=torch.int64, device=x.device)
        launch(tally_kernel, programs, *(words_of(x), n, found, above, equal), SIZE=_SIZE)
        above, equal = totals.cumsum(1)
        launch(write_kernel, programs, *(words_of(x), n, found, above, equal, words_of(out), k), SIZE=_SIZE)

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:
        """Queue the kernel that looks at indices."""
        k = _kept(n, params)
        launch(check_kernel, ceil_div(k, _SIZE), *(words_of(payload), k, n, status), SIZE=_SIZE)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernels that fill with zeros and scatter; a sum is one with each value, also with 0."""
        n, k = out.numel(), _kept(out.numel(), params)
        target = torch.empty(n, dtype=out.dtype, device=out.device) if add else out
        launch(fill_kernel, ceil_div(n, _SIZE), *(words_of(payload), words_of(target), n, status), SIZE=_SIZE)
        scattered = words_of(payload), words_of(target), k, status
        launch(scatter_kernel, ceil_div(k, _SIZE), *scattered, SIZE=_SIZE)
        if add:
            PACK.decode(target.view(torch.uint8), out, (32,), status, add=True)


def _kept(n: int, params: Params) -> int:
    share, whole = params
    return -(-share * n // whole)


TOPK = TopK()
