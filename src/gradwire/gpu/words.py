"""What the kernels share: loads and stores of whole and short programs, and sums with the host's bits.

Kernels see floats as 32-bit words. A program whose values all lie within the chunk (FULL) loads and stores
without masks, so that these are 128 bits wide for every length of a chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

MAGNITUDE = tl.constexpr(0x7FFFFFFF)
INFINITY = tl.constexpr(0x7F800000)
QUIET = tl.constexpr(0x00400000)
QUIET_NAN = tl.constexpr(0x7FC00000)
HOST_NAN = tl.constexpr(0xFFC00000)  # what x86 makes of infinity - infinity


@triton.jit
def take(source, offsets, inside, FULL: tl.constexpr):
    """Return the loaded values, zeros where not ``inside``."""
    if FULL:
        return tl.load(source + offsets)
    else:
        return tl.load(source + offsets, mask=inside, other=0)


@triton.jit
def put(target, offsets, values, inside, FULL: tl.constexpr):
    """Store the values that are ``inside``."""
    if FULL:
        tl.store(target + offsets, values)
    else:
        tl.store(target + offsets, values, mask=inside)


@triton.jit
def put_words(target, offsets, words, inside, FULL: tl.constexpr, ADD: tl.constexpr):
    """Store decoded floats, or add them to what is there."""
    if ADD:
        put(target, offsets, add(take(target, offsets, inside, FULL), words), inside, FULL)
    else:
        put(target, offsets, words, inside, FULL)


@triton.jit
def float_of(words):
    """Return the floats with these bits."""
    return words.to(tl.float32, bitcast=True)


@triton.jit
def bits_of(floats):
    """Return the bits of floats."""
    return floats.to(tl.uint32, bitcast=True)


@triton.jit
def is_nan(words):
    """Return which words are NaN."""
    return (words & MAGNITUDE) > INFINITY


@triton.jit
def add(left, right):
    """Return the bits of a float sum. A NaN is that of an operand, as on x86: GPUs return one of their own.

    Of two NaN the left one wins. On the host that depends on how the compiler orders the operands.
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
    """Return floats below 2^22 as integers: the addition itself rounds."""
    return (value + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
