"""``pack``: the top bits of every float (native/pack.cc), for ``truncate``, ``bitpack`` and ``identity``.

Values of 8, 16 or 32 bits are copied one by one. For other sizes, kernels compute each 32-bit word of the
payload from the values in this word. A value in two words is read twice, from the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

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

_SIZE = 2048
_UNPACKED = 1024
_WORDS = 512
_WHOLE = {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}
_MARKED = 8  # with at most this many bits, only the marker shows that a chunk had non-finite values


@triton.jit
def _move_part(x, out, left, BITS, SIZE, FULL):
    at = tl.arange(0, SIZE)
    put(out, at, (take(x, at, at < left, FULL) >> (32 - BITS)).to(out.dtype.element_ty), at < left, FULL)


@triton.jit
def move_kernel(x, out, n, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Encode SIZE values of 8, 16 or 32 bits per program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if n - start >= SIZE:
        _move_part(x + start, out + start, n - start, BITS, SIZE, True)
    else:
        _move_part(x + start, out + start, n - start, BITS, SIZE, False)


@triton.jit
def _move_back_part(payload, out, marker, left, BITS, ADD, MARKED, SIZE, FULL):
    at = tl.arange(0, SIZE)
    words = take(payload, at, at < left, FULL).to(tl.uint32) << (32 - BITS)
    if MARKED:
        words = tl.where(tl.load(marker) == 1, QUIET_NAN, words).to(tl.uint32)
    put_words(out, at, words, at < left, FULL, ADD)


@triton.jit
def move_back_kernel(
    payload,
    out,
    marker,
    n,
    status,
    BITS: tl.constexpr,
    ADD: tl.constexpr,
    MARKED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Decode SIZE packed values of 8, 16 or 32 bits per program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if tl.load(status) == 0:
        if n - start >= SIZE:
            _move_back_part(payload + start, out + start, marker, n - start, BITS, ADD, MARKED, SIZE, True)
        else:
            _move_back_part(payload + start, out + start, marker, n - start, BITS, ADD, MARKED, SIZE, False)


@triton.jit
def pack_kernel(x, out, tail, n, words, nbytes, BITS: tl.constexpr, WORDS: tl.constexpr):
    """Compute WORDS payload words per program. ``tail`` is the payload as bytes, for a partial last word."""
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    first = word * 32 // BITS
    packed = tl.zeros([WORDS], tl.uint32)
    for each in tl.static_range(31 // BITS + 2):
        value = first + each
        # The shift is negative for a value that starts in the previous word.
        shift = (value * BITS - word * 32).to(tl.int32)
        kept = tl.load(x + value, mask=(value < n) & (shift < 32), other=0) >> (32 - BITS)
        right = kept >> tl.minimum(tl.maximum(-shift, 0), 31).to(tl.uint32)
        left = kept << tl.minimum(tl.maximum(shift, 0), 31).to(tl.uint32)
        packed |= tl.where(shift < 0, right, left)
    tl.store(out + word, packed, mask=word < words)
    if (tl.program_id(0) + 1).to(tl.int64) * WORDS > words:
        for byte in tl.static_range(4):
            at = word * 4 + byte
            tl.store(
                tail + at, ((packed >> (8 * byte)) & 0xFF).to(tl.uint8), mask=(word == words) & (at < nbytes)
            )


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
def _unpack_part(payload, tail, out, marker, n, words, nbytes, BITS, ADD, MARKED, SIZE, FULL):
    start = tl.program_id(0).to(tl.int64) * SIZE
    value = start + tl.arange(0, SIZE)
    word = value * BITS // 32
    shift = ((value * BITS) % 32).to(tl.uint32)
    if FULL:
        low, high = tl.load(payload + word), tl.load(payload + word + 1)
    else:
        low = _word_at(payload, tail, word, words, nbytes)
        high = _word_at(payload, tail, word + 1, words, nbytes)
    both = low.to(tl.uint64) | (high.to(tl.uint64) << 32)
    kept = (both >> shift.to(tl.uint64)).to(tl.uint32) << (32 - BITS)
    if MARKED:
        kept = tl.where(tl.load(marker) == 1, QUIET_NAN, kept).to(tl.uint32)
    at = tl.arange(0, SIZE)
    put_words(out + start, at, kept, at < n - start, FULL, ADD)


@triton.jit
def unpack_kernel(
    payload,
    tail,
    out,
    marker,
    n,
    words,
    nbytes,
    status,
    BITS: tl.constexpr,
    ADD: tl.constexpr,
    MARKED: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Decode SIZE packed values of any number of bits per program."""
    end = (tl.program_id(0) + 1).to(tl.int64) * SIZE
    if tl.load(status) == 0:
        if (end <= n) & (end * BITS // 32 < words):
            _unpack_part(payload, tail, out, marker, n, words, nbytes, BITS, ADD, MARKED, SIZE, True)
        else:
            _unpack_part(payload, tail, out, marker, n, words, nbytes, BITS, ADD, MARKED, SIZE, False)


@triton.jit
def mark_kernel(x, marker, n, SIZE: tl.constexpr):
    """Set the marker to 1 if any value is non-finite."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    words = tl.load(x + at, mask=at < n, other=0)
    if tl.max(((words & MAGNITUDE) >= INFINITY).to(tl.int32), axis=0) > 0:
        tl.store(marker, tl.full((), 1, tl.uint8))


@triton.jit
def check_kernel(payload, nbytes, status, USED: tl.constexpr, MARKED: tl.constexpr):
    """Set ``status`` if unused bits of the last packed byte aren't 0, or if the marker is invalid."""
    if MARKED:
        wrong = tl.load(payload + nbytes) > 1
        tl.atomic_max(status, wrong.to(tl.int32))
    if USED:
        unused = tl.load(payload + nbytes - 1) >> USED != 0
        tl.atomic_max(status, unused.to(tl.int32) * 2)


class PackKernels(Format):
    """The kernels of ``pack``. The parameter is the number of kept bits."""

    faults = ("its marker byte is neither 0 nor 1", "the unused bits of its last byte are not zero")

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernels that pack values and, if the format has a marker, detect non-finite values."""
        n, (bits,) = x.numel(), params
        nbytes = ceil_div(n * bits, 8)
        if bits <= _MARKED:
            out[nbytes:].zero_()
            launch(mark_kernel, ceil_div(n, _SIZE), *(words_of(x), out[nbytes:], n), SIZE=_SIZE)
        if bits in _WHOLE:
            moved = words_of(x), out[:nbytes].view(_WHOLE[bits]), n
            launch(move_kernel, ceil_div(n, _SIZE), *moved, BITS=bits, SIZE=_SIZE)
            return
        words = nbytes // 4
        packed = words_of(x), words_of(out[: 4 * words]), out, n, words, nbytes
        launch(pack_kernel, ceil_div(ceil_div(nbytes, 4), _WORDS), *packed, BITS=bits, WORDS=_WORDS)

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:
        """Queue the kernel that checks the unused bits and, if the format has one, the marker."""
        (bits,) = params
        used, marked = n * bits % 8, bits <= _MARKED
        if used or marked:
            launch(check_kernel, 1, payload, ceil_div(n * bits, 8), status, warps=1, USED=used, MARKED=marked)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernel that unpacks values, or adds them to ``out``."""
        n, (bits,) = out.numel(), params
        nbytes = ceil_div(n * bits, 8)
        constants = {"BITS": bits, "ADD": add, "MARKED": bits <= _MARKED}
        marker = payload[nbytes:] if bits <= _MARKED else status
        if bits in _WHOLE:
            moved = payload[:nbytes].view(_WHOLE[bits]), words_of(out), marker, n, status
            launch(move_back_kernel, ceil_div(n, _SIZE), *moved, SIZE=_SIZE, **constants)
            return
        words = nbytes // 4
        whole = words_of(payload[: 4 * words])
        args = whole, payload, words_of(out), marker, n, words, nbytes, status
        launch(unpack_kernel, ceil_div(n, _UNPACKED), *args, SIZE=_UNPACKED, **constants)


PACK = PackKernels()
