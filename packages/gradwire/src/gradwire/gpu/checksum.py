"""The CRC32C of a chunk, by parallel polynomial division of columns of words, then a reduction tree.

A checksum is the remainder of a polynomial over bits, modulo the polynomial P of CRC32C. Leading zeros do not
change the remainder, so a grid or a tree is padded with zeros at the front.

A chunk is a grid of words whose row length is a power of two. Moving a word by one row multiplies it by z =
x^(2^k). Squaring is linear over bits, so P(z) = P(x)^(2^k) = 0 modulo P. A column is a polynomial in z with
words as coefficients, and the column's remainder modulo P(z) has 32 words. XORs of whole words compute the
remainder, without operations on single bits. A multiple of P with few terms needs the fewest XORs, so the
column is first divided by this multiple, and that remainder is then divided by P. The remainders of all
columns are the last 32 rows of a grid with the same checksum.

The tree combines pairs of neighbouring remainders: the first remainder is shifted past the second one's
words, and added to it. A shift is a product with a power of x.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.words import MAGNITUDE, ceil_div, launch, signed, words_of

_ROWS = 128
_COLUMNS = tl.constexpr(128)
"""The number of columns per program."""
_LARGEST = 1 << 16
"""The number of columns that keeps a GPU busy."""
_MANY = tl.constexpr(16)
"""The number of rows of each column that are loaded together."""
_FOLDED = 1 << 19
"""The most words that the tree folds. For more words, another division is faster."""
_TERMS = tl.constexpr(0x1EDC6F41)
"""The terms of the polynomial P of CRC32C below x^32, as bits."""
_LENGTH = tl.constexpr(52)
_MULTIPLE = tl.constexpr(sum(1 << term for term in (0, 2, 10, 21, 25, 27, 32, 40, 50)))
"""The terms of a multiple of P below its highest term x^52, as bits."""
_FANOUT = 1024
_POLYNOMIAL = 0x82F63B78  # the polynomial of CRC32C, with the lowest power in the highest bit
_ONE = 0x80000000


@triton.jit
def _divided(rows, word, TERMS, LENGTH):
    """Return a column's new remainder after one more word: rows z + word, modulo z^LENGTH + TERMS.

    ``rows`` is the old remainder of LENGTH words, the highest power first. Bit i of TERMS is the term z^i;
    the term 1 is always present.
    """
    top = rows[0]
    left = ()
    for row in tl.static_range(1, LENGTH):
        if (TERMS >> (LENGTH - row)) & 1:
            left += (rows[row] ^ top,)  # type: ignore[assignment]
        else:
            left += (rows[row],)  # type: ignore[assignment]
    left += (word ^ top,)  # type: ignore[assignment]
    return left


@triton.jit
def _rows(words, at, wanted, COLUMNS):
    rows = ()
    for row in tl.static_range(_MANY):
        rows += (tl.load(words + at + row * COLUMNS, mask=wanted),)  # type: ignore[assignment]
    return rows


@triton.jit
def _first_rows(words, at, COLUMNS):
    rows = ()
    for row in tl.static_range(_LENGTH):
        where = at + row * COLUMNS
        rows += (tl.load(words + where, mask=where >= 0, other=0),)  # type: ignore[assignment]
    return rows


@triton.jit
def _raised(both, rows, MANY):
    """Return the largest signed and unsigned words so far; one of the two has the largest magnitude."""
    positive, negative = both
    for row in tl.static_range(MANY):
        positive = tl.maximum(positive, rows[row].to(tl.int32, bitcast=True))
        negative = tl.maximum(negative, rows[row])
    return positive, negative


@triton.jit
def divide_kernel(words, n, out, peaks, PEAK: tl.constexpr, COLUMNS: tl.constexpr):
    """Store the remainders of columns and, with PEAK, the bits of the program's largest magnitude."""
    column = tl.program_id(0).to(tl.int64) * _COLUMNS + tl.arange(0, _COLUMNS)
    turns = tl.cdiv(tl.maximum(n - _LENGTH * COLUMNS, 0), _MANY * COLUMNS)
    at = column + (n - (_LENGTH + turns.to(tl.int64) * _MANY) * COLUMNS)
    left = _first_rows(words, at, COLUMNS)
    both = (tl.zeros([_COLUMNS], tl.int32), tl.zeros([_COLUMNS], tl.uint32))
    if PEAK:
        both = _raised(both, left, _LENGTH)
    at += _LENGTH * COLUMNS
    come = _rows(words, at, turns > 0, COLUMNS)
    for turn in range(turns):
        at += _MANY * COLUMNS
        after = _rows(words, at, turn + 1 < turns, COLUMNS)  # prefetched during the division
        for row in tl.static_range(_MANY):
            left = _divided(left, come[row], _MULTIPLE, _LENGTH)
        if PEAK:
            both = _raised(both, come, _MANY)
        come = after
    last = left[0:32]
    for row in tl.static_range(_LENGTH - 32):
        last = _divided(last, left[32 + row], _TERMS, 32)
    for row in tl.static_range(32):
        tl.store(out + column + row * COLUMNS, last[row])
    if PEAK:
        positive, negative = both
        largest = tl.maximum(positive, (negative & MAGNITUDE).to(tl.int32, bitcast=True))
        tl.store(peaks + tl.program_id(0), tl.max(largest, axis=0))


@triton.jit
def _times(value, POWER):
    """Return the product of ``value`` and the polynomial POWER, modulo the polynomial of CRC32C."""
    product = tl.zeros_like(value)
    power = tl.full([], POWER, tl.uint32)
    for _ in range(32):
        product ^= tl.where((value & 0x80000000) != 0, power, 0).to(tl.uint32)
        value = value << 1
        power = (power >> 1) ^ tl.where((power & 1) != 0, 0x82F63B78, 0).to(tl.uint32)
    return product


@triton.jit(do_not_specialize=["added"])
def fold_kernel(
    words, n, added, out, peaks, peak, POWERS: tl.constexpr, LAST: tl.constexpr, PEAKS: tl.constexpr
):
    """Fold 1024 remainders per program into one remainder.

    POWERS are x to the power of the number of bits that a remainder represents on each level of the tree. In
    the last launch, LAST is x^32 instead of 0: the remainder becomes the checksum, and the largest of PEAKS
    peaks is stored.
    """
    filled = tl.num_programs(0).to(tl.int64) * 1024 - n
    at = tl.program_id(0).to(tl.int64) * 1024 + tl.arange(0, 1024) - filled
    values = tl.load(words + at, mask=at >= 0, other=0).to(tl.uint32)
    for level in tl.static_range(10):
        left, right = tl.split(tl.reshape(values, (512 >> level, 2)))
        values = _times(left, POWERS[level]) ^ right
    if LAST:
        values = _times(values, LAST) ^ added.to(tl.uint32, bitcast=True)
        tl.store(peak, tl.max(tl.load(peaks + tl.arange(0, PEAKS)), axis=0))
    tl.store(out + tl.program_id(0) + tl.arange(0, 1), values)


def queue_crc32c(x: Tensor) -> tuple[Tensor, Tensor]:
    """Queue the kernels that compute a non-empty chunk's checksum and largest magnitude.

    Return two tensors of one word each. The magnitude is the bits of a float.
    """
    words, peaks = _divide(words_of(x), is_first=True)
    while words.numel() > _FOLDED:
        words, _ = _divide(words, is_first=False)
    return _fold(words, x.numel(), peaks)


def _divide(words: Tensor, *, is_first: bool) -> tuple[Tensor, Tensor]:
    """Return the remainders of a grid's columns and, with ``is_first``, each program's peak."""
    n = words.numel()
    columns = min(max(triton.next_power_of_2(ceil_div(n, _ROWS)), _COLUMNS.value), _LARGEST)
    programs = columns // _COLUMNS.value
    out, peaks = words.new_empty(32 * columns), words.new_empty(programs, dtype=torch.int32)
    launch(divide_kernel, programs, words, n, out, peaks, PEAK=is_first, COLUMNS=columns)
    return out, peaks


def _fold(words: Tensor, n: int, peaks: Tensor) -> tuple[Tensor, Tensor]:
    """Return the checksum of a chunk of ``n`` words, from its columns' remainders, and the largest peak."""
    added = signed(_product(0xFFFFFFFF, x_to(32 * n)) ^ 0xFFFFFFFF)
    peak = torch.empty_like(peaks[:1])
    stands_for = 32
    while words.numel() > 1:
        programs = ceil_div(words.numel(), _FANOUT)
        out = words.new_empty(programs)
        powers = tuple(x_to(stands_for << level) for level in range(10))
        last, count = (x_to(32), peaks.numel()) if programs == 1 else (0, 1)
        args = words, words.numel(), added, out, peaks, peak
        launch(fold_kernel, programs, *args, POWERS=powers, LAST=last, PEAKS=count)
        words, stands_for = out, stands_for * _FANOUT
    return words, words_of(peak)


@cache
def x_to(exponent: int) -> int:
    """Return x to the power ``exponent``, modulo the polynomial of CRC32C."""
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
