"""``fp8``: 8-bit floats with a power-of-two scale per block (native/kernels/fp8_scalar.cc)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import (
    MAGNITUDE,
    NAN_EXPONENT,
    QUIET_NAN,
    SMALLEST_EXPONENT,
    Tiles,
    bits_of,
    ceil_div,
    exponent_of,
    float_of,
    inside,
    launch,
    peak_of,
    peak_of_block,
    places,
    power_of_two,
    put,
    put_words,
    split,
    take,
    take_tile,
    words_of,
)

_CHECKED = tl.constexpr(1024)


@triton.jit
def code_of(words, exponent):
    """Convert floats to 8-bit codes, rounded by adding a power of two with the last place of the codes."""
    sign = (words >> 31) << 7
    ordinary = (exponent >= SMALLEST_EXPONENT) & (exponent < NAN_EXPONENT)
    value = float_of(tl.where(ordinary, words & MAGNITUDE, 0)) * power_of_two(134 - exponent)
    binade = bits_of(value) & 0x7F800000
    raised = tl.maximum(binade, 121 << 23) + (20 << 23)
    units = bits_of(value + float_of(raised)) - raised
    magnitude = units + (raised >> 20) - ((121 + 20) << 3)
    magnitude = tl.minimum(magnitude, tl.where(exponent == 254, 0x77, 0x78).to(tl.uint32))
    return tl.where(ordinary, sign | magnitude, 0).to(tl.uint8)


@triton.jit
def word_of(code, exponent):
    """Convert 8-bit codes to float32 bits, by the exponent of their block."""
    magnitude = code & 0x7F
    normal = (magnitude + 120 * 8) << 20
    subnormal = bits_of(float_of(0x46800000 + magnitude) - 16384.0)
    unscaled = tl.where(magnitude < 8, subnormal, normal) | ((code & 0x80) << 24)
    ordinary = (exponent >= SMALLEST_EXPONENT) & (exponent < NAN_EXPONENT)
    scale = power_of_two(tl.where(ordinary, exponent, 134) - 134)
    word = bits_of(float_of(unscaled) * scale)
    return tl.where(ordinary, word, tl.where(exponent == NAN_EXPONENT, QUIET_NAN, 0).to(tl.uint32))


@triton.jit
def encode_kernel(x, exponents, codes, n, SHAPE: tl.constexpr):
    """Encode ROWS ``fp8`` blocks per program."""
    rows = tl.arange(0, SHAPE[1])
    row = tl.program_id(0).to(tl.int64) * SHAPE[1]
    start = row * SHAPE[0]
    x, codes, left = x + start, codes + start, n - start
    for full in tl.static_range(2):
        if (left >= SHAPE[1] * SHAPE[0]) == full:
            whole: tl.constexpr = full and SHAPE[0] % SHAPE[2] == 0
            if SHAPE[0] <= SHAPE[2]:
                tile = take_tile(x, 0, left, SHAPE, full)
                exponent = exponent_of(peak_of(tile))
                code, there = code_of(tile, exponent[:, None]), inside(0, left, SHAPE, full)
                put(codes, places(0, SHAPE), code, there, whole)
            else:
                exponent = exponent_of(peak_of_block(x, left, SHAPE, full))
                for at in range(0, SHAPE[0] if full else tl.minimum(left, SHAPE[0]).to(tl.int32), SHAPE[2]):
                    code = code_of(take_tile(x, at, left, SHAPE, full), exponent[:, None])
                    put(codes, places(at, SHAPE), code, inside(at, left, SHAPE, full), whole)
            put(exponents + row, rows, exponent.to(tl.uint8), rows * SHAPE[0] < left, full)


@triton.jit
def check_kernel(exponents, blocks, status):
    """Set ``status`` if the exponent byte of a block is invalid."""
    at = tl.program_id(0).to(tl.int64) * _CHECKED + tl.arange(0, _CHECKED)
    exponent = tl.load(exponents + at, mask=at < blocks, other=0).to(tl.int32)
    wrong = (exponent > 0) & (exponent < SMALLEST_EXPONENT)
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.store(status, 1)


@triton.jit
def decode_kernel(exponents, codes, out, n, status, ADD: tl.constexpr, SHAPE: tl.constexpr):
    """Decode ROWS ``fp8`` blocks per program."""
    rows = tl.arange(0, SHAPE[1])
    row = tl.program_id(0).to(tl.int64) * SHAPE[1]
    start = row * SHAPE[0]
    codes, out, left = codes + start, out + start, n - start
    if tl.load(status) == 0:
        for full in tl.static_range(2):
            if (left >= SHAPE[1] * SHAPE[0]) == full:
                whole: tl.constexpr = full and SHAPE[0] % SHAPE[2] == 0
                exponent = take(exponents + row, rows, rows * SHAPE[0] < left, full).to(tl.int32)
                for at in range(0, SHAPE[0] if full else tl.minimum(left, SHAPE[0]).to(tl.int32), SHAPE[2]):
                    where, there = places(at, SHAPE), inside(at, left, SHAPE, full)
                    code = take(codes, where, there, whole).to(tl.uint32)
                    put_words(out, where, word_of(code, exponent[:, None]), there, whole, ADD)


class _Fp8(Format):
    """The kernels of ``fp8``. The parameter is the block size."""

    faults = ("an exponent byte is in the invalid range 1..31",)

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n, (block,) = x.numel(), params
        tiles = Tiles(n, block)
        args = words_of(x), *split(out, ceil_div(n, block)), n
        launch(encode_kernel, tiles.programs, *args, **tiles.constants)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, (block,) = out.numel(), params
        tiles, blocks = Tiles(n, block), ceil_div(n, block)
        exponents, codes = split(payload, blocks)
        launch(check_kernel, ceil_div(blocks, _CHECKED.value), exponents, blocks, status)
        args = exponents, codes, words_of(out), n, status
        launch(decode_kernel, tiles.programs, *args, ADD=add, **tiles.constants)


FP8 = _Fp8()
