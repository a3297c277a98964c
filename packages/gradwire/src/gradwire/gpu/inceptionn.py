"""``inceptionn``: bursts of eight values with four code sizes (native/kernels/inceptionn_scalar.cc).

A burst starts where the previous burst ends, so locating bursts is sequential. To locate them in parallel,
kernels cut the payload into segments, and walk each segment from every offset at which its first burst can
start. Then segments are joined into groups, again for every offset. One program chains the groups, each group
chains its segments, and each segment is walked again from its true offset. Finally, the bursts are decoded in
parallel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import MAGNITUDE, bits_of, ceil_div, launch, put_words, words_of

_BURSTS = tl.constexpr(128)
_SEGMENT = tl.constexpr(1024)  # bytes
_GROUP = tl.constexpr(128)  # segments
_SPREAD = tl.constexpr(8)  # groups
_LANES = tl.constexpr(64)  # the 34 possible offsets of a segment's first burst, rounded up to a power of two


@triton.jit
def nbytes_of(kind):
    """Return the sizes of values from their size classes: 0, 1, 2 or 4 bytes."""
    return kind + (kind == 3).to(tl.int32)


@triton.jit
def classes_and_codes(words, FIRST1, FIRST2, BASE):
    """Return each value's size class and code."""
    magnitude = (words & MAGNITUDE).to(tl.int32, bitcast=True)
    sign = (words >> 31).to(tl.int32)
    significand = (magnitude & 0x7FFFFF) | 0x800000
    exponent = magnitude >> 23
    narrow = (sign << 7) | (significand >> tl.minimum(tl.maximum(BASE - exponent + 16, 0), 31))
    wide = (sign << 15) | (significand >> tl.minimum(tl.maximum(135 - exponent, 0), 31))
    kind = tl.where(magnitude < FIRST1, 0, tl.where(magnitude < FIRST2, 1, 2))
    kind = tl.where(magnitude >= 0x3F800000, 3, kind)
    code = tl.where(kind == 1, narrow, wide).to(tl.uint32, bitcast=True)
    return kind, tl.where(kind == 3, words, code).to(tl.uint32)


@triton.jit
def _take_bursts(x, n, BURST_A_THREAD):
    start = tl.program_id(0).to(tl.int64) * _BURSTS * 8
    value = tl.arange(0, _BURSTS)[:, None] * 8 + tl.arange(0, 8)[None, :]
    # One burst per thread is slower to load, but one thread then stores all bytes of the burst, at any
    # address.
    if BURST_A_THREAD:
        value = tl.max_contiguous(value, [1, 1])
    if n - start >= _BURSTS * 8:
        words = tl.load(x + start + value)
    else:
        words = tl.load(x + start + value, mask=value < n - start, other=0)
    return words.to(tl.uint32)


@triton.jit
def count_kernel(x, n, totals, FIRST1: tl.constexpr, FIRST2: tl.constexpr, BASE: tl.constexpr):
    """Count the encoded bytes of each program's bursts."""
    kind, _ = classes_and_codes(_take_bursts(x, n, False), FIRST1, FIRST2, BASE)
    burst = tl.program_id(0).to(tl.int64) * _BURSTS + tl.arange(0, _BURSTS)
    size = tl.sum(nbytes_of(kind), axis=1) + 2
    tl.store(totals + tl.program_id(0), tl.sum(tl.where(burst * 8 < n, size, 0), axis=0).to(tl.int64))


@triton.jit
def encode_kernel(x, out, n, ends, totals, FIRST1: tl.constexpr, FIRST2: tl.constexpr, BASE: tl.constexpr):
    """Encode bursts. ``ends`` are the ends of the programs' bytes."""
    program = tl.program_id(0)
    kind, code = classes_and_codes(_take_bursts(x, n, True), FIRST1, FIRST2, BASE)
    size = nbytes_of(kind)
    whole = tl.sum(size, axis=1) + 2
    burst = program.to(tl.int64) * _BURSTS + tl.arange(0, _BURSTS)
    there = burst * 8 < n
    place = out + (tl.load(ends + program) - tl.load(totals + program)) + (tl.cumsum(whole, axis=0) - whole)
    tags = tl.sum(kind << (2 * tl.arange(0, 8))[None, :], axis=1)
    tl.store(place, (tags & 0xFF).to(tl.uint8), mask=there)
    tl.store(place + 1, (tags >> 8).to(tl.uint8), mask=there)
    data = place[:, None] + 2 + (tl.cumsum(size, axis=1) - size)
    size = tl.where(there[:, None], size, 0)
    tl.store(data, (code & 0xFF).to(tl.uint8), mask=size > 0)
    if tl.max(tl.max(size, axis=1), axis=0) > 1:
        for byte in tl.static_range(1, 4):
            tl.store(data + byte, ((code >> (8 * byte)) & 0xFF).to(tl.uint8), mask=size > byte)


@triton.jit
def _tags_at(payload, start, there):
    low = tl.load(payload + start, mask=there, other=0).to(tl.int32)
    return low | (tl.load(payload + start + 1, mask=there, other=0).to(tl.int32) << 8)


@triton.jit
def _burst_nbytes(payload, start, there):
    """Return the sizes in bytes of the bursts at ``start``, by pairwise sums of the values' sizes."""
    tags = _tags_at(payload, start, there)
    wide = tags & (tags >> 1) & 0x5555
    fours = (tags & 0x3333) + ((tags >> 2) & 0x3333) + (wide & 0x1111) + ((wide >> 2) & 0x1111)
    eights = (fours & 0x0F0F) + ((fours >> 4) & 0x0F0F)
    return 2 + (eights & 0xFF) + (eights >> 8)


@triton.jit
def walk_kernel(payload, nbytes, exits, counts):
    """Walk one segment per program from each offset; store the next segment's offset, and count bursts."""
    start = tl.program_id(0).to(tl.int64) * _SEGMENT
    lane = tl.arange(0, _LANES)
    end = tl.minimum(nbytes - 1 - start, _SEGMENT).to(tl.int32)  # a burst has at least two bytes
    position = lane
    count = tl.zeros([_LANES], tl.int32)
    while tl.max((position < end).to(tl.int32), axis=0) > 0:
        for _ in tl.static_range(4):
            inside = position < end
            position += tl.where(inside, _burst_nbytes(payload + start, position, inside), 0)
            count += inside.to(tl.int32)
    at = tl.program_id(0).to(tl.int64) * _LANES + lane
    tl.store(exits + at, position - _SEGMENT)
    tl.store(counts + at, count)


@triton.jit
def join_kernel(exits, counts, segments, group_exits, group_counts):
    """Join the segments of one group per program: for each offset, the exit offset and the burst count."""
    lane = tl.arange(0, _LANES)
    offset, count = lane, tl.zeros([_LANES], tl.int32)
    first = tl.program_id(0).to(tl.int64) * _GROUP
    exits += first * _LANES
    counts += first * _LANES
    for each in range(tl.minimum(segments - first, _GROUP).to(tl.int32)):
        at = each * _LANES + offset
        count += tl.load(counts + at)
        offset = tl.load(exits + at)
    at = tl.program_id(0).to(tl.int64) * _LANES + lane
    tl.store(group_exits + at, offset)
    tl.store(group_counts + at, count)


@triton.jit
def chain_kernel(exits, counts, groups, entries, firsts, last, nbytes, bursts, status):
    """Chain all groups in one program, and store each group's entry offset and its first burst's number.

    The exit offset of the last group is relative to ``last``.
    """
    offset = tl.zeros([1], tl.int32)
    burst = tl.zeros([1], tl.int64)
    here = tl.arange(0, 1)
    for group in range(groups):
        tl.store(entries + group + here, offset)
        tl.store(firsts + group + here, burst)
        at = here + group * _LANES + offset
        burst += tl.load(counts + at).to(tl.int64)
        offset = tl.load(exits + at)
    end = offset.to(tl.int64) + tl.zeros([1], tl.int64) + last
    cut = (burst < bursts) | ((burst == bursts) & (end > nbytes))
    fault = tl.where(cut, 3, tl.where((burst > bursts) | (end < nbytes), 2, 0))
    tl.atomic_max(status, tl.max(fault.to(tl.int32), axis=0))


@triton.jit
def spread_kernel(exits, counts, segments, group_entries, group_firsts, groups, entries, firsts):
    """Chain the segments of several groups per program, starting at each group's entry offset."""
    group = tl.program_id(0) * _SPREAD + tl.arange(0, _SPREAD)
    offset = tl.load(group_entries + group, mask=group < groups, other=0)
    burst = tl.load(group_firsts + group, mask=group < groups, other=0)
    for each in range(_GROUP):
        segment = group.to(tl.int64) * _GROUP + each
        exists = segment < segments
        tl.store(entries + segment, offset, mask=exists)
        tl.store(firsts + segment, burst, mask=exists)
        at = segment * _LANES + offset
        burst += tl.load(counts + at, mask=exists, other=0).to(tl.int64)
        offset = tl.load(exits + at, mask=exists, other=0)


@triton.jit
def place_kernel(payload, nbytes, entries, firsts, segments, starts, bursts):
    """Walk several segments per program from their true offsets, and store where each burst starts."""
    segment = tl.program_id(0) * _LANES + tl.arange(0, _LANES)
    exists = segment < segments
    start = segment.to(tl.int64) * _SEGMENT
    position = start + tl.load(entries + segment, mask=exists, other=0)
    burst = tl.load(firsts + segment, mask=exists, other=0)
    end = tl.where(exists, tl.minimum(start + _SEGMENT, nbytes - 1), 0)
    while tl.max((position < end).to(tl.int32), axis=0) > 0:
        inside = position < end
        tl.store(starts + burst, position, mask=inside & (burst < bursts))
        position += tl.where(inside, _burst_nbytes(payload, position, inside), 0)
        burst += inside.to(tl.int64)


@triton.jit
def check_padding_kernel(payload, last, status, USED: tl.constexpr):
    """Set ``status`` if a value after the chunk's end, in the last burst, has a size class other than 0."""
    here = tl.arange(0, 1)
    there = tl.load(status + here) == 0
    start = tl.load(last + here, mask=there, other=0)
    padded = (_tags_at(payload, start, there) >> USED) != 0
    tl.atomic_max(status, tl.max(padded.to(tl.int32), axis=0))


@triton.jit
def _words_of(code, kind, UNIT):
    """Return the bits of the floats for codes of a size class. UNIT is the lowest bit of the 8-bit class."""
    signed = code.to(tl.int32, bitcast=True)
    narrow = tl.where((signed & 0x80) != 0, -(signed & 0x7F), signed & 0x7F)
    wide = tl.where((signed & 0x8000) != 0, -(signed & 0x7FFF), signed & 0x7FFF)
    integer = tl.where(kind == 1, narrow, tl.where(kind == 2, wide, 0)).to(tl.float32)
    words = bits_of(integer * tl.where(kind == 1, UNIT, 0.000030517578125))
    return tl.where(kind == 3, code, words).to(tl.uint32)


@triton.jit
def decode_kernel(payload, out, n, starts, status, UNIT: tl.constexpr, ADD: tl.constexpr):
    """Decode bursts."""
    first = tl.program_id(0).to(tl.int64) * _BURSTS
    burst, lane = tl.arange(0, _BURSTS), tl.arange(0, 8)[None, :]
    value = burst[:, None] * 8 + lane
    out, left = out + first * 8, n - first * 8
    if tl.load(status) == 0:
        for full in tl.static_range(2):
            if (left >= _BURSTS * 8) == full:
                there = burst * 8 < left
                start = tl.load(starts + first + burst, mask=there, other=0)
                kind = (_tags_at(payload, start, there)[:, None] >> (2 * lane)) & 3
                size = nbytes_of(kind)
                data = payload + (start[:, None] + 2 + (tl.cumsum(size, axis=1) - size))
                code = tl.zeros([_BURSTS, 8], tl.uint32)
                for byte in tl.static_range(4):
                    code |= tl.load(data + byte, mask=size > byte, other=0).to(tl.uint32) << (8 * byte)
                put_words(out, value, _words_of(code, kind, UNIT), value < left, full, ADD)


class _Inceptionn(Format):
    """The kernels of ``inceptionn``. The parameters are the threshold's exponent, and 1 for ``bounded``."""

    is_fixed = False
    faults = (
        "the padding of its last burst is not empty",
        "bytes are left over after its last burst",
        "its last burst is truncated",
    )

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n = x.numel()
        if not n:
            size.zero_()
            return
        middle, base = _classes(params)
        constants = {"FIRST1": params[0] << 23, "FIRST2": middle << 23, "BASE": base}
        programs = ceil_div(n, 8 * _BURSTS.value)
        totals = torch.empty(programs, dtype=torch.int64, device=x.device)
        launch(count_kernel, programs, words_of(x), n, totals, **constants)
        ends = totals.cumsum(0)
        launch(encode_kernel, programs, words_of(x), out, n, ends, totals, **constants)
        size.copy_(ends[-1:], non_blocking=True)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, nbytes = out.numel(), payload.numel()
        if not n or not nbytes:
            status.fill_(3 if n else 2 if nbytes else 0)
            return
        starts = _find_bursts(payload, ceil_div(n, 8), status)
        if n % 8:
            launch(check_padding_kernel, 1, payload, starts[-1:], status, warps=1, USED=2 * (n % 8))
        programs, args = ceil_div(n, 8 * _BURSTS.value), (payload, words_of(out), n, starts, status)
        launch(decode_kernel, programs, *args, UNIT=2.0 ** (_classes(params)[1] - 134), ADD=add)


def _classes(params: Params) -> tuple[int, int]:
    """Return two biased exponents: of the border between 8 and 16 bits, and of the 8-bit fractions' base."""
    threshold, bounded = params
    middle = threshold + (128 - threshold) // 2
    return middle, middle if bounded else 127


def _find_bursts(payload: Tensor, bursts: int, status: Tensor) -> Tensor:
    """Queue the kernels that locate a payload's bursts or set ``status``, and return the bursts' starts."""
    nbytes, device = payload.numel(), payload.device
    segments = ceil_div(nbytes, _SEGMENT.value)
    groups = ceil_div(segments, _GROUP.value)
    exits, counts = torch.empty(2, segments * _LANES.value, dtype=torch.int32, device=device)
    group_exits, group_counts = torch.empty(2, groups * _LANES.value, dtype=torch.int32, device=device)
    entries, group_entries = (torch.empty(n, dtype=torch.int32, device=device) for n in (segments, groups))
    firsts, group_firsts = (torch.empty(n, dtype=torch.int64, device=device) for n in (segments, groups))
    starts = torch.empty(bursts, dtype=torch.int64, device=device)
    launch(walk_kernel, segments, payload, nbytes, exits, counts, warps=1)
    launch(join_kernel, groups, exits, counts, segments, group_exits, group_counts, warps=2)
    chained = group_exits, group_counts, groups, group_entries, group_firsts, segments * _SEGMENT.value
    launch(chain_kernel, 1, *chained, nbytes, bursts, status, warps=1)
    spread = exits, counts, segments, group_entries, group_firsts, groups, entries, firsts
    launch(spread_kernel, ceil_div(groups, _SPREAD.value), *spread, warps=1)
    placed = payload, nbytes, entries, firsts, segments, starts, bursts
    launch(place_kernel, ceil_div(segments, _LANES.value), *placed, warps=2)
    return starts


INCEPTIONN = _Inceptionn()
