"""``quantize``: signed codes of 8 or 4 bits with a scale per block (native/quantize.cc)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import (
    INFINITY,
    QUIET_NAN,
    Tiles,
    bits_of,
    ceil_div,
    float_of,
    inside,
    is_nan,
    launch,
    peak_of,
    peak_of_block,
    places,
    put,
    put_words,
    round_half_even,
    split,
    take,
    take_tile,
    words_of,
)

_SMALLEST_PEAK = tl.constexpr((127 - 100) << 23)  # 2^-100, below which 1 / scale could overflow
_CHECKED = tl.constexpr(4096)


@triton.jit
def scale_of(peak, BITS):
    """Return the bits of a block's scale for its peak; the low 8 bits are 0, so that products are exact."""
    quotient = tl.div_rn(float_of(peak), tl.full(peak.shape, 127.0 if BITS == 8 else 7.0, tl.float32))
    scale = tl.where(peak < _SMALLEST_PEAK, 0, bits_of(quotient) & 0xFFFFFF00)
    return tl.where(peak >= INFINITY, QUIET_NAN, scale).to(tl.uint32)


@triton.jit
def codes_of(tile, scale):
    """Return the codes of values; 0 in blocks without codes."""
    has_codes = (scale > 0) & (scale < INFINITY)
    divisor = float_of(tl.where(has_codes, scale, 0x3F800000).to(tl.uint32))
    inverse = tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), divisor)
    value = float_of(tl.where(has_codes[:, None], tile, 0).to(tl.uint32))
    return round_half_even(value * inverse[:, None])


@triton.jit
def _encode_tile(tile, scale, codes, at, left, BITS, SHAPE, FULL):
    whole: tl.constexpr = FULL and SHAPE[0] % SHAPE[2] == 0
    code = codes_of(tile, scale)
    if BITS == 8:
        put(codes, places(at, SHAPE), code.to(tl.uint8), inside(at, left, SHAPE, FULL), whole)
    else:
        pairs: tl.constexpr = (SHAPE[0] // 2, SHAPE[1], SHAPE[2] // 2)
        low, high = tl.split(tl.reshape(code, (SHAPE[1], SHAPE[2] // 2, 2)))
        pair = (low & 0xF) | ((high & 0xF) << 4)
        there = inside(at // 2, (left + 1) // 2, pairs, FULL)
        put(codes, places(at // 2, pairs), pair.to(tl.uint8), there, whole)


@triton.jit
def encode_kernel(x, scales, codes, n, BITS: tl.constexpr, SHAPE: tl.constexpr):
    """Encode ROWS ``quantize`` blocks per program."""
    rows = tl.arange(0, SHAPE[1])
    row = tl.program_id(0).to(tl.int64) * SHAPE[1]
    start = row * SHAPE[0]
    x, codes, left = x + start, codes + start * BITS // 8, n - start
    for full in tl.static_range(2):
        if (left >= SHAPE[1] * SHAPE[0]) == full:
            if SHAPE[0] <= SHAPE[2]:
                tile = take_tile(x, 0, left, SHAPE, full)
                scale = scale_of(peak_of(tile), BITS)
                _encode_tile(tile, scale, codes, 0, left, BITS, SHAPE, full)
            else:
                scale = scale_of(peak_of_block(x, left, SHAPE, full), BITS)
                for at in range(0, SHAPE[0] if full else tl.minimum(left, SHAPE[0]).to(tl.int32), SHAPE[2]):
                    tile = take_tile(x, at, left, SHAPE, full)
                    _encode_tile(tile, scale, codes, at, left, BITS, SHAPE, full)
            put(scales + row, rows, scale, rows * SHAPE[0] < left, full)


@triton.jit
def check_scales_kernel(scales, blocks, status):
    """Set ``status`` if the scale of a block is invalid."""
    at = tl.program_id(0).to(tl.int64) * _CHECKED + tl.arange(0, _CHECKED)
    scale = tl.load(scales + at, mask=at < blocks, other=0)
    wrong = (scale >= INFINITY) & (scale != QUIET_NAN)
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.atomic_max(status, 3)


@triton.jit
def check_codes_kernel(codes, nbytes, status, IS_ODD: tl.constexpr, BITS: tl.constexpr):
    """Set ``status`` if a code is the invalid -128 or -8, or if an unused half byte isn't 0."""
    at = tl.program_id(0).to(tl.int64) * _CHECKED + tl.arange(0, _CHECKED)
    code = tl.load(codes + at, mask=at < nbytes, other=0).to(tl.int32)
    if BITS == 8:
        wrong = (code == 0x80).to(tl.int32)
    else:
        wrong = (((code & 0xF) == 8) | (code >> 4 == 8)).to(tl.int32)
        if IS_ODD:
            wrong = tl.where((at == nbytes - 1) & (code >> 4 != 0), 2, wrong)
    fault = tl.max(wrong, axis=0)
    if fault > 0:
        tl.atomic_max(status, fault)


@triton.jit
def _decode_tile(codes, at, left, BITS, SHAPE, FULL):
    whole: tl.constexpr = FULL and SHAPE[0] % SHAPE[2] == 0
    if BITS == 8:
        code = take(codes, places(at, SHAPE), inside(at, left, SHAPE, FULL), whole).to(tl.int32)
        return (code ^ 0x80) - 0x80
    else:
        pairs: tl.constexpr = (SHAPE[0] // 2, SHAPE[1], SHAPE[2] // 2)
        there = inside(at // 2, (left + 1) // 2, pairs, FULL)
        pair = take(codes, places(at // 2, pairs), there, whole).to(tl.int32)
        both = tl.reshape(tl.join(pair & 0xF, pair >> 4), (SHAPE[1], SHAPE[2]))
        return (both ^ 8) - 8


@triton.jit
def decode_kernel(scales, codes, out, n, status, BITS: tl.constexpr, ADD: tl.constexpr, SHAPE: tl.constexpr):
    """Decode ROWS ``quantize`` blocks per program."""
    rows = tl.arange(0, SHAPE[1])
    row = tl.program_id(0).to(tl.int64) * SHAPE[1]
    start = row * SHAPE[0]
    codes, out, left = codes + start * BITS // 8, out + start, n - start
    if tl.load(status) == 0:
        for full in tl.static_range(2):
            if (left >= SHAPE[1] * SHAPE[0]) == full:
                whole: tl.constexpr = full and SHAPE[0] % SHAPE[2] == 0
                scale = take(scales + row, rows, rows * SHAPE[0] < left, full)
                finite = float_of(tl.where(is_nan(scale), 0, scale).to(tl.uint32))
                for at in range(0, SHAPE[0] if full else tl.minimum(left, SHAPE[0]).to(tl.int32), SHAPE[2]):
                    code = _decode_tile(codes, at, left, BITS, SHAPE, full)
                    word = bits_of(code.to(tl.float32) * finite[:, None])
                    word = tl.where(is_nan(scale)[:, None], QUIET_NAN, word).to(tl.uint32)
                    put_words(out, places(at, SHAPE), word, inside(at, left, SHAPE, full), whole, ADD)


class _Quantize(Format):
    """The kernels of ``quantize``. The parameters are the bits of a code, and the block size."""

    faults = (
        "a code is out of range",
        "the unused half of its last byte is not zero",
        "a scale is negative or infinite",
    )

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n, (bits, block) = x.numel(), params
        tiles = Tiles(n, block)
        scales, codes = split(out, 4 * ceil_div(n, block))
        args = words_of(x), words_of(scales), codes, n
        launch(encode_kernel, tiles.programs, *args, BITS=bits, **tiles.constants)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, (bits, block) = out.numel(), params
        tiles, blocks = Tiles(n, block), ceil_div(n, block)
        scales, codes = split(payload, 4 * blocks)
        nbytes, is_odd = codes.numel(), n % 2 == 1
        launch(check_scales_kernel, ceil_div(blocks, _CHECKED.value), words_of(scales), blocks, status)
        checked = codes, nbytes, status
        launch(check_codes_kernel, ceil_div(nbytes, _CHECKED.value), *checked, IS_ODD=is_odd, BITS=bits)
        args = words_of(scales), codes, words_of(out), n, status
        launch(decode_kernel, tiles.programs, *args, BITS=bits, ADD=add, **tiles.constants)


QUANTIZE = _Quantize()
