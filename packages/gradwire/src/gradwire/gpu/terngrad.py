"""``terngrad``: values -s, 0, or s, drawn by a hash of seed, checksum, and index (native/terngrad.cc)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.checksum import queue_crc32c
from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import (
    INFINITY,
    QUIET_NAN,
    bits_of,
    ceil_div,
    float_of,
    is_nan,
    launch,
    put,
    put_words,
    signed,
    split,
    take,
    words_of,
)

_SIZE = tl.constexpr(1024)
_CODED = tl.constexpr(512)
_TILES = tl.constexpr(4)
"""The number of tiles per program. The program's one warp encodes a tile of ``_CODED`` values at a time."""
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_GOLDEN_4 = tl.constexpr(4 * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
_LIFT = tl.constexpr(2.0**64)
"""The factor by which values are multiplied if the scale is below 2^-64, so that products don't underflow."""
_BIT_OF_24 = tl.constexpr(2.0**-24)


@triton.jit
def _drawn(z):
    """Return the top 24 bits of the random numbers that follow from SplitMix64 states."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return (z >> 40).to(tl.uint32)  # z ^ (z >> 31) has the same 24 bits


@triton.jit
def _least(scale):
    """Return the largest float up to 2^-150 scale: the largest value that, divided by scale, rounds to 0."""
    subnormal = (tl.minimum(scale, 16777216.0) * 0.5).to(tl.uint32)
    return float_of(tl.where(scale < 16777216.0, subnormal, bits_of(scale) - (150 << 23)))


@triton.jit
def _is_chosen(magnitude, unit, least, drawn):
    """Return whether 2^-24 drawn is below the rounded quotient magnitude / scale. ``unit`` is 2^-24 scale.

    The test is whether drawn plus half a unit in its last place is below the exact quotient, because a
    quotient of floats is never the midpoint of two floats. Near the midpoint, the difference ``left`` is
    exact, so no division is needed. Half the unit of 0 is ``least``; if drawn isn't 0, ``least`` is too small
    to change the sum.
    """
    number = drawn.to(tl.int32).to(tl.float32)
    left = tl.fma(number, -unit, magnitude)
    power = float_of(bits_of(number) & INFINITY)
    return tl.fma(power, unit * _BIT_OF_24, least) < left


@triton.jit
def _encode_part(x, codes, left, unit, least, lift, state, is_drawn, FULL):
    """Encode a tile, four values per byte. All values of a thread have the same position within a byte."""
    byte = tl.arange(0, _CODED // 4)
    place = tl.arange(0, 4)
    at = byte[:, None] * 4 + place[None, :]
    words = take(x, at, at < left, FULL)
    states = (state + byte.to(tl.uint64) * _GOLDEN_4)[:, None] + (place.to(tl.uint64) * _GOLDEN)[None, :]
    is_chosen = _is_chosen(tl.abs(float_of(words) * lift), unit, least, _drawn(states))
    code = tl.where(words >= 0x80000000, 2, 1) << (2 * place)[None, :]
    quartets = tl.sum(tl.where(is_chosen, code, 0), axis=1)
    put(codes, byte, tl.where(is_drawn, quartets, 0).to(tl.uint8), byte * 4 < left, FULL)


@triton.jit
def _unsigned(number):
    return number.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit(do_not_specialize=["low", "high"])
def encode_kernel(x, scale, codes, n, peak, crc, low, high):
    """Encode ``terngrad`` values, tile by tile.

    The chunk's last values are encoded first, because the checksum has left them in the cache.
    """
    start = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * (_TILES * _CODED)
    found = tl.load(peak).to(tl.int32, bitcast=True)
    is_drawn = (found > 0) & (found < INFINITY)
    largest = float_of(tl.where(is_drawn, found, 0x3F800000).to(tl.uint32))
    lift = tl.where(largest < 1 / _LIFT, _LIFT, 1.0)
    unit, least = largest * lift * _BIT_OF_24, _least(largest * lift)
    state = tl.load(crc).to(tl.uint64) ^ _unsigned(low) ^ (_unsigned(high) << 32)
    state += (start + 1).to(tl.uint64) * _GOLDEN
    if start == 0:
        tl.store(scale, tl.where(found >= INFINITY, QUIET_NAN, found).to(tl.uint32))
    x, codes, left = x + start, codes + start // 4, n - start
    for _ in range(_TILES):
        for full in tl.static_range(2):
            if (left >= _CODED) == full:
                _encode_part(x, codes, left, unit, least, lift, state, is_drawn, full)
        x, codes, left = x + _CODED, codes + _CODED // 4, left - _CODED
        state += tl.full([], _CODED, tl.uint64) * _GOLDEN


@triton.jit
def check_kernel(scale, codes, nbytes, status, USED: tl.constexpr):
    """Set ``status`` for the invalid code 3, for unused bits that aren't 0, or for an invalid scale."""
    at = tl.program_id(0).to(tl.int64) * _SIZE + tl.arange(0, _SIZE)
    code = tl.load(codes + at, mask=at < nbytes, other=0).to(tl.int32)
    fault = tl.max((((code & (code >> 1)) & 0x55) != 0).to(tl.int32), axis=0)
    if USED:
        unused = (at == nbytes - 1) & ((code >> USED) != 0)
        fault = tl.maximum(fault, tl.max(unused.to(tl.int32), axis=0) * 2)
    if tl.program_id(0) == 0:
        found = tl.load(scale)
        wrong = (found >= INFINITY) & (found != QUIET_NAN)
        fault = tl.maximum(fault, wrong.to(tl.int32) * 3)
    tl.atomic_max(status, fault)


@triton.jit
def decode_kernel(scale, codes, out, n, status, ADD: tl.constexpr):
    """Decode ``terngrad`` values."""
    at = tl.arange(0, _SIZE)
    start = tl.program_id(0).to(tl.int64) * _SIZE
    codes, out, left = codes + start // 4, out + start, n - start
    if tl.load(status) == 0:
        found = tl.load(scale)
        for full in tl.static_range(2):
            if (left >= _SIZE) == full:
                loaded = take(codes, at // 4, at < left, full).to(tl.int32)
                code = (loaded >> ((at % 4) * 2)) & 3
                sign = tl.where((code == 2) & (found != QUIET_NAN), 0x80000000, 0).to(tl.uint32)
                words = tl.where((code != 0) | is_nan(found), found ^ sign, 0).to(tl.uint32)
                put_words(out, at, words, at < left, full, ADD)


class _TernGrad(Format):
    """The kernels of ``terngrad``. The parameters are the halves of the seed, the low half first."""

    faults = (
        "a code is 3",
        "the unused bits of its last byte are not zero",
        "its scale is negative or infinite",
    )

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n = x.numel()
        if not n:
            out.zero_()
            return
        scale, codes = split(out, 4)
        crc, peak = queue_crc32c(x)
        args = words_of(x), words_of(scale), codes, n, peak, crc, *map(signed, params)
        launch(encode_kernel, ceil_div(n, _TILES.value * _CODED.value), *args, warps=1)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, (scale, codes) = out.numel(), split(payload, 4)
        nbytes, scale = codes.numel(), words_of(scale)
        checking = max(ceil_div(nbytes, _SIZE.value), 1)
        launch(check_kernel, checking, scale, codes, nbytes, status, USED=2 * (n % 4))
        launch(decode_kernel, ceil_div(n, _SIZE.value), scale, codes, words_of(out), n, status, ADD=add)


TERNGRAD = _TernGrad()
