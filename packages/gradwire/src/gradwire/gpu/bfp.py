"""``bfp``: mantissas that share one exponent per block (native/kernels/bfp_scalar.cc).

A block's record has 1 + block (M + 1) / 8 bytes. It may start at any address, so kernels store each byte
separately. A byte contains bits of 1 to 5 values. Unless each byte is one value, a kernel reads the values
again, from the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import (
    NAN_EXPONENT,
    QUIET_NAN,
    SMALLEST_EXPONENT,
    Tiles,
    bits_of,
    exponent_of,
    float_of,
    inside,
    launch,
    peak_of,
    places,
    power_of_two,
    put,
    put_words,
    round_half_even,
    take_tile,
    words_of,
)


@triton.jit
def mantissas_of(words, exponent, BITS):
    """Return the mantissas of values, of BITS bits including the sign; 0 in blocks without mantissas."""
    largest: tl.constexpr = (1 << (BITS - 1)) - 1
    ordinary = (exponent >= SMALLEST_EXPONENT) & (exponent < NAN_EXPONENT)
    scale = power_of_two(tl.where(ordinary, BITS - 2 + 127 - exponent, 0))
    rounded = round_half_even(float_of(tl.where(ordinary, words, 0).to(tl.uint32)) * scale)
    return tl.minimum(tl.maximum(rounded, -largest), largest) & ((1 << BITS) - 1)


@triton.jit
def words_of_codes(codes, exponent, BITS):
    """Return the bits of the floats for codes of BITS bits, by the exponents of their blocks."""
    mantissa = (codes ^ (1 << (BITS - 1))) - (1 << (BITS - 1))
    ordinary = (exponent > 0) & (exponent < NAN_EXPONENT)
    scale = power_of_two(tl.where(ordinary, exponent - 127 - (BITS - 2), 0))
    # Mantissas in a block with exponent 0, which no encoder writes, decode to signed zeros.
    words = bits_of(mantissa.to(tl.float32) * tl.where(exponent == 0, 0.0, scale))
    return tl.where(exponent == NAN_EXPONENT, QUIET_NAN, words).to(tl.uint32)


@triton.jit
def encode_kernel(x, out, n, BITS: tl.constexpr, SPAN: tl.constexpr, SHAPE: tl.constexpr):
    """Encode ROWS blocks per program. SPAN is a power of two, at least the bytes of one block's mantissas."""
    block: tl.constexpr = SHAPE[0]
    height: tl.constexpr = SHAPE[1]
    nbytes: tl.constexpr = block * BITS // 8
    row = tl.program_id(0).to(tl.int64) * height
    x += row * block
    left = n - row * block
    out += row * (nbytes + 1)
    rows = tl.arange(0, height)[:, None]
    record = out + rows * (nbytes + 1)
    exists = rows * block < left
    if BITS == 8:  # each byte of the payload is one value
        column = tl.arange(0, SHAPE[2])[None, :]
        for full in tl.static_range(2):
            if (left >= height * block) == full:
                tile = take_tile(x, 0, left, SHAPE, full)
                exponent = exponent_of(peak_of(tile))[:, None]
                put(record, 0, exponent.to(tl.uint8), exists, full)
                byte = mantissas_of(tile, exponent, 8).to(tl.uint8)
                put(record, 1 + column, byte, exists & (column < block), full and block == SHAPE[2])
        return
    exponent = exponent_of(peak_of(take_tile(x, 0, left, SHAPE, False)))[:, None]
    tl.store(record, exponent.to(tl.uint8), mask=exists)
    column = tl.arange(0, SPAN)[None, :]
    byte = tl.zeros([height, SPAN], tl.int32)
    first = column * 8 // BITS
    for each in tl.static_range(8 // BITS + 2):
        value = first + each
        shift = value * BITS - column * 8  # negative for a value that starts in the previous byte
        at = rows * block + value
        words = tl.load(x + at, mask=(value < block) & (at < left) & (shift < 8), other=0)
        mantissa = mantissas_of(words, exponent, BITS)
        right = mantissa >> tl.minimum(tl.maximum(-shift, 0), 31)
        moved = tl.where(shift < 0, right, mantissa << tl.minimum(tl.maximum(shift, 0), 8))
        byte |= tl.where((shift < 8) & (value < block), moved, 0)
    tl.store(record + 1 + column, (byte & 0xFF).to(tl.uint8), mask=exists & (column < nbytes))


@triton.jit
def decode_kernel(payload, out, n, BITS: tl.constexpr, ADD: tl.constexpr, SHAPE: tl.constexpr):
    """Decode ROWS ``bfp`` blocks per program."""
    height: tl.constexpr = SHAPE[1]
    width: tl.constexpr = SHAPE[2]
    nbytes: tl.constexpr = SHAPE[0] * BITS // 8
    row = tl.program_id(0).to(tl.int64) * height
    start = row * SHAPE[0]
    rows = tl.arange(0, height)[:, None]
    record, out, left = payload + row * (nbytes + 1) + rows * (nbytes + 1), out + start, n - start
    bit = tl.arange(0, width)[None, :] * BITS
    for full in tl.static_range(2):
        if (left >= height * SHAPE[0]) == full:
            whole: tl.constexpr = full and SHAPE[0] % width == 0
            there = inside(0, left, SHAPE, full)
            exponent = tl.load(record, mask=rows * SHAPE[0] < left, other=0).to(tl.int32)
            codes = tl.zeros([height, width], tl.int32)
            for each in tl.static_range((BITS + 6) // 8 + 1):
                byte = bit // 8 + each
                loaded = tl.load(record + 1 + byte, mask=there & (byte < nbytes), other=0).to(tl.int32)
                codes |= loaded << (8 * each)
            words = words_of_codes((codes >> (bit % 8)) & ((1 << BITS) - 1), exponent, BITS)
            put_words(out, places(0, SHAPE), words, there, whole, ADD)


class _Bfp(Format):
    """The kernels of ``bfp``. The parameters are the mantissa bits without the sign, and the block size."""

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n, (mantissa, block) = x.numel(), params
        bits = mantissa + 1
        tiles = Tiles(n, block, size=1024)
        span = triton.next_power_of_2(block * bits // 8)
        constants = tiles.constants | {"warps": min(max(tiles.rows * span // 256, 1), 8)}
        launch(encode_kernel, tiles.programs, words_of(x), out, n, BITS=bits, SPAN=span, **constants)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        # Every payload of the right length is valid.
        n, (mantissa, block) = out.numel(), params
        tiles, args = Tiles(n, block), (payload, words_of(out), n)
        launch(decode_kernel, tiles.programs, *args, BITS=mantissa + 1, ADD=add, **tiles.constants)


BFP = _Bfp()
