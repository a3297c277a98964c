"""``terngrad``: values -s, 0, or s, drawn by a hash of seed, checksum, and index (native/terngrad.cc)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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

_SIZE = 1024
_CODED = 512
_TILES = 4
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
def _encode_part(x, codes, left, unit, least, lift, state, is_drawn, SIZE, FULL):
    """Encode SIZE values, four per byte. All values of a thread have the same position within a byte."""
    byte = tl.arange(0, SIZE // 4)
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
def encode_kernel(x, scale, codes, n, peak, crc, low, high, TILES: tl.constexpr, SIZE: tl.constexpr):
    """Encode TILES times SIZE ``terngrad`` values per program.

    The chunk's last values are encoded first, because the checksum has left them in the cache.
    """
    start = (tl.num_programs(0) - 1 - tl.program_id(0)).to(tl.int64) * (TILES * SIZE)
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
    for _ in range(TILES):
        if left >= SIZE:
            _encode_part(x, codes, left, unit, least, lift, state, is_drawn, SIZE, True)
        else:
            _encode_part(x, codes, left, unit, least, lift, state, is_drawn, SIZE, False)
        x, codes, left = x + SIZE, codes + SIZE // 4, left - SIZE
        state += tl.full([], SIZE, tl.uint64) * _GOLDEN


@triton.jit
def check_kernel(scale, codes, nbytes, status, USED: tl.constexpr, SIZE: tl.constexpr):
    """Set ``status`` for the invalid code 3, for unused bits that aren't 0, or for an invalid scale."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
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
def _decode_part(scale, codes, out, left, ADD, SIZE, FULL):
    at = tl.arange(0, SIZE)
    loaded = take(codes, at // 4, at < left, FULL).to(tl.int32)
    code = (loaded >> ((at % 4) * 2)) & 3
    sign = tl.where((code == 2) & (scale != QUIET_NAN), 0x80000000, 0).to(tl.uint32)
    words = tl.where((code != 0) | is_nan(scale), scale ^ sign, 0).to(tl.uint32)
    put_words(out, at, words, at < left, FULL, ADD)


@triton.jit
def decode_kernel(scale, codes, out, n, status, ADD: tl.constexpr, SIZE: tl.constexpr):
    """Decode SIZE ``terngrad`` values per program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if tl.load(status) == 0:
        found = tl.load(scale)
        if n - start >= SIZE:
            _decode_part(found, codes + start // 4, out + start, n - start, ADD, SIZE, True)
        else:
            _decode_part(found, codes + start // 4, out + start, n - start, ADD, SIZE, False)


class TernGradKernels(Format):
    """The kernels of ``terngrad``. The parameters are the halves of the seed, the low half first."""

    faults = (
        "a code is 3",
        "the unused bits of its last byte are not zero",
        "its scale is negative or infinite",
    )

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernels that compute the checksum and the peak, and the kernel that encodes."""
        n = x.numel()
        if not n:
            out.zero_()
            return
        scale, codes = split(out, 4)
        crc, peak = queue_crc32c(x)
        args = words_of(x), words_of(scale), codes, n, peak, crc, *map(signed, params)
        launch(encode_kernel, ceil_div(n, _TILES * _CODED), *args, warps=1, TILES=_TILES, SIZE=_CODED)

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:
        """Queue the kernel that checks the scale and the codes."""
        scale, codes = split(payload, 4)
        nbytes = codes.numel()
        programs, args = max(ceil_div(nbytes, _SIZE), 1), (words_of(scale), codes, nbytes, status)
        launch(check_kernel, programs, *args, USED=2 * (n % 4), SIZE=_SIZE)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernel that decodes values, or adds them to ``out``."""
        n, (scale, codes) = out.numel(), split(payload, 4)
        args = words_of(scale), codes, words_of(out), n, status
        launch(decode_kernel, ceil_div(n, _SIZE), *args, ADD=add, SIZE=_SIZE)


TERNGRAD = TernGradKernels()
