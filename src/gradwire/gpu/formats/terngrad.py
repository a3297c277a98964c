"""``terngrad``: -s, 0 or s, drawn from a hash of seed, checksum, and place (native/terngrad.cc)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.blocks import split
from gradwire.gpu.checksum import queue_crc32c, times, x_to
from gradwire.gpu.contract import Format, Params
from gradwire.gpu.launch import ceil_div, launch, words_of
from gradwire.gpu.words import INFINITY, MAGNITUDE, QUIET_NAN, float_of, is_nan, put, put_words, take

_SIZE = 1024
_SEARCHED = 8192


@triton.jit
def peak_kernel(x, peak, n, SIZE: tl.constexpr):
    """Raise ``peak`` to the largest magnitude, as bits."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    at = tl.arange(0, SIZE)
    if n - start >= SIZE:
        words = tl.load(x + start + at)
    else:
        words = tl.load(x + start + at, mask=at < n - start, other=0)
    tl.atomic_max(peak, tl.max((words & MAGNITUDE).to(tl.int32, bitcast=True), axis=0))


@triton.jit
def uniform(key, place):
    """Return 24 random bits of each place as a float below 1: the finisher of SplitMix64."""
    z = key + (place + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    return (z >> 40).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def _encode_part(x, codes, start, left, peak, key, SIZE: tl.constexpr, FULL: tl.constexpr):
    at = tl.arange(0, SIZE)
    words = take(x, at, at < left, FULL)
    drawn = (peak > 0) & (peak < INFINITY)
    scale = float_of(tl.where(drawn, peak, 0x3F800000).to(tl.uint32))
    share = tl.div_rn(float_of((words & MAGNITUDE).to(tl.uint32)), tl.zeros([SIZE], tl.float32) + scale)
    chosen = drawn & (uniform(key, start + at) < share)
    code = tl.where(chosen, 1 + (words >> 31).to(tl.int32), 0)
    quartets = tl.reshape(code, (SIZE // 4, 4)) << (2 * tl.arange(0, 4))[None, :]
    quartet = tl.arange(0, SIZE // 4)
    put(codes, quartet, tl.sum(quartets, axis=1).to(tl.uint8), quartet * 4 < left, FULL)


@triton.jit
def encode_kernel(x, scale, codes, n, peak, word, added, low, high, SHIFT: tl.constexpr, SIZE: tl.constexpr):
    """Encode SIZE values a program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    found = tl.load(peak)
    crc = times(tl.load(word + tl.arange(0, 1)).to(tl.uint32), SHIFT)
    seed = tl.load(low).to(tl.uint64) | (tl.load(high).to(tl.uint64) << 32)
    key = tl.sum(crc.to(tl.uint64), axis=0) ^ tl.load(added).to(tl.uint64) ^ seed
    if n - start >= SIZE:
        _encode_part(x + start, codes + start // 4, start, n - start, found, key, SIZE, True)
    else:
        _encode_part(x + start, codes + start // 4, start, n - start, found, key, SIZE, False)
    if start == 0:
        tl.store(scale, tl.where(found >= INFINITY, QUIET_NAN, found).to(tl.uint32))


@triton.jit
def check_kernel(scale, codes, nbytes, status, USED: tl.constexpr, SIZE: tl.constexpr):
    """Look for the code that no encoder makes, unused bits that are set, and a scale of no chunk."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    code = tl.load(codes + at, mask=at < nbytes, other=0).to(tl.int32)
    fault = tl.max((((code & (code >> 1)) & 0x55) != 0).to(tl.int32), axis=0)
    if USED:
        unused = (at == nbytes - 1) & ((code >> USED) != 0)
        fault = tl.maximum(fault, tl.max(unused.to(tl.int32), axis=0) * 2)
    if tl.program_id(0) == 0:
        found = tl.load(scale)
        wrong = (found >= INFINITY) & (found != QUIET_NAN)
        fault = tl.maximum(fault, wrong.to(tl.int32) * 3)
    tl.atomic_max(status, fault)


@triton.jit
def _decode_part(scale, codes, out, left, ADD: tl.constexpr, SIZE: tl.constexpr, FULL: tl.constexpr):
    at = tl.arange(0, SIZE)
    loaded = take(codes, at // 4, at < left, FULL).to(tl.int32)
    code = (loaded >> ((at % 4) * 2)) & 3
    sign = tl.where((code == 2) & (scale != QUIET_NAN), 0x80000000, 0).to(tl.uint32)
    words = tl.where((code != 0) | is_nan(scale), scale ^ sign, 0).to(tl.uint32)
    put_words(out, at, words, at < left, FULL, ADD)


@triton.jit
def decode_kernel(scale, codes, out, n, status, ADD: tl.constexpr, SIZE: tl.constexpr):
    """Decode SIZE values a program."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if tl.load(status) == 0:
        found = tl.load(scale)
        if n - start >= SIZE:
            _decode_part(found, codes + start // 4, out + start, n - start, ADD, SIZE, True)
        else:
            _decode_part(found, codes + start // 4, out + start, n - start, ADD, SIZE, False)


class TernGrad(Format):
    """The parameters are the halves of the seed, the low one first."""

    faults = (
        "a code is 3",
        "the unused bits of its last byte are not zero",
        "its scale is negative or infinite",
    )

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernels that look for the peak, make the checksum, and draw."""
        n = x.numel()
        if not n:
            out.zero_()
            return
        scale, codes = split(out, 4)
        peak = torch.zeros(1, dtype=torch.int32, device=x.device)
        launch(peak_kernel, ceil_div(n, _SEARCHED), *(words_of(x), peak, n), warps=8, SIZE=_SEARCHED)
        word, added = queue_crc32c(x)
        numbers = (_word(number, x) for number in (added, *params))
        launch(
            encode_kernel,
            ceil_div(n, _SIZE),
            *(words_of(x), words_of(scale), codes, n, peak, word, *numbers),
            SHIFT=x_to(32),
            SIZE=_SIZE,
        )

    def check(self, payload: torch.Tensor, n: int, params: Params, status: torch.Tensor) -> None:
        """Queue the kernel that looks at the scale and at the codes."""
        scale, codes = split(payload, 4)
        nbytes = codes.numel()
        launch(
            check_kernel,
            max(ceil_div(nbytes, _SIZE), 1),
            *(words_of(scale), codes, nbytes, status),
            USED=2 * (n % 4),
            SIZE=_SIZE,
        )

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernel that looks the values up."""
        scale, codes = split(payload, 4)
        n = out.numel()
        launch(
            decode_kernel,
            ceil_div(n, _SIZE),
            *(words_of(scale), codes, words_of(out), n, status),
            ADD=add,
            SIZE=_SIZE,
        )


def _word(number: int, x: torch.Tensor) -> torch.Tensor:
    """Return 32 bits where ``x`` is; as an argument, Triton would compile some numbers into the kernel."""
    signed = (number & 0xFFFFFFFF) - ((number & 0x80000000) << 1)
    return words_of(torch.full((1,), signed, dtype=torch.int32, device=x.device))


TERNGRAD = TernGrad()
