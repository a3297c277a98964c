"""CRC32C of a chunk, as a tree: the remainder of a part is shifted past the part after it, and added.

A checksum is a polynomial over bits, modulo the polynomial of CRC32C. So parts are divided side by side, and
a product with a power of x moves one past the other. Zeros before the first byte change nothing: the last
part is whole, and the first one is filled up with them.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from gradwire.gpu.launch import ceil_div, launch, words_of

_FANOUT = 1024
_POLYNOMIAL = 0x82F63B78  # of CRC32C, the lowest power in the highest bit
_ONE = 0x80000000


@triton.jit
def times(value, POWER: tl.constexpr):
    """Return the product with a polynomial, modulo that of CRC32C."""
    product = tl.zeros_like(value)
    power = tl.full([], POWER, tl.uint32)
    for _ in range(32):  # not unrolled: compilers take minutes for that
        product ^= tl.where((power & 0x80000000) != 0, value, 0).to(tl.uint32)
        value = (value >> 1) ^ tl.where((value & 1) != 0, 0x82F63B78, 0).to(tl.uint32)
        power = power << 1
    return product


@triton.jit
def _fold(values, POWER: tl.constexpr, HALF: tl.constexpr):
    left, right = tl.split(tl.reshape(values, (HALF, 2)))
    return times(left, POWER) ^ right


@triton.jit
def fold_kernel(
    words,
    n,
    out,
    POWER: tl.constexpr,
    POWER2: tl.constexpr,
    POWER4: tl.constexpr,
    POWER8: tl.constexpr,
    POWER16: tl.constexpr,
    POWER32: tl.constexpr,
    POWER64: tl.constexpr,
    POWER128: tl.constexpr,
    POWER256: tl.constexpr,
    POWER512: tl.constexpr,
):
    """Fold 1024 remainders a program into one; POWER is x to the number of bits that each stands for."""
    filled = tl.num_programs(0).to(tl.int64) * 1024 - n
    at = tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024) - filled
    values = tl.load(words + at, mask=at >= 0, other=0).to(tl.uint32)
    values = _fold(values, POWER, 512)
    values = _fold(values, POWER2, 256)
    values = _fold(values, POWER4, 128)
    values = _fold(values, POWER8, 64)
    values = _fold(values, POWER16, 32)
    values = _fold(values, POWER32, 16)
    values = _fold(values, POWER64, 8)
    values = _fold(values, POWER128, 4)
    values = _fold(values, POWER256, 2)
    left, right = tl.split(tl.reshape(values, (1, 2)))
    tl.store(out + tl.program_id(0) + tl.arange(0, 1), times(left, POWER512) ^ right)


def queue_crc32c(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Queue what makes one word of a chunk that isn't empty.

    Return the word, and a number: the checksum is the word times x^32, exclusive or the number.
    """
    words, stands_for = words_of(x), 32
    while True:
        n = words.numel()
        programs = ceil_div(n, _FANOUT)
        out = torch.empty(programs, dtype=torch.int32, device=x.device)
        powers = {
            f"POWER{1 << level}" if level else "POWER": x_to(stands_for << level) for level in range(10)
        }
        launch(fold_kernel, programs, *(words, n, words_of(out)), **powers)
        if programs == 1:
            return words_of(out), _product(0xFFFFFFFF, x_to(32 * x.numel())) ^ 0xFFFFFFFF
        words, stands_for = words_of(out), stands_for * _FANOUT


@cache
def x_to(exponent: int) -> int:
    """Return this power of x, modulo the polynomial."""
    if exponent < 32:
        return _ONE >> exponent
    half = x_to(exponent // 2)
    square = _product(half, half)
    return _product(square, x_to(1)) if exponent % 2 else square


def _product(left: int, right: int) -> int:
    product = 0
    for bit in range(32):
        if right >> (31 - bit) & 1:
            product ^= left
        left = left >> 1 ^ (_POLYNOMIAL if left & 1 else 0)
    return product
