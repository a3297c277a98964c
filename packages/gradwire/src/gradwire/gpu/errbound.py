"""``errbound``: a uniform quantiser with four code sizes (native/kernels/errbound_scalar.cc).

The code of a value starts after the codes of all values before it. Therefore, each program counts the bytes
of its values' codes, a scan sums the counts, and a second pass writes or reads the codes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.code_sizes import SIZE, coded, exponents_at, nbytes_of, queue_sizes
from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import bits_of, ceil_div, launch, power_of_two, put, put_words, take, words_of

_ROWS = tl.constexpr(8)
_HALF = tl.constexpr(SIZE.value // 2)


@triton.jit
def _encode_half(x, head, n, start, EXPONENT, BLOCK, FULL):
    # Consecutive values belong to consecutive threads, because codes are stored byte by byte. If each thread
    # loaded four values, the codes would have to be exchanged between threads.
    at = tl.max_contiguous(tl.arange(0, _HALF), 1)
    there = at < n - start
    words = take(x + start, at, there, FULL)
    code, some, wide, whole = coded(words, exponents_at(head, start, at, n, EXPONENT, BLOCK, _HALF))
    return tl.where(whole, words, code).to(tl.uint32), nbytes_of(some, wide, whole)


@triton.jit
def _put_half(tags, place, code, size, wide, left, FULL):
    tl.store(place, code.to(tl.uint8), mask=size > 0)
    if wide:
        for byte in tl.static_range(1, 4):
            tl.store(place + byte, (code >> (8 * byte)).to(tl.uint8), mask=size > byte)
    kind = size - (size >> 2)
    quartets = tl.reshape(kind, (_HALF // 4, 4)) << (2 * tl.arange(0, 4))[None, :]
    quartet = tl.arange(0, _HALF // 4)
    put(tags, quartet, tl.sum(quartets, axis=1).to(tl.uint8), quartet * 4 < left, FULL)


@triton.jit
def encode_kernel(x, head, tags, data, n, ends, totals, wides, EXPONENT: tl.constexpr, BLOCK: tl.constexpr):
    """Encode ``errbound`` values. ``ends`` are the ends of the programs' codes.

    ``wides`` says which programs have codes of 2 or more bytes; these are few. All other programs store at
    most one byte per value.
    """
    program = tl.program_id(0)
    before = tl.load(ends + program) - tl.load(totals + program)
    wide = tl.load(wides + program) != 0
    start = program.to(tl.int64) * SIZE
    middle = start + _HALF
    left = n - start
    data += before
    for full in tl.static_range(2):
        if (left >= SIZE) == full:
            code, size = _encode_half(x, head, n, start, EXPONENT, BLOCK, full)
            code2, size2 = _encode_half(x, head, n, middle, EXPONENT, BLOCK, full)
            both = tl.cumsum(size | (size2 << 16), axis=0)  # the ends in the two halves, packed in one word
            _put_half(tags + start // 4, data + ((both & 0xFFFF) - size), code, size, wide, left, full)
            place = data + tl.sum(size, axis=0) + ((both >> 16) - size2)
            _put_half(tags + middle // 4, place, code2, size2, wide, left - _HALF, full)


@triton.jit
def check_head_kernel(head, count, status):
    """Set ``status`` if an exponent byte at the start of the payload is invalid."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    exponent = tl.load(head + at, mask=at < count, other=1)
    wrong = (exponent == 0) | (exponent > 253)
    tl.atomic_max(status, tl.max(wrong.to(tl.int32), axis=0) * 4)


@triton.jit
def kinds_at(tags, value, n):
    """Load the size classes of values from the payload's tags."""
    tag = tl.load(tags + value // 4, mask=value < n, other=0).to(tl.int32)
    return (tag >> ((value % 4) * 2).to(tl.int32)) & 3


@triton.jit
def _nbytes_of_tags(tag):
    """Return the number of code bytes of the four values of a tag, by pairwise sums of the values' sizes."""
    whole = tag & (tag >> 1) & 0x55
    pairs = (tag & 0x33) + ((tag >> 2) & 0x33) + (whole & 0x11) + ((whole >> 2) & 0x11)
    return (pairs & 0xF) + (pairs >> 4)


@triton.jit
def count_tags_kernel(tags, n, totals, programs, status):
    """Count the code bytes that tags declare, for SIZE values at a time, and check the unused tags."""
    row = tl.program_id(0).to(tl.int64) * _ROWS
    rows = tl.arange(0, _ROWS)
    at = rows[:, None] * (SIZE // 4) + tl.arange(0, SIZE // 4)[None, :]
    tags += row * (SIZE // 4)
    totals += row
    left = n - row * SIZE
    if left >= _ROWS * SIZE:
        tag = tl.load(tags + at).to(tl.int32)
        tl.store(totals + rows, tl.sum(_nbytes_of_tags(tag), axis=1).to(tl.int64))
    else:
        used = ((left + 3) // 4).to(tl.int32)
        tag = tl.load(tags + at, mask=at < used, other=0).to(tl.int32)
        in_last = 2 * ((left + 3) % 4 + 1).to(tl.int32)  # used bits of the last tag
        unused = (at == used - 1) & ((tag >> in_last) != 0)
        tl.atomic_max(status, tl.max(tl.max(unused.to(tl.int32), axis=1), axis=0) * 2)
        tl.store(totals + rows, tl.sum(_nbytes_of_tags(tag), axis=1).to(tl.int64), mask=row + rows < programs)


@triton.jit
def compare_kernel(ends, programs, nbytes, status):
    """Set ``status`` if the tags declare a number of code bytes that isn't the payload's."""
    announced = tl.load(ends + programs - 1)
    tl.atomic_max(status, (announced != nbytes).to(tl.int32))


@triton.jit
def _words_of(code, kind, exponent):
    """Return the bits of the floats for codes of a size class, by the exponents of their bounds."""
    signed = code.to(tl.int32, bitcast=True)
    narrow = (signed ^ 0x80) - 0x80
    wide = (signed ^ 0x8000) - 0x8000
    q = tl.where(kind == 1, narrow, tl.where(kind == 2, wide, 0))
    words = bits_of(q.to(tl.float32) * power_of_two(exponent - 126))
    return tl.where(kind == 3, code, words).to(tl.uint32)


@triton.jit
def decode_kernel(
    head,
    tags,
    data,
    out,
    n,
    ends,
    totals,
    status,
    EXPONENT: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    """Decode ``errbound`` values."""
    program = tl.program_id(0)
    before = tl.load(ends + program) - tl.load(totals + program)
    start = program.to(tl.int64) * SIZE
    at = tl.arange(0, SIZE)
    there = at < n - start
    if tl.load(status) == 0:
        for full in tl.static_range(2):
            if (n - start >= SIZE) == full:
                kind = kinds_at(tags, start + at, n)
                size = kind + (kind == 3).to(tl.int32)
                place = data + before + (tl.cumsum(size, axis=0) - size)
                code = tl.zeros([SIZE], tl.uint32)
                for byte in tl.static_range(4):
                    code |= tl.load(place + byte, mask=size > byte, other=0).to(tl.uint32) << (8 * byte)
                exponent = exponents_at(head, start, at, n, EXPONENT, BLOCK, SIZE)
                put_words(out + start, at, _words_of(code, kind, exponent), there, full, ADD)


class _ErrBound(Format):
    """The kernels of ``errbound``.

    The parameters are the exponent of an absolute bound or 0, the bits of a relative bound, and the block
    size.
    """

    is_fixed = False
    faults = (
        "its tags declare a different number of bytes",
        "unused bits of its last tag are set",
        "its tags are truncated",
        "an exponent byte is not within 1..253",
        "its exponent bytes are truncated",
        "it is empty, but an exponent byte was expected",
    )

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n, (exponent, share, block) = x.numel(), _three(params)
        count = _head_nbytes(n, params)
        head, tags = out[:count], out[count:]
        fixed_nbytes = count + ceil_div(n, 4)
        if not n:
            head.fill_(1)
            size.fill_(fixed_nbytes)
            return
        totals, wides = queue_sizes(x, head, exponent, share, block)
        ends = totals.cumsum(0)
        written = words_of(x), out, tags, out[fixed_nbytes:], n, ends, totals, wides
        launch(encode_kernel, ceil_div(n, SIZE.value), *written, EXPONENT=exponent, BLOCK=block)
        size.copy_(ends[-1:] + fixed_nbytes, non_blocking=True)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, nbytes = out.numel(), payload.numel()
        exponent, _, block = _three(params)
        count, tagged = _head_nbytes(n, params), ceil_div(n, 4)
        if nbytes < count:
            status.fill_(5 if nbytes else 6)
            return
        launch(check_head_kernel, ceil_div(count, SIZE.value), payload, count, status)
        if nbytes < count + tagged or not n:
            status.clamp_(min=0 if nbytes == count + tagged else 3 if n else 1)
            return
        tags, data = payload[count:], payload[count + tagged :]
        programs = ceil_div(n, SIZE.value)
        totals = torch.empty(programs, dtype=torch.int64, device=out.device)
        launch(count_tags_kernel, ceil_div(programs, _ROWS.value), tags, n, totals, programs, status)
        ends = totals.cumsum(0)
        launch(compare_kernel, 1, ends, programs, data.numel(), status, warps=1)
        read = payload, tags, data, words_of(out), n, ends, totals, status
        launch(decode_kernel, programs, *read, EXPONENT=exponent, BLOCK=block, ADD=add)


def _three(params: Params) -> Params:
    return (*params, 0, 0)[:3]


def _head_nbytes(n: int, params: Params) -> int:
    """Return the number of exponent bytes at the start of a payload."""
    exponent, _, block = _three(params)
    if exponent:
        return 0
    return ceil_div(n, block) if block else 1


ERRBOUND = _ErrBound()
