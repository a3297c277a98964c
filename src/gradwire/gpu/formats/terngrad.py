"""``terngrad``: -s, 0 or s, drawn from a hash of seed, checksum, and place (native/terngrad.cc)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.blocks import split
from gradwire.gpu.checksum import queue_crc32c
from gradwire.gpu.contract import Format, Params
from gradwire.gpu.launch import ceil_div, launch, signed, words_of
from gradwire.gpu.words import INFINITY, QUIET_NAN, bits_of, float_of, is_nan, put, put_words, take

_SIZE = 1024
_CODED = 256
_TILES = 8
"""Values that a program's one warp encodes at a time, and how often."""
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_SMALL = tl.constexpr(2.0**-100)
"""Scales far below this have no float as 2^23 over them."""


@triton.jit
def _drawn(key, place):
    """Return 32 random bits of each place, the first ones of SplitMix64's 64; the codec draws 24 of them."""
    z = key + place.to(tl.uint64) * _GOLDEN
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return (z >> 32).to(tl.uint32)  # but for the last one, which is not drawn, z ^ (z >> 31) has the same


@triton.jit
def _chosen(magnitude, scale, factor, drawn):
    """Return 1 where the first 24 of the bits, as a number below 1, are below magnitude / scale, rounded.

    The first 23 are compared with a product first, in units of 2^-23; both are above 2^23, where floats are
    integers. The bit left out, the factor, the sum, and the rounding of the quotient make less than 3 units,
    so that few programs have to divide.
    """
    apart = float_of((drawn >> 9) | 0x4B000000) - tl.fma(magnitude, factor, 8388608.0)
    if (tl.min(tl.abs(apart), axis=0) < 4.0) | (scale < _SMALL):
        number = (drawn >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08
        below = (number < tl.div_rn(magnitude, tl.zeros_like(magnitude) + scale)).to(tl.uint32)
    else:
        below = bits_of(apart) >> 31  # a difference of 0 is +0
    return below


@triton.jit
def _encode_part(x, codes, left, scale, factor, key, is_drawn, SIZE: tl.constexpr, FULL: tl.constexpr):
    at = tl.arange(0, SIZE)
    words = take(x, at, at < left, FULL)
    code = _chosen(tl.abs(float_of(words)), scale, factor, _drawn(key, at)) << (words >> 31)
    quartets = tl.sum(tl.reshape(code, (SIZE // 4, 4)) << (2 * tl.arange(0, 4))[None, :], axis=1)
    at = tl.arange(0, SIZE // 4)
    put(codes, at, tl.where(is_drawn, quartets, 0).to(tl.uint8), at * 4 < left, FULL)


@triton.jit
def _unsigned(number):
    return number.to(tl.uint32, bitcast=True).to(tl.uint64)


@triton.jit(do_not_specialize=["low", "high"])
def encode_kernel(x, scale, codes, n, peak, crc, low, high, TILES: tl.constexpr, SIZE: tl.constexpr):
    """Encode TILES times SIZE values a program: what they share is computed once."""
    start = tl.program_id(0).to(tl.int64) * (TILES * SIZE)
    found = tl.load(peak).to(tl.int32, bitcast=True)
    is_drawn = (found > 0) & (found < INFINITY)
    divisor = float_of(tl.where(is_drawn, found, 0x3F800000).to(tl.uint32))
    factor = tl.div_rn(8388608.0, divisor)
    key = tl.load(crc).to(tl.uint64) ^ _unsigned(low) ^ (_unsigned(high) << 32)
    key += (start + 1).to(tl.uint64) * _GOLDEN
    if start == 0:
        tl.store(scale, tl.where(found >= INFINITY, QUIET_NAN, found).to(tl.uint32))
    for _ in range(TILES):
        if n - start >= SIZE:
            _encode_part(x + start, codes + start // 4, n - start, divisor, factor, key, is_drawn, SIZE, True)
        else:
            _encode_part(
                x + start, codes + start // 4, n - start, divisor, factor, key, is_drawn, SIZE, False
            )
        key += tl.full([], SIZE, tl.uint64) * _GOLDEN
        start += SIZE


@triton.jit
def check_kernel(scale, codes, nbytes, status, USED: tl.constexpr, SIZE: tl.constexpr):
    """Look for the code that no encoder makes, unused bits that are set, and a scale of no chunk."""
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
def _decode_part(scale, codes, out, left, ADD: tl.constexpr, SIZE: tl.constexpr, FULL: tl.constexpr):
    at = tl.arange(0, SIZE)
    loaded = take(codes, at // 4, at < left, FULL).to(tl.int32)
    code = (loaded >> ((at % 4) * 2)) & 3
    sign = tl.where((code == 2) & (scale != QUIET_NAN), 0x80000000, 0).to(tl.uint32)
    words = tl.where((code != 0) | is_nan(scale), scale ^ sign, 0).to(tl.uint32)
    put_words(out, at, words, at < left, FULL, ADD)


@triton.jit
def decode_kernel(scale, codes, out, n, status, ADD: tl.constexpr, SIZE: tl.constexpr):
    """Decode SIZE values a program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if tl.load(status) == 0:
        found = tl.load(scale)
        if n - start >= SIZE:
            _decode_part(found, codes + start // 4, out + start, n - start, ADD, SIZE, True)
        else:
            _decode_part(found, codes + start // 4, out + start, n - start, ADD, SIZE, False)


class TernGrad(Format):
    """The parameters are the halves of the seed, the low one first."""

    faults = (
        "a code is 3",
        "the unused bits of its last byte are not zero",
        "its scale is negative or infinite",
    )

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernels that make the checksum and look for the peak, and the one that draws."""
        n = x.numel()
        if not n:
            out.zero_()
            return
        scale, codes = split(out, 4)
        crc, peak = queue_crc32c(x)
        launch(
            encode_kernel,
            ceil_div(n, _TILES * _CODED),
            *(words_of(x), words_of(scale), codes, n, peak, crc, *map(signed, params)),
            warps=1,
            TILES=_TILES,
            SIZE=_CODED,
        )

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:
        """Queue the kernel that looks at the scale and at the codes."""
        scale, codes = split(payload, 4)
        nbytes = codes.numel()
        launch(
            check_kernel,
            max(ceil_div(nbytes, _SIZE), 1),
            *(words_of(scale), codes, nbytes, status),
            USED=2 * (n % 4),
            SIZE=_SIZE,
        )

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernel that looks the values up."""
        scale, codes = split(payload, 4)
        n = out.numel()
        launch(
            decode_kernel,
            ceil_div(n, _SIZE),
            *(words_of(scale), codes, words_of(out), n, status),
            ADD=add,
            SIZE=_SIZE,
        )


TERNGRAD = TernGrad()
