"""``bfp``: mantissas that share one exponent per block (native/kernels/bfp_scalar.cc).

A block's record has 1 + block (M + 1) / 8 bytes. It may start at any address, so kernels store each byte
separately. A byte contains bits of 1 to 5 values. Unless each byte is one value, a kernel reads the values
again, from the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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
def _encode_bytes(x, out, left, BLOCK, ROWS, WIDTH, FULL):
    """Encode ROWS blocks with mantissas of 8 bits: each byte of the payload is one value."""
    tile = take_tile(x, 0, left, BLOCK, ROWS, WIDTH, FULL)
    exponent = exponent_of(peak_of(tile))[:, None]
    record = out + tl.arange(0, ROWS)[:, None] * (BLOCK + 1)
    column = tl.arange(0, WIDTH)[None, :]
    exists = tl.arange(0, ROWS)[:, None] * BLOCK < left
    put(record, 0, exponent.to(tl.uint8), exists, FULL)
    byte = mantissas_of(tile, exponent, 8).to(tl.uint8)
    put(record, 1 + column, byte, exists & (column < BLOCK), FULL and BLOCK == WIDTH)


@triton.jit
def encode_kernel(
    x,
    out,
    n,
    BITS: tl.constexpr,
    SPAN: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Encode ROWS blocks per program. SPAN is a power of two, at least the bytes of one block's mantissas."""
    nbytes: tl.constexpr = BLOCK * BITS // 8
    row = tl.program_id(0).to(tl.int64) * ROWS
    x += row * BLOCK
    left = n - row * BLOCK
    out += row * (nbytes + 1)
    if BITS == 8:
        if left >= ROWS * BLOCK:
            _encode_bytes(x, out, left, BLOCK, ROWS, WIDTH, True)
        else:
            _encode_bytes(x, out, left, BLOCK, ROWS, WIDTH, False)
        return
    rows = tl.arange(0, ROWS)[:, None]
    exponent = exponent_of(peak_of(take_tile(x, 0, left, BLOCK, ROWS, WIDTH, False)))[:, None]
    exists = rows * BLOCK < left
    tl.store(out + rows * (nbytes + 1), exponent.to(tl.uint8), mask=exists)
    column = tl.arange(0, SPAN)[None, :]
    byte = tl.zeros([ROWS, SPAN], tl.int32)
    first = column * 8 // BITS
    for each in tl.static_range(8 // BITS + 2):
        value = first + each
        shift = value * BITS - column * 8  # negative for a value that starts in the previous byte
        at = rows * BLOCK + value
        words = tl.load(x + at, mask=(value < BLOCK) & (at < left) & (shift < 8), other=0)
        mantissa = mantissas_of(words, exponent, BITS)
        moved = tl.where(
            shift < 0,
            mantissa >> tl.minimum(tl.maximum(-shift, 0), 31),
            mantissa << tl.minimum(tl.maximum(shift, 0), 8),
        )
        byte |= tl.where((shift < 8) & (value < BLOCK), moved, 0)
    where = out + rows * (nbytes + 1) + 1 + column
    tl.store(where, (byte & 0xFF).to(tl.uint8), mask=exists & (column < nbytes))


@triton.jit
def _decode_part(payload, out, left, BITS, ADD, BLOCK, ROWS, WIDTH, FULL):
    whole: tl.constexpr = FULL and BLOCK % WIDTH == 0
    nbytes: tl.constexpr = BLOCK * BITS // 8
    record = payload + tl.arange(0, ROWS)[:, None] * (nbytes + 1)
    there = inside(0, left, BLOCK, ROWS, WIDTH, FULL)
    exponent = tl.load(record, mask=tl.arange(0, ROWS)[:, None] * BLOCK < left, other=0).to(tl.int32)
    bit = tl.arange(0, WIDTH)[None, :] * BITS
    codes = tl.zeros([ROWS, WIDTH], tl.int32)
    for each in tl.static_range((BITS + 6) // 8 + 1):
        byte = bit // 8 + each
        loaded = tl.load(record + 1 + byte, mask=there & (byte < nbytes), other=0).to(tl.int32)
        codes |= loaded << (8 * each)
    codes = (codes >> (bit % 8)) & ((1 << BITS) - 1)
    mantissa = (codes ^ (1 << (BITS - 1))) - (1 << (BITS - 1))
    ordinary = (exponent > 0) & (exponent < NAN_EXPONENT)
    scale = power_of_two(tl.where(ordinary, exponent - 127 - (BITS - 2), 0))
    # Mantissas in a block with exponent 0, which no encoder writes, decode to signed zeros.
    words = bits_of(mantissa.to(tl.float32) * tl.where(exponent == 0, 0.0, scale))
    words = tl.where(exponent == NAN_EXPONENT, QUIET_NAN, words).to(tl.uint32)
    put_words(out, places(0, BLOCK, ROWS, WIDTH), words, there, whole, ADD)


@triton.jit
def decode_kernel(
    payload,
    out,
    n,
    BITS: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Decode ROWS ``bfp`` blocks per program."""
    row = tl.program_id(0).to(tl.int64) * ROWS
    start = row * BLOCK
    payload += row * (BLOCK * BITS // 8 + 1)
    if n - start >= ROWS * BLOCK:
        _decode_part(payload, out + start, n - start, BITS, ADD, BLOCK, ROWS, WIDTH, True)
    else:
        _decode_part(payload, out + start, n - start, BITS, ADD, BLOCK, ROWS, WIDTH, False)


class BfpKernels(Format):
    """The kernels of ``bfp``. The parameters are the mantissa bits without the sign, and the block size."""

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernel that computes and writes exponents and mantissas."""
        n, (mantissa, block) = x.numel(), params
        bits = mantissa + 1
        tiles = Tiles(n, block, size=1024)
        span = triton.next_power_of_2(block * bits // 8)
        constants = tiles.constants | {"warps": min(max(tiles.constants["ROWS"] * span // 256, 1), 8)}
        launch(encode_kernel, tiles.programs, *(words_of(x), out, n), BITS=bits, SPAN=span, **constants)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the decoding kernel. No check is needed: every payload of the right length is valid."""
        n, (mantissa, block) = out.numel(), params
        tiles, args = Tiles(n, block), (payload, words_of(out), n)
        launch(decode_kernel, tiles.programs, *args, BITS=mantissa + 1, ADD=add, **tiles.constants)


BFP = BfpKernels()
