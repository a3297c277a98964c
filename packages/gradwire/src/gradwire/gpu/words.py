"""Functions that all kernels share: masked loads and stores, sums with the host's bits, launches, and tiles.

Names in capitals are compile-time constants, which kernels declare and pass to these functions.

Kernels process floats as 32-bit words. A program with all its values within the chunk (FULL) loads and stores
without masks, so that accesses are 128 bits wide for every length of a chunk. Kernels contain both variants:
the body of ``for full in tl.static_range(2)`` is compiled twice, and a condition selects one at run time.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

MAGNITUDE = tl.constexpr(0x7FFFFFFF)
INFINITY = tl.constexpr(0x7F800000)
QUIET = tl.constexpr(0x00400000)
QUIET_NAN = tl.constexpr(0x7FC00000)
HOST_NAN = tl.constexpr(0xFFC00000)  # the NaN of infinity - infinity on x86


@triton.jit
def take(source, offsets, inside, FULL):
    """Load values where ``inside`` is true, and return them with zeros elsewhere."""
    if FULL:
        return tl.load(source + offsets)
    else:
        return tl.load(source + offsets, mask=inside, other=0)


@triton.jit
def put(target, offsets, values, inside, FULL):
    """Store values where ``inside`` is true."""
    if FULL:
        tl.store(target + offsets, values)
    else:
        tl.store(target + offsets, values, mask=inside)


@triton.jit
def put_words(target, offsets, words, inside, FULL, ADD):
    """Store decoded floats, or with ADD add them to the floats in ``target``."""
    if ADD:
        put(target, offsets, add(take(target, offsets, inside, FULL), words), inside, FULL)
    else:
        put(target, offsets, words, inside, FULL)


@triton.jit
def float_of(words):
    """Return the floats whose bits are ``words``."""
    return words.to(tl.float32, bitcast=True)


@triton.jit
def bits_of(floats):
    """Return the bits of floats."""
    return floats.to(tl.uint32, bitcast=True)


@triton.jit
def is_nan(words):
    """Return whether each word is NaN."""
    return (words & MAGNITUDE) > INFINITY


@triton.jit
def add(left, right):
    """Return the bits of a float sum. A NaN operand is kept, as on x86; GPUs would return their own NaN.

    Of two NaN operands, the left one is returned. On the host, the result depends on the compiler's order of
    operands.
    """
    total = bits_of(float_of(left) + float_of(right))
    total = tl.where(is_nan(total), HOST_NAN, total)
    total = tl.where(is_nan(right), right | QUIET, total)
    return tl.where(is_nan(left), left | QUIET, total)


@triton.jit
def power_of_two(exponent):
    """Return 2^exponent as a float, for -149 <= exponent <= 127."""
    normal = (exponent + 127) << 23
    subnormal = 1 << tl.maximum(exponent + 149, 0)
    return tl.where(exponent >= -126, normal, subnormal).to(tl.float32, bitcast=True)


@triton.jit
def round_half_even(value):
    """Return floats below 2^22 rounded to integers, by an addition that rounds."""
    return (value + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000


# Launches of kernels, and conversions of their arguments.

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_turn: AbstractContextManager[object] = Lock() if _INTERPRETED else nullcontext()
"""The lock for Triton's interpreter, whose state all threads share. Compiled kernels need no lock."""


def launch(kernel: Any, programs: int, *args: Any, warps: int = 4, **constants: Any) -> None:
    """Queue a kernel on the current stream, without fused multiply-add, as on the host."""
    if programs:
        with _turn:
            kernel[(programs,)](*args, num_warps=warps, enable_fp_fusion=False, **constants)


def words_of(x: Tensor) -> Tensor:
    """Return a view of float32, or of bytes aligned to 4 bytes, as 32-bit words for kernels."""
    return x.view(torch.uint32)


def ceil_div(n: int, size: int) -> int:
    """Return n / size, rounded up."""
    return -(-n // size)


def signed(word: int) -> int:
    """Return the low 32 bits of ``word`` as a signed number, the type of kernel arguments."""
    return (word & 0xFFFFFFFF) - ((word & 0x80000000) << 1)


# Tiles of blocks that share a scale. SHAPE is (BLOCK, ROWS, WIDTH): each program processes ROWS blocks of
# BLOCK values, WIDTH values of each at a time.

SMALLEST_EXPONENT = tl.constexpr(32)  # blocks of smaller exponents (below 2^-95) are flushed to zero
NAN_EXPONENT = tl.constexpr(255)
_WIDEST = 4096
"""The largest number of a block's values that are in registers at the same time."""


class Tiles:
    """The number of programs for n values in blocks, and the shape of their tiles."""

    def __init__(self, n: int, block: int, *, size: int = 2048) -> None:
        width = min(triton.next_power_of_2(block), _WIDEST)
        # LLVM's AMD backend (Triton 3.7.1) aborts on reductions of several masked rows.
        self.rows = max(size // width, 1) if width == block else 1
        self.programs = ceil_div(n, block * self.rows)
        warps = min(max(self.rows * width // 512, 1), 8)
        self.constants: dict[str, Any] = {"SHAPE": (block, self.rows, width), "warps": warps}


def split(payload: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Split a payload at ``at``, and return the blocks' scales and the codes."""
    return payload[:at], payload[at:]


@triton.jit
def places(at, SHAPE):
    """Return the offsets of a tile's values from the program's first value. Its first column is ``at``."""
    return tl.arange(0, SHAPE[1])[:, None] * SHAPE[0] + (tl.arange(0, SHAPE[2]) + at)[None, :]


@triton.jit
def inside(at, left, SHAPE, FULL):
    """Return whether each position of a tile is within its block and the chunk."""
    rows: tl.constexpr = SHAPE[1]
    columns = (tl.zeros([rows, 1], tl.int32) + (tl.arange(0, SHAPE[2]) + at)[None, :]) < SHAPE[0]
    return columns if FULL else columns & (places(at, SHAPE) < left)


@triton.jit
def take_tile(x, at, left, SHAPE, FULL):
    """Load the words of a tile; words beyond a block's or the chunk's end are 0."""
    whole: tl.constexpr = FULL and SHAPE[0] % SHAPE[2] == 0
    return take(x, places(at, SHAPE), inside(at, left, SHAPE, FULL), whole)


@triton.jit
def peak_of(tile):
    """Return the bits of each row's largest magnitude. Bits of magnitudes sort like the magnitudes."""
    return tl.max((tile & MAGNITUDE).to(tl.int32, bitcast=True), axis=1)


@triton.jit
def peak_of_block(x, left, SHAPE, FULL):
    """Return the bits of the largest magnitude in each of ROWS blocks, tile by tile."""
    rows: tl.constexpr = SHAPE[1]
    peak = tl.zeros([rows], tl.int32)
    for at in range(0, SHAPE[0] if FULL else tl.minimum(left, SHAPE[0]).to(tl.int32), SHAPE[2]):
        peak = tl.maximum(peak, peak_of(take_tile(x, at, left, SHAPE, FULL)))
    return peak


@triton.jit
def exponent_of(peak):
    """Return the exponent byte of a block from the bits of its peak."""
    exponent = peak >> 23
    return tl.where(exponent < SMALLEST_EXPONENT, 0, exponent)
