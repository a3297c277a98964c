"""``pack``: the top bits of every float (native/pack.cc), for ``truncate``, ``bitpack`` and ``identity``.

Values of 8, 16 or 32 bits are copied one by one. For other sizes, kernels compute each 32-bit word of the
payload from the values in this word. A value in two words is read twice, from the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import (
    INFINITY,
    MAGNITUDE,
    QUIET_NAN,
    ceil_div,
    launch,
    put,
    put_words,
    take,
    words_of,
)

_SIZE = tl.constexpr(2048)
_UNPACKED = tl.constexpr(1024)
_WORDS = tl.constexpr(512)
_MARKED = tl.constexpr(
    8
)  # with at most this many bits, only the marker shows that a chunk had non-finite values
_WHOLE = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}


@triton.jit
def move_kernel(x, out, n, BITS: tl.constexpr):
    """Encode values of 8, 16 or 32 bits."""
    start = tl.program_id(0).to(tl.int64) * _SIZE
    x, out, left = x + start, out + start, n - start
    at = tl.arange(0, _SIZE)
    for full in tl.static_range(2):
        if (left >= _SIZE) == full:
            kept = take(x, at, at < left, full) >> (32 - BITS)
            put(out, at, kept.to(out.dtype.element_ty), at < left, full)


@triton.jit
def _put_kept(out, at, words, marker, inside, BITS, ADD, FULL):
    """Store or add decoded values: NaN if the marker says that the chunk had a non-finite value."""
    if BITS <= _MARKED:
        words = tl.where(tl.load(marker) == 1, QUIET_NAN, words).to(tl.uint32)
    put_words(out, at, words, inside, FULL, ADD)


@triton.jit
def move_back_kernel(payload, out, marker, n, status, BITS: tl.constexpr, ADD: tl.constexpr):
    """Decode packed values of 8, 16 or 32 bits."""
    start = tl.program_id(0).to(tl.int64) * _SIZE
    payload, out, left = payload + start, out + start, n - start
    at = tl.arange(0, _SIZE)
    if tl.load(status) == 0:
        for full in tl.static_range(2):
            if (left >= _SIZE) == full:
                words = take(payload, at, at < left, full).to(tl.uint32) << (32 - BITS)
                _put_kept(out, at, words, marker, at < left, BITS, ADD, full)


@triton.jit
def pack_kernel(x, out, tail, n, words, nbytes, BITS: tl.constexpr):
    """Compute words of the payload. ``tail`` is the payload as bytes, for a partial last word."""
    word = tl.program_id(0).to(tl.int64) * _WORDS + tl.arange(0, _WORDS)
    first = word * 32 // BITS
    packed = tl.zeros([_WORDS], tl.uint32)
    for each in tl.static_range(31 // BITS + 2):
        value = first + each
        # The shift is negative for a value that starts in the previous word.
        shift = (value * BITS - word * 32).to(tl.int32)
        kept = tl.load(x + value, mask=(value < n) & (shift < 32), other=0) >> (32 - BITS)
        right = kept >> tl.minimum(tl.maximum(-shift, 0), 31).to(tl.uint32)
        left = kept << tl.minimum(tl.maximum(shift, 0), 31).to(tl.uint32)
        packed |= tl.where(shift < 0, right, left)
    tl.store(out + word, packed, mask=word < words)
    if (tl.program_id(0) + 1).to(tl.int64) * _WORDS > words:
        for byte in tl.static_range(4):
            at = word * 4 + byte
            rest = ((packed >> (8 * byte)) & 0xFF).to(tl.uint8)
            tl.store(tail + at, rest, mask=(word == words) & (at < nbytes))


@triton.jit
def _word_at(payload, tail, word, words, nbytes):
    """Load words of the payload. A partial last word is padded with zeros."""
    found = tl.load(payload + word, mask=word < words, other=0)
    for byte in tl.static_range(3):
        at = word * 4 + byte
        rest = tl.load(tail + at, mask=(word == words) & (at < nbytes), other=0)
        found |= rest.to(tl.uint32) << (8 * byte)
    return found


@triton.jit
def unpack_kernel(
    payload, tail, out, marker, n, words, nbytes, status, BITS: tl.constexpr, ADD: tl.constexpr
):
    """Decode packed values of any number of bits."""
    at = tl.arange(0, _UNPACKED)
    start = tl.program_id(0).to(tl.int64) * _UNPACKED
    end = start + _UNPACKED
    word = (start + at) * BITS // 32
    shift = ((start + at) * BITS % 32).to(tl.uint64)
    if tl.load(status) == 0:
        for full in tl.static_range(2):
            if ((end <= n) & (end * BITS // 32 < words)) == full:
                if full:
                    low, high = tl.load(payload + word), tl.load(payload + word + 1)
                else:
                    low = _word_at(payload, tail, word, words, nbytes)
                    high = _word_at(payload, tail, word + 1, words, nbytes)
                both = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
                kept = (both >> shift).to(tl.uint32) << (32 - BITS)
                _put_kept(out + start, at, kept, marker, at < n - start, BITS, ADD, full)


@triton.jit
def mark_kernel(x, marker, n):
    """Set the marker to 1 if any value is non-finite."""
    at = tl.program_id(0).to(tl.int64) * _SIZE + tl.arange(0, _SIZE)
    words = tl.load(x + at, mask=at < n, other=0)
    if tl.max(((words & MAGNITUDE) >= INFINITY).to(tl.int32), axis=0) > 0:
        tl.store(marker, tl.full((), 1, tl.uint8))


@triton.jit
def check_kernel(payload, nbytes, status, USED: tl.constexpr, BITS: tl.constexpr):
    """Set ``status`` if unused bits of the last packed byte aren't 0, or if the marker is invalid."""
    if BITS <= _MARKED:
        wrong = tl.load(payload + nbytes) > 1
        tl.atomic_max(status, wrong.to(tl.int32))
    if USED:
        unused = tl.load(payload + nbytes - 1) >> USED != 0
        tl.atomic_max(status, unused.to(tl.int32) * 2)


class _Pack(Format):
    """The kernels of ``pack``. The parameter is the number of kept bits."""

    faults = ("its marker byte is neither 0 nor 1", "the unused bits of its last byte are not zero")

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n, (bits,) = x.numel(), params
        nbytes = ceil_div(n * bits, 8)
        if bits <= _MARKED.value:
            out[nbytes:].zero_()
            launch(mark_kernel, ceil_div(n, _SIZE.value), words_of(x), out[nbytes:], n)
        if bits in _WHOLE:
            moved = words_of(x), out[:nbytes].view(_WHOLE[bits]), n
            launch(move_kernel, ceil_div(n, _SIZE.value), *moved, BITS=bits)
            return
        words = nbytes // 4
        packed = words_of(x), words_of(out[: 4 * words]), out, n, words, nbytes
        launch(pack_kernel, ceil_div(ceil_div(nbytes, 4), _WORDS.value), *packed, BITS=bits)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, (bits,) = out.numel(), params
        nbytes, used = ceil_div(n * bits, 8), n * bits % 8
        if used or bits <= _MARKED.value:
            launch(check_kernel, 1, payload, nbytes, status, warps=1, USED=used, BITS=bits)
        marker = payload[nbytes:] if bits <= _MARKED.value else status
        if bits in _WHOLE:
            moved = payload[:nbytes].view(_WHOLE[bits]), words_of(out), marker, n, status
            launch(move_back_kernel, ceil_div(n, _SIZE.value), *moved, BITS=bits, ADD=add)
            return
        words = nbytes // 4
        whole = words_of(payload[: 4 * words])
        args = whole, payload, words_of(out), marker, n, words, nbytes, status
        launch(unpack_kernel, ceil_div(n, _UNPACKED.value), *args, BITS=bits, ADD=add)


PACK = _Pack()
