"""``errbound``: an even quantiser with four sizes of code (native/kernels/errbound_scalar.cc).

Where a value's data begins is a sum over all before it: programs count theirs, a scan adds up the counts, and
a second pass writes or reads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.contract import Format, Params
from gradwire.gpu.launch import ceil_div, launch, words_of
from gradwire.gpu.squares import relative_exponents
from gradwire.gpu.words import (
    MAGNITUDE,
    bits_of,
    float_of,
    power_of_two,
    put,
    put_words,
    round_half_even,
    take,
)

_SIZE = 1024
_TOO_LARGE = tl.constexpr(0x47000000)  # 32768, as bits


@triton.jit
def exponents_at(head, value, inside, EXPONENT: tl.constexpr, BLOCK: tl.constexpr):
    """Return the biased exponent of the bound of each value."""
    if EXPONENT != 0:
        return tl.full(value.shape, EXPONENT, tl.int32)
    elif BLOCK == 0:
        return tl.zeros(value.shape, tl.int32) + tl.load(head).to(tl.int32)
    else:
        return tl.load(head + value // BLOCK, mask=inside, other=127).to(tl.int32)


@triton.jit
def classes_and_codes(words, exponent):
    """Return the class of each value, and the bits that it may send."""
    scaled = bits_of(float_of(words) * power_of_two(126 - exponent))
    fits = (scaled & MAGNITUDE) < _TOO_LARGE
    q = round_half_even(float_of(tl.where(fits, scaled, 0).to(tl.uint32)))
    magnitude = tl.abs(q)
    # 2^(254 - E) times 2 bound is 2^128, which overflows a float.
    overflow = 1 << tl.where(exponent > 238, 254 - exponent, 16)
    whole = (magnitude > tl.minimum(32767, overflow - 1)) | (fits == 0)
    wide = magnitude > tl.minimum(127, overflow - 1)
    kind = tl.where(whole, 3, tl.where(wide, 2, tl.where(magnitude == 0, 0, 1)))
    return kind, tl.where(whole, words, q.to(tl.uint32, bitcast=True)).to(tl.uint32)


@triton.jit
def nbytes_of(kind):
    """Return how many bytes a value of a class takes: 0, 1, 2, 4."""
    return kind + (kind == 3).to(tl.int32)


@triton.jit
def count_kernel(x, head, n, totals, EXPONENT: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """Count the data bytes of SIZE values a program."""
    value = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    words = tl.load(x + value, mask=value < n, other=0)
    kind, _ = classes_and_codes(words, exponents_at(head, value, value < n, EXPONENT, BLOCK))
    tl.store(totals + tl.program_id(0), tl.sum(nbytes_of(kind), axis=0).to(tl.int64))


@triton.jit
def _encode_part(
    x,
    head,
    tags,
    data,
    n,
    before,
    EXPONENT: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    FULL: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, SIZE)
    there = at < n - start
    words = take(x + start, at, there, FULL)
    kind, code = classes_and_codes(words, exponents_at(head, start + at, there, EXPONENT, BLOCK))
    size = nbytes_of(kind)
    place = data + before + (tl.cumsum(size, axis=0) - size)
    for byte in tl.static_range(4):
        tl.store(place + byte, ((code >> (8 * byte)) & 0xFF).to(tl.uint8), mask=size > byte)
    quartets = tl.reshape(kind, (SIZE // 4, 4)) << (2 * tl.arange(0, 4))[None, :]
    quartet = tl.arange(0, SIZE // 4)
    tag = tl.sum(quartets, axis=1).to(tl.uint8)
    put(tags + start // 4, quartet, tag, quartet * 4 < n - start, FULL)


@triton.jit
def encode_kernel(
    x, head, tags, data, n, ends, totals, EXPONENT: tl.constexpr, BLOCK: tl.constexpr, SIZE: tl.constexpr
):
    """Encode SIZE values a program, whose data ends at ``ends``."""
    program = tl.program_id(0)
    before = tl.load(ends + program) - tl.load(totals + program)
    if n - program.to(tl.int64) * SIZE >= SIZE:
        _encode_part(x, head, tags, data, n, before, EXPONENT, BLOCK, SIZE, True)
    else:
        _encode_part(x, head, tags, data, n, before, EXPONENT, BLOCK, SIZE, False)


@triton.jit
def check_head_kernel(head, count, status, SIZE: tl.constexpr):
    """Look for exponents of no bound."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    exponent = tl.load(head + at, mask=at < count, other=1)
    wrong = (exponent == 0) | (exponent > 253)
    tl.atomic_max(status, tl.max(wrong.to(tl.int32), axis=0) * 4)


@triton.jit
def kinds_at(tags, value, n):
    """Return the classes of values from the tags."""
    tag = tl.load(tags + value // 4, mask=value < n, other=0).to(tl.int32)
    return (tag >> ((value % 4) * 2).to(tl.int32)) & 3


@triton.jit
def count_tags_kernel(tags, n, totals, status, SIZE: tl.constexpr):
    """Count the data bytes that tags announce, and look at the unused ones."""
    value = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    used = (n + 3) // 4 * 4  # whole bytes: values past the chunk have no data
    kind = kinds_at(tags, value, used)
    tl.atomic_max(status, tl.max(((kind != 0) & (value >= n)).to(tl.int32), axis=0) * 2)
    tl.store(totals + tl.program_id(0), tl.sum(nbytes_of(kind), axis=0).to(tl.int64))


@triton.jit
def compare_kernel(ends, programs, nbytes, status):
    """Compare what tags announce with what there is."""
    announced = tl.load(ends + programs - 1)
    tl.atomic_max(status, (announced != nbytes).to(tl.int32))


@triton.jit
def _decode_part(
    head,
    tags,
    data,
    out,
    n,
    before,
    EXPONENT: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    SIZE: tl.constexpr,
    FULL: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, SIZE)
    kind = kinds_at(tags, start + at, n)
    size = nbytes_of(kind)
    place = data + before + (tl.cumsum(size, axis=0) - size)
    code = tl.zeros([SIZE], tl.uint32)
    for byte in tl.static_range(4):
        code |= tl.load(place + byte, mask=size > byte, other=0).to(tl.uint32) << (8 * byte)
    signed = code.to(tl.int32, bitcast=True)
    narrow = (signed ^ 0x80) - 0x80
    wide = (signed ^ 0x8000) - 0x8000
    q = tl.where(kind == 1, narrow, tl.where(kind == 2, wide, 0))
    there = at < n - start
    exponent = exponents_at(head, start + at, there, EXPONENT, BLOCK)
    words = bits_of(q.to(tl.float32) * power_of_two(exponent - 126))
    put_words(out + start, at, tl.where(kind == 3, code, words).to(tl.uint32), there, FULL, ADD)


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
    SIZE: tl.constexpr,
):
    """Decode SIZE values a program."""
    program = tl.program_id(0)
    before = tl.load(ends + program) - tl.load(totals + program)
    if tl.load(status) == 0:
        if n - program.to(tl.int64) * SIZE >= SIZE:
            _decode_part(head, tags, data, out, n, before, EXPONENT, BLOCK, ADD, SIZE, True)
        else:
            _decode_part(head, tags, data, out, n, before, EXPONENT, BLOCK, ADD, SIZE, False)


class ErrBound(Format):
    """The parameters are an absolute bound's exponent, or 0, a relative bound's share, and its block."""

    is_fixed = False
    faults = (
        "its tags announce another number of bytes",
        "unused bits of its last tag are set",
        "it ends within its tags",
        "an exponent byte is not within 1..253",
        "it ends within its exponent bytes",
        "it is empty, but an exponent byte was expected",
    )

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernels that choose bounds, count, and write."""
        n = x.numel()
        exponent, share, block = (*params, 0, 0)[:3]
        count = _head_nbytes(n, params)
        head, tags = out[:count], out[count:]
        fixed_nbytes = count + ceil_div(n, 4)
        if not n:
            head.fill_(1)
            size.fill_(fixed_nbytes)
            return
        if count:
            relative_exponents(x, head, share, block or n)
        programs = ceil_div(n, _SIZE)
        totals = torch.empty(programs, dtype=torch.int64, device=x.device)
        constants = {"EXPONENT": exponent, "BLOCK": block, "SIZE": _SIZE}
        launch(count_kernel, programs, *(words_of(x), out, n, totals), **constants)
        ends = totals.cumsum(0)
        data = out[fixed_nbytes:]
        launch(encode_kernel, programs, *(words_of(x), out, tags, data, n, ends, totals), **constants)
        size.copy_(ends[-1:] + fixed_nbytes, non_blocking=True)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernels that look at exponents, count what tags announce, and read."""
        n, nbytes = out.numel(), payload.numel()
        exponent, _, block = (*params, 0, 0)[:3]
        count, tagged = _head_nbytes(n, params), ceil_div(n, 4)
        if nbytes < count:
            status.fill_(5 if nbytes else 6)
            return
        launch(check_head_kernel, ceil_div(count, _SIZE), *(payload, count, status), SIZE=_SIZE)
        if nbytes < count + tagged or not n:
            status.clamp_(min=0 if nbytes == count + tagged else 3 if n else 1)
            return
        tags, data = payload[count:], payload[count + tagged :]
        programs = ceil_div(n, _SIZE)
        totals = torch.empty(programs, dtype=torch.int64, device=out.device)
        launch(count_tags_kernel, programs, *(tags, n, totals, status), SIZE=_SIZE)
        ends = totals.cumsum(0)
        launch(compare_kernel, 1, *(ends, programs, data.numel(), status), warps=1)
        launch(
            decode_kernel,
            programs,
            *(payload, tags, data, words_of(out), n, ends, totals, status),
            EXPONENT=exponent,
            BLOCK=block,
            ADD=add,
            SIZE=_SIZE,
        )


def _head_nbytes(n: int, params: Params) -> int:
    """Return how many exponents a payload begins with."""
    exponent, _, block = (*params, 0, 0)[:3]
    if exponent:
        return 0
    return ceil_div(n, block) if block else 1


ERRBOUND = ErrBound()
