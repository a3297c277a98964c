"""``topk``: the largest magnitudes and their indices (codecs/topk.py).

If k is small, the chunk is read once. A sample gives a threshold that slightly more than k values reach, and
kernels gather these values. Among the gathered values, the smallest kept magnitude is found digit by digit,
by counting, because magnitudes sort like their bits. Each program gathers from one run of consecutive values.
Programs execute in any order; kept values are then written in the order of the runs. If too few or too many
values reach the threshold, as in a chunk of many zeros, the kernels detect this on the device and search the
whole chunk.
"""

from __future__ import annotations

from math import isqrt

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.pack import PACK
from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import QUIET_NAN, bits_of, ceil_div, float_of, launch, take, words_of

_SIZE = tl.constexpr(2048)
_SAMPLE = tl.constexpr(16384)
_RUN = tl.constexpr(8192)
"""The number of values in the run of one program: 32 per thread, and fewer than 2^15."""
_LOOKED_AT = 512
"""The number of gathered values that a program compares in parallel, from one run or several."""
_MOST_COUNTING = 1024
"""The most programs that count digits, limited because all of them finally add to the same counters."""
_DIGITS = tl.constexpr(4)
_BITS = tl.constexpr(8)
_BASE = tl.constexpr(256)
_STATE = tl.constexpr(16)
"""The size of the state in device memory that one kernel passes to the next.

The state contains the threshold, the number of values that reach the threshold, and the results of
``_narrow`` for each digit. The counts of digits follow the state in memory.
"""
_LARGEST = tl.constexpr(0xFF000000)
_NAN_INDEX = tl.constexpr(0xFFFFFFFF)


@triton.jit
def _magnitudes(words):
    """Return the bits of magnitudes, times 2. All non-finite values get the same, largest magnitude."""
    return tl.minimum((words << 1).to(tl.uint32), _LARGEST)


@triton.jit
def sample_kernel(x, n, rank, state):
    """Store the threshold that ``rank`` sampled values reach, and clear the counts.

    The threshold is 0 if ``rank`` is above the sample's size. Its low 16 bits are cleared, which makes it
    only slightly smaller. The distances of sampled positions vary, so that the positions are not all in one
    column of a matrix.
    """
    each = tl.arange(0, _SAMPLE)
    drift = ((each * 40503) & 0xFFFF).to(tl.int64)  # multiples of the golden ratio, in units of 2^-16
    spread = (each.to(tl.int64) * n + ((drift * n) >> 16)) // _SAMPLE
    at = tl.where(tl.full([1], 0, tl.int64) + n > _SAMPLE, spread, each)
    magnitude = _magnitudes(tl.load(x + at, mask=each < n, other=0))
    least, top = tl.full((), 0, tl.uint32), tl.full((), 1 << 31, tl.uint32)
    for bit in range(16):
        higher = least | (top >> bit)
        many = tl.sum((magnitude >= higher).to(tl.int32), axis=0)
        least = tl.where(many >= rank, higher, least)
    tl.store(state, least.to(tl.int64))
    tl.store(state + 1, tl.full((), 0, tl.int64))
    counts = state + _STATE + tl.arange(0, _DIGITS * _BASE)
    tl.store(counts, tl.zeros([_DIGITS * _BASE], tl.int64))


@triton.jit
def _reaching(x, left, state, FULL):
    """Return a bit for each value of a run, 1 if the value reaches the threshold, and the threshold."""
    lane = tl.arange(0, 32)[None, :]
    at = tl.arange(0, _RUN // 32)[:, None] * 32 + lane
    words = take(x, at, at < left, FULL)
    least = float_of((tl.load(state) >> 1).to(tl.uint32))  # loaded last, so that it delays no other load
    reaches = ~(tl.abs(float_of(words)) < least)  # true for NaN
    return tl.sum(tl.where(reaches, tl.full([1, 32], 1, tl.uint32) << lane, 0), axis=1), least


@triton.jit
def _count_bits(words):
    """Return the number of set bits in each word, by pairwise sums and a product that sums the bytes."""
    pairs = words - ((words >> 1) & 0x55555555)
    quads = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    return ((((quads + (quads >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def gather_kernel(x, n, state, entries, capacity, runs):
    """Append the values of a run that reach the threshold, with their indices, to ``entries``.

    ``runs`` gets the start and the number of the run's entries.
    """
    start = tl.program_id(0).to(tl.int64) * _RUN
    if n - start >= _RUN:
        bits, least = _reaching(x + start, n - start, state, True)
    else:
        bits, least = _reaching(x + start, (n - start).to(tl.int32), state, False)
    # After the sum, eight threads have each word. From here on, each thread has its own word.
    row = tl.arange(0, _RUN // 32)
    bits = tl.gather(bits, row, axis=0)
    many = _count_bits(bits)
    size = tl.sum(many, axis=0).to(tl.int64)
    begin = tl.atomic_add(state + 1, size, sem="relaxed")
    runs += tl.program_id(0) * 3  # computed here, so that the loads don't wait for it
    tl.store(runs, begin)
    tl.store(runs + 1, size)
    if (begin + size <= capacity) & (least > 0):  # all values reach 0, even after the chunk's end
        target = entries + begin + (tl.cumsum(many, axis=0) - many)
        for _ in range(tl.max(many, axis=0)):
            lowest = bits ^ (bits & (bits - 1))
            lane = (bits_of(lowest.to(tl.float32)) >> 23).to(tl.int32) - 127
            value = start + (row * 32 + lane)
            words = tl.load(x + value, mask=bits != 0, other=0)  # cached by the first load
            tl.store(target, words.to(tl.int64) | (value << 32), mask=bits != 0)
            target += 1
            bits ^= lowest


@triton.jit
def _is_gathered(state, k, capacity):
    many = tl.load(state + 1)
    return (many >= k) & (many <= capacity)


@triton.jit
def _narrow(state, k, DIGIT):
    """Return the digits of the k-th largest magnitude, up to DIGIT.

    For the next kernels, store these digits, the number of magnitudes with these digits, and how many of
    them are kept.
    """
    digit = tl.arange(0, _BASE)
    count = tl.load(state + _STATE + DIGIT * _BASE + digit)
    above = tl.sum(count, axis=0) - tl.cumsum(count, axis=0)
    least = tl.full((), 0, tl.int64)
    left = least + k
    found = state + 2 + 3 * DIGIT
    if DIGIT > 0:
        least, left = tl.load(found - 3), tl.load(found - 2)
    chosen = (above < left) & (above + count >= left)
    least = (least << _BITS) + tl.sum(tl.where(chosen, digit, 0), axis=0)
    if tl.program_id(0) == 0:
        tl.store(found, least)
        tl.store(found + 1, left - tl.sum(tl.where(chosen, above, 0), axis=0))
        tl.store(found + 2, tl.sum(tl.where(chosen, count, 0), axis=0))
    return least.to(tl.uint32)


@triton.jit
def count_kernel(x, n, entries, capacity, state, k, DIGIT: tl.constexpr):
    """Count how often the digit DIGIT has each value, among magnitudes that match the digits found so far."""
    shift: tl.constexpr = (_DIGITS - 1 - DIGIT) * _BITS
    is_gathered = _is_gathered(state, k, capacity)
    source, step = tl.where(is_gathered, entries, x), tl.where(is_gathered, 2, 1)
    end = tl.where(is_gathered, tl.load(state + 1), n)
    above = tl.full((), 0, tl.uint32)
    if DIGIT > 0:
        above = _narrow(state, k, DIGIT - 1)
    many = tl.zeros([_BASE], tl.int32)
    for start in range(tl.program_id(0).to(tl.int64) * _SIZE, end, tl.num_programs(0) * _SIZE):
        at = start + tl.arange(0, _SIZE)
        magnitude = _magnitudes(tl.load(source + at * step, mask=at < end, other=0))
        wanted = at < end
        if DIGIT > 0:
            wanted &= (magnitude >> (shift + _BITS)) == above
        many += tl.histogram(((magnitude >> shift) & (_BASE - 1)).to(tl.int32), _BASE, mask=wanted)
    counts = state + _STATE + DIGIT * _BASE + tl.arange(0, _BASE)
    tl.atomic_add(counts, many.to(tl.int64), mask=many > 0, sem="relaxed")


@triton.jit
def _places(x, n, entries, runs, is_gathered, RUNS):
    """Return where RUNS runs of words start, the distance between words, and the runs' sizes."""
    run = tl.program_id(0).to(tl.int64) * RUNS + tl.arange(0, RUNS)
    begin = run * _RUN
    there = is_gathered & (begin < n)
    gathered = entries + 2 * tl.load(runs + 3 * run, mask=there, other=0)
    size = tl.minimum(tl.maximum(n - begin, 0), _RUN)
    size = tl.where(there, tl.load(runs + 3 * run + 1, mask=there, other=0), size).to(tl.int32)
    return tl.where(is_gathered, gathered, x + begin), tl.where(is_gathered, 2, 1), size


@triton.jit
def _compared(source, there, least):
    """Load words, compare them with the smallest kept magnitude, and return both.

    The result of the comparison is 1 for a larger word, 2^16 for an equal word, and else 0.
    """
    words = tl.load(source, mask=there, other=0)
    magnitude = _magnitudes(words)
    above, equal = there & (magnitude > least), there & (magnitude == least)
    return words, above.to(tl.int32) | (equal.to(tl.int32) << 16)


@triton.jit
def tally_kernel(x, n, entries, capacity, state, k, runs, sums, RUNS: tl.constexpr, WIDTH: tl.constexpr):
    """Count magnitudes above, and equal to, the smallest kept one, per run and for all RUNS runs."""
    least = _narrow(state, k, _DIGITS - 1)
    source, step, size = _places(x, n, entries, runs, _is_gathered(state, k, capacity), RUNS)
    both = tl.zeros([RUNS, WIDTH], tl.int32)
    for column in range(0, tl.max(size, axis=0), WIDTH):
        at = column + tl.arange(0, WIDTH)[None, :]
        _, one = _compared(source[:, None] + at * step, at < size[:, None], least)
        both += one
    tally = tl.sum(both, axis=1)
    program = tl.program_id(0)
    run = program * RUNS + tl.arange(0, RUNS)
    tl.store(runs + 3 * run + 2, tally.to(tl.int64))
    tl.store(sums + 2 * program, tl.sum(tally & 0xFFFF, axis=0).to(tl.int64))
    tl.store(sums + 2 * program + 1, tl.sum(tally >> 16, axis=0).to(tl.int64))


@triton.jit
def _before(sums):
    """Return the numbers of larger and of equal magnitudes in all programs before this program."""
    program = tl.program_id(0)
    above, equal = tl.zeros([1024], tl.int64), tl.zeros([1024], tl.int64)
    for start in range(0, program, 1024):
        at = start + tl.arange(0, 1024)
        above += tl.load(sums + 2 * at, mask=at < program, other=0)
        equal += tl.load(sums + 2 * at + 1, mask=at < program, other=0)
    return tl.sum(above, axis=0), tl.sum(equal, axis=0)


@triton.jit
def write_kernel(x, n, entries, capacity, state, k, runs, sums, out, RUNS: tl.constexpr, WIDTH: tl.constexpr):
    """Write the kept values of RUNS runs, or the NaN marker if a chunk has too many non-finite values."""
    found = state + 2 + 3 * (_DIGITS - 1)
    least, wanted = tl.load(found).to(tl.uint32), tl.load(found + 1)
    is_bad = (least == _LARGEST) & (tl.load(found + 2) > wanted)
    is_gathered = _is_gathered(state, k, capacity)
    source, step, size = _places(x, n, entries, runs, is_gathered, RUNS)
    run = tl.program_id(0) * RUNS + tl.arange(0, RUNS)
    tally = tl.load(runs + 3 * run + 2)
    above, equal = _before(sums)
    above += tl.cumsum(tally & 0xFFFF, axis=0) - (tally & 0xFFFF)
    equal += tl.cumsum(tally >> 16, axis=0) - (tally >> 16)
    target = out + above + tl.minimum(equal, wanted)
    room = tl.minimum(tl.maximum(wanted - equal, 0), _RUN).to(tl.int32)[:, None]
    earlier = tl.zeros([RUNS], tl.int32)
    for column in range(0, tl.max(size, axis=0), WIDTH):
        at = column + tl.arange(0, WIDTH)[None, :]
        there = at < size[:, None]
        words, one = _compared(source[:, None] + at * step, there, least)
        if is_gathered:
            value = tl.load(source[:, None] + at * step + 1, mask=there, other=0)
        else:
            value = ((run * _RUN)[:, None] + at).to(tl.uint32)
        before = earlier[:, None] + tl.cumsum(one, axis=1) - one
        earlier += tl.sum(one, axis=1)
        kept = ((one & 1) != 0) | ((one != 0) & ((before >> 16) < room))
        place = target[:, None] + ((before & 0xFFFF) + tl.minimum(before >> 16, room))
        tl.store(place, tl.where(is_bad, _NAN_INDEX, value).to(tl.uint32), mask=kept)
        tl.store(place + k, tl.where(is_bad, QUIET_NAN, words).to(tl.uint32), mask=kept)


@triton.jit
def check_kernel(payload, k, n, status):
    """Set ``status`` for invalid indices or, if the first index is the NaN marker, for invalid values."""
    at = tl.program_id(0).to(tl.int64) * _SIZE + tl.arange(0, _SIZE)
    index = tl.load(payload + at, mask=at < k, other=0).to(tl.int64)
    after = tl.load(payload + at + 1, mask=at + 1 < k, other=_NAN_INDEX).to(tl.int64)
    value = tl.load(payload + k + at, mask=at < k, other=0)
    is_bad = tl.load(payload) == _NAN_INDEX
    wrong = tl.where(is_bad, index != _NAN_INDEX, (index >= n) | (index >= after))
    fault = tl.where(wrong, 2, (is_bad & (value != QUIET_NAN)).to(tl.int32))
    tl.atomic_max(status, tl.max(tl.where(at < k, fault, 0), axis=0))


@triton.jit
def fill_kernel(payload, out, n, status):
    """Write zeros, or NaN if the payload contains the NaN marker."""
    at = tl.program_id(0).to(tl.int64) * _SIZE + tl.arange(0, _SIZE)
    if tl.load(status) == 0:
        word = tl.where(tl.load(payload) == _NAN_INDEX, QUIET_NAN, 0).to(tl.uint32)
        tl.store(out + at, tl.zeros([_SIZE], tl.uint32) + word, mask=at < n)


@triton.jit
def scatter_kernel(payload, out, k, status):
    """Write the kept values to their positions in the chunk."""
    at = tl.program_id(0).to(tl.int64) * _SIZE + tl.arange(0, _SIZE)
    if tl.load(status) == 0:
        index = tl.load(payload + at, mask=at < k, other=_NAN_INDEX)
        value = tl.load(payload + k + at, mask=at < k, other=0)
        tl.store(out + index.to(tl.int64), value, mask=index != _NAN_INDEX)


class _TopK(Format):
    """The kernels of ``topk``. The parameters are the numerator and the denominator of the kept fraction."""

    faults = (
        "a chunk marked as NaN must contain only quiet NaNs",
        "its indices must increase strictly and be below the length",
    )

    def max_nbytes(self, name: str, n: int, params: Params) -> int:
        return 8 * _kept(n, params)

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n, k = x.numel(), _kept(x.numel(), params)
        if not k:
            return
        rank = _rank(n, k)
        capacity = 2 * rank * ceil_div(n, _SAMPLE.value)
        if 4 * capacity >= n:  # reading the chunk is as fast as reading entries of 8 bytes
            capacity = 0
        entries = torch.empty(capacity, dtype=torch.int64, device=x.device)
        state = torch.empty(_STATE.value + _DIGITS.value * _BASE.value, dtype=torch.int64, device=x.device)
        source, parts = words_of(x), ceil_div(n, _RUN.value)
        # With this shape, each run is read once.
        width = triton.next_power_of_2(rank * _RUN.value // min(n, _SAMPLE.value))
        width = min(max(width, 128), _LOOKED_AT)
        shape = {"RUNS": _LOOKED_AT // width, "WIDTH": width}
        programs = ceil_div(parts, shape["RUNS"])
        runs = torch.empty(3 * programs * shape["RUNS"], dtype=torch.int64, device=x.device)
        sums = torch.empty(2 * programs, dtype=torch.int64, device=x.device)
        launch(sample_kernel, 1, source, n, rank, state, warps=16)
        if capacity:
            launch(gather_kernel, parts, source, n, state, entries, capacity, runs, warps=8)
        gathered = source, n, words_of(entries), capacity, state, k
        counting = min(ceil_div(n, _SIZE.value), _MOST_COUNTING)
        for digit in range(_DIGITS.value):
            launch(count_kernel, counting, *gathered, DIGIT=digit)
        launch(tally_kernel, programs, *gathered, runs, sums, **shape)
        launch(write_kernel, programs, *gathered, runs, sums, words_of(out), **shape)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, k = out.numel(), _kept(out.numel(), params)
        target = torch.empty(n, dtype=out.dtype, device=out.device) if add else out
        source, words = words_of(payload), words_of(target)
        launch(check_kernel, ceil_div(k, _SIZE.value), source, k, n, status)
        launch(fill_kernel, ceil_div(n, _SIZE.value), source, words, n, status)
        launch(scatter_kernel, ceil_div(k, _SIZE.value), source, words, k, status)
        if add:  # even zeros are added
            PACK.decode(target.view(torch.uint8), out, (32,), status, add=True)


def _kept(n: int, params: Params) -> int:
    share, whole = params
    return ceil_div(share * n, whole)


def _rank(n: int, k: int) -> int:
    """Return the sample's rank for a threshold that at least k values of the chunk almost surely reach."""
    if n <= _SAMPLE.value:
        return k
    expected = ceil_div(k * _SAMPLE.value, n)
    return expected + 4 * isqrt(expected) + 8


TOPK = _TopK()
