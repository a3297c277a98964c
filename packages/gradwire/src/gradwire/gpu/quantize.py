"""``quantize``: signed codes of 8 or 4 bits with a scale per block (native/quantize.cc)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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
_CHECKED = 4096


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
def _encode_tile(tile, scale, codes, at, left, BITS, BLOCK, ROWS, WIDTH, FULL):
    whole: tl.constexpr = FULL and BLOCK % WIDTH == 0
    code = codes_of(tile, scale)
    if BITS == 8:
        there = inside(at, left, BLOCK, ROWS, WIDTH, FULL)
        put(codes, places(at, BLOCK, ROWS, WIDTH), code.to(tl.uint8), there, whole)
    else:
        low, high = tl.split(tl.reshape(code, (ROWS, WIDTH // 2, 2)))
        pair = (low & 0xF) | ((high & 0xF) << 4)
        there = inside(at // 2, (left + 1) // 2, BLOCK // 2, ROWS, WIDTH // 2, FULL)
        put(codes, places(at // 2, BLOCK // 2, ROWS, WIDTH // 2), pair.to(tl.uint8), there, whole)


@triton.jit
def _encode_part(x, scales, codes, left, BITS, BLOCK, ROWS, WIDTH, FULL):
    rows = tl.arange(0, ROWS)
    if BLOCK <= WIDTH:
        tile = take_tile(x, 0, left, BLOCK, ROWS, WIDTH, FULL)
        scale = scale_of(peak_of(tile), BITS)
        _encode_tile(tile, scale, codes, 0, left, BITS, BLOCK, ROWS, WIDTH, FULL)
    else:
        scale = scale_of(peak_of_block(x, left, BLOCK, ROWS, WIDTH, FULL), BITS)
        for at in range(0, BLOCK if FULL else tl.minimum(left, BLOCK).to(tl.int32), WIDTH):
            tile = take_tile(x, at, left, BLOCK, ROWS, WIDTH, FULL)
            _encode_tile(tile, scale, codes, at, left, BITS, BLOCK, ROWS, WIDTH, FULL)
    put(scales, rows, scale, rows * BLOCK < left, FULL)


@triton.jit
def encode_kernel(
    x, scales, codes, n, BITS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Encode ROWS ``quantize`` blocks per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS
    start = row * BLOCK
    to = codes + start * BITS // 8
    if n - start >= ROWS * BLOCK:
        _encode_part(x + start, scales + row, to, n - start, BITS, BLOCK, ROWS, WIDTH, True)
    else:
        _encode_part(x + start, scales + row, to, n - start, BITS, BLOCK, ROWS, WIDTH, False)


@triton.jit
def check_scales_kernel(scales, blocks, status, SIZE: tl.constexpr):
    """Set ``status`` if the scale of a block is invalid."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    scale = tl.load(scales + at, mask=at < blocks, other=0)
    wrong = (scale >= INFINITY) & (scale != QUIET_NAN)
    if tl.max(wrong.to(tl.int32), axis=0) > 0:
        tl.atomic_max(status, 3)


@triton.jit
def check_codes_kernel(codes, nbytes, status, IS_ODD: tl.constexpr, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Set ``status`` if a code is the invalid -128 or -8, or if an unused half byte isn't 0."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
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
def _decode_tile(codes, at, left, BITS, BLOCK, ROWS, WIDTH, FULL):
    whole: tl.constexpr = FULL and BLOCK % WIDTH == 0
    if BITS == 8:
        there = inside(at, left, BLOCK, ROWS, WIDTH, FULL)
        code = take(codes, places(at, BLOCK, ROWS, WIDTH), there, whole).to(tl.int32)
        return (code ^ 0x80) - 0x80
    else:
        there = inside(at // 2, (left + 1) // 2, BLOCK // 2, ROWS, WIDTH // 2, FULL)
        pair = take(codes, places(at // 2, BLOCK // 2, ROWS, WIDTH // 2), there, whole).to(tl.int32)
        both = tl.reshape(tl.join(pair & 0xF, pair >> 4), (ROWS, WIDTH))
        return (both ^ 8) - 8


@triton.jit
def _decode_part(scales, codes, out, left, BITS, ADD, BLOCK, ROWS, WIDTH, FULL):
    whole: tl.constexpr = FULL and BLOCK % WIDTH == 0
    rows = tl.arange(0, ROWS)
    scale = take(scales, rows, rows * BLOCK < left, FULL)
    finite = float_of(tl.where(is_nan(scale), 0, scale).to(tl.uint32))
    for at in range(0, BLOCK if FULL else tl.minimum(left, BLOCK).to(tl.int32), WIDTH):
        code = _decode_tile(codes, at, left, BITS, BLOCK, ROWS, WIDTH, FULL)
        word = bits_of(code.to(tl.float32) * finite[:, None])
        word = tl.where(is_nan(scale)[:, None], QUIET_NAN, word).to(tl.uint32)
        there = inside(at, left, BLOCK, ROWS, WIDTH, FULL)
        put_words(out, places(at, BLOCK, ROWS, WIDTH), word, there, whole, ADD)


@triton.jit
def decode_kernel(
    scales,
    codes,
    out,
    n,
    status,
    BITS: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Decode ROWS ``quantize`` blocks per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS
    start = row * BLOCK
    from_ = codes + start * BITS // 8
    if tl.load(status) == 0:
        if n - start >= ROWS * BLOCK:
            _decode_part(scales + row, from_, out + start, n - start, BITS, ADD, BLOCK, ROWS, WIDTH, True)
        else:
            _decode_part(scales + row, from_, out + start, n - start, BITS, ADD, BLOCK, ROWS, WIDTH, False)


class QuantizeKernels(Format):
    """The kernels of ``quantize``. The parameters are the bits of a code, and the block size."""

    faults = (
        "a code is out of range",
        "the unused half of its last byte is not zero",
        "a scale is negative or infinite",
    )

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernel that computes and writes scales and codes."""
        n, (bits, block) = x.numel(), params
        tiles = Tiles(n, block)
        scales, codes = split(out, 4 * ceil_div(n, block))
        args = words_of(x), words_of(scales), codes, n
        launch(encode_kernel, tiles.programs, *args, BITS=bits, **tiles.constants)

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:
        """Queue the kernels that check scales and codes."""
        bits, block = params
        blocks = ceil_div(n, block)
        scales, codes = split(payload, 4 * blocks)
        programs, nbytes = ceil_div(blocks, _CHECKED), codes.numel()
        launch(check_scales_kernel, programs, *(words_of(scales), blocks, status), SIZE=_CHECKED)
        constants = {"IS_ODD": n % 2 == 1, "BITS": bits, "SIZE": _CHECKED}
        launch(check_codes_kernel, ceil_div(nbytes, _CHECKED), *(codes, nbytes, status), **constants)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernel that decodes blocks, or adds them to ``out``."""
        n, (bits, block) = out.numel(), params
        tiles = Tiles(n, block)
        scales, codes = split(payload, 4 * ceil_div(n, block))
        args = words_of(scales), codes, words_of(out), n, status
        launch(decode_kernel, tiles.programs, *args, BITS=bits, ADD=add, **tiles.constants)


QUANTIZE = QuantizeKernels()
