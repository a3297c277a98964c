"""``fp16`` and ``bf16``: two bytes per value, rounded to nearest even (native/kernels/cast_scalar.cc)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import (
    INFINITY,
    MAGNITUDE,
    bits_of,
    ceil_div,
    float_of,
    is_nan,
    launch,
    put,
    put_words,
    take,
    words_of,
)

_SIZE = 2048


@triton.jit
def fp16_of(words):
    """Convert floats to fp16 bits. Adding 2^-1 rounds values that are subnormal in fp16."""
    magnitude = words & MAGNITUDE
    nan = 0x7E00 | ((magnitude >> 13) & 0x3FF)
    normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    small = tl.where(magnitude < 0x38800000, magnitude, 0)
    subnormal = bits_of(float_of(small) + 0.5) - 0x3F000000
    half = tl.where(magnitude >= 0x38800000, normal, subnormal)
    half = tl.where(magnitude >= 0x47800000, 0x7C00, half)
    half = tl.where(magnitude > INFINITY, nan, half)
    return (half | ((words >> 16) & 0x8000)).to(tl.uint16)


@triton.jit
def float_of_fp16(half):
    """Convert fp16 bits to float32 bits."""
    sign = (half & 0x8000) << 16
    exponent = (half >> 10) & 0x1F
    mantissa = half & 0x3FF
    subnormal = bits_of(mantissa.to(tl.float32) * 5.9604644775390625e-08)
    special = INFINITY | (mantissa << 13) | tl.where(mantissa != 0, 0x400000, 0)
    magnitude = tl.where(exponent < 31, ((exponent + 112) << 23) | (mantissa << 13), special)
    return sign | tl.where(exponent == 0, subnormal, magnitude)


@triton.jit
def bf16_of(words):
    """Convert floats to bf16 bits, rounded to nearest even. A NaN is truncated and made quiet."""
    rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
    return tl.where(is_nan(words), (words >> 16) | 0x40, rounded).to(tl.uint16)


@triton.jit
def _encode_part(x, out, left, HALF, SIZE, FULL):
    at = tl.arange(0, SIZE)
    words = take(x, at, at < left, FULL)
    put(out, at, fp16_of(words) if HALF else bf16_of(words), at < left, FULL)


@triton.jit
def encode_kernel(x, out, n, HALF: tl.constexpr, SIZE: tl.constexpr):
    """Convert SIZE float32 values per program to fp16 (HALF) or bf16."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if n - start >= SIZE:
        _encode_part(x + start, out + start, n - start, HALF, SIZE, True)
    else:
        _encode_part(x + start, out + start, n - start, HALF, SIZE, False)


@triton.jit
def _decode_part(payload, out, left, HALF, ADD, SIZE, FULL):
    at = tl.arange(0, SIZE)
    half = take(payload, at, at < left, FULL).to(tl.uint32)
    put_words(out, at, float_of_fp16(half) if HALF else half << 16, at < left, FULL, ADD)


@triton.jit
def decode_kernel(payload, out, n, HALF: tl.constexpr, ADD: tl.constexpr, SIZE: tl.constexpr):
    """Convert SIZE fp16 (HALF) or bf16 values per program to float32."""
    start = tl.program_id(0).to(tl.int64) * SIZE
    if n - start >= SIZE:
        _decode_part(payload + start, out + start, n - start, HALF, ADD, SIZE, True)
    else:
        _decode_part(payload + start, out + start, n - start, HALF, ADD, SIZE, False)


class CastKernels(Format):
    """The kernels of ``fp16`` or ``bf16``."""

    def __init__(self, *, is_half: bool) -> None:
        self._is_half = is_half

    def encode(self, x: torch.Tensor, out: torch.Tensor, params: Params, size: torch.Tensor) -> None:
        """Queue the kernel that rounds float32 to 16 bits."""
        n = x.numel()
        args = words_of(x), out.view(torch.uint16), n
        launch(encode_kernel, ceil_div(n, _SIZE), *args, HALF=self._is_half, SIZE=_SIZE)

    def decode(
        self, payload: torch.Tensor, out: torch.Tensor, params: Params, status: torch.Tensor, *, add: bool
    ) -> None:
        """Queue the kernel that converts 16-bit values to float32."""
        n = out.numel()
        args = payload.view(torch.uint16), words_of(out), n
        launch(decode_kernel, ceil_div(n, _SIZE), *args, HALF=self._is_half, ADD=add, SIZE=_SIZE)


FP16, BF16 = CastKernels(is_half=True), CastKernels(is_half=False)
