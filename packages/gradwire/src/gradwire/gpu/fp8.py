"""``fp8``: 8-bit floats with a power-of-two scale per block (native/kernels/fp8_scalar.cc)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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

_CHECKED = 1024


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
def _encode_part(x, exponents, codes, left, BLOCK, ROWS, WIDTH, FULL):
    whole: tl.constexpr = FULL and BLOCK % WIDTH == 0
    rows = tl.arange(0, ROWS)
    if BLOCK <= WIDTH:
        tile = take_tile(x, 0, left, BLOCK, ROWS, WIDTH, FULL)
        exponent = exponent_of(peak_of(tile))
        where, there = places(0, BLOCK, ROWS, WIDTH), inside(0, left, BLOCK, ROWS, WIDTH, FULL)
        put(codes, where, code_of(tile, exponent[:, None]), there, whole)
    else:
        exponent = exponent_of(peak_of_block(x, left, BLOCK, ROWS, WIDTH, FULL))
        for at in range(0, BLOCK if FULL else tl.minimum(left, BLOCK).to(tl.int32), WIDTH):
            tile = take_tile(x, at, left, BLOCK, ROWS, WIDTH, FULL)
            where, there = places(at, BLOCK, ROWS, WIDTH), inside(at, left, BLOCK, ROWS, WIDTH, FULL)
            put(codes, where, code_of(tile, exponent[:, None]), there, whole)
    put(exponents, rows, exponent.to(tl.uint8), rows * BLOCK < left, FULL)


@triton.jit
def encode_kernel(x, exponents, codes, n, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Encode ROWS ``fp8`` blocks per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS
    start = row * BLOCK
    if n - start >= ROWS * BLOCK:
        _encode_part(x + start, exponents + row, codes + start, n - start, BLOCK, ROWS, WIDTH, True)
    else:
        _encode_part(x + start, exponents + row, codes + start, n - start, BLOCK, ROWS, WIDTH, False)


@triton.jit
def check_kernel(exponents, blocks, status, SIZE: tl.constexpr):
    """Set ``status`` if the exponent byte of a block is invalid."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    exponent = tl.load(exponents + at, mask=at < blocks, other=0).to(tl.int32)
    wrong = (exponent > 0) & (exponent < SMALLEST_EXPONENT)
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.store(status, 1)


@triton.jit
def _decode_part(exponents, codes, out, left, ADD, BLOCK, ROWS, WIDTH, FULL):
    whole: tl.constexpr = FULL and BLOCK % WIDTH == 0
    rows = tl.arange(0, ROWS)
    exponent = take(exponents, rows, rows * BLOCK < left, FULL).to(tl.int32)
    for at in range(0, BLOCK if FULL else tl.minimum(left, BLOCK).to(tl.int32), WIDTH):
        where, there = places(at, BLOCK, ROWS, WIDTH), inside(at, left, BLOCK, ROWS, WIDTH, FULL)
        code = take(codes, where, there, whole).to(tl.uint32)
        put_words(out, where, word_of(code, exponent[:, None]), there, whole, ADD)


@triton.jit
def decode_kernel(
    exponents,
    codes,
    out,
    n,
    status,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Decode ROWS ``fp8`` blocks per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS
    start = row * BLOCK
    if tl.load(status) == 0:
        if n - start >= ROWS * BLOCK:
            _decode_part(
                exponents + row, codes + start, out + start, n - start, ADD, BLOCK, ROWS, WIDTH, True
            )
        else:
            _decode_part(
                exponents + row, codes + start, out + start, n - start, ADD, BLOCK, ROWS, WIDTH, False
            )


class Fp8Kernels(Format):
    """The kernels of ``fp8``. The parameter is the block size."""

    faults = ("an exponent byte is in the invalid range 1..31",)

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernel that computes and writes scales and codes."""
        n, (block,) = x.numel(), params
        tiles = Tiles(n, block)
        args = words_of(x), *split(out, ceil_div(n, block)), n
        launch(encode_kernel, tiles.programs, *args, **tiles.constants)

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:
        """Queue the kernel that checks the blocks' exponents. Codes need no check: all are valid."""
        blocks = ceil_div(n, params[0])
        launch(check_kernel, ceil_div(blocks, _CHECKED), payload, blocks, status, SIZE=_CHECKED)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernel that decodes blocks, or adds them to ``out``."""
        n, (block,) = out.numel(), params
        tiles = Tiles(n, block)
        args = *split(payload, ceil_div(n, block)), words_of(out), n, status
        launch(decode_kernel, tiles.programs, *args, ADD=add, **tiles.constants)


FP8 = Fp8Kernels()
