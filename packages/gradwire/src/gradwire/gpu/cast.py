"""``fp16`` and ``bf16``: two bytes per value, rounded to nearest even (native/kernels/cast_scalar.cc)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwire.gpu.table import Format, Params
from gradwire.gpu.words import (
    INFINITY,
    MAGNITUDE,
    bits_of,
    ceil_div,
    float_of,
    is_nan,
    launch,
    put_words,
    take,
    words_of,
)

_SIZE = tl.constexpr(2048)


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
def float_of_bf16(half):
    """Convert bf16 bits to float32 bits."""
    return half << 16


@triton.jit
def convert_kernel(source, target, n, CONVERT: tl.constexpr, ADD: tl.constexpr):
    """Convert values with the function CONVERT, and store them, or with ADD add them."""
    start = tl.program_id(0).to(tl.int64) * _SIZE
    source, target, left = source + start, target + start, n - start
    at = tl.arange(0, _SIZE)
    for full in tl.static_range(2):
        if (left >= _SIZE) == full:
            values = CONVERT(take(source, at, at < left, full).to(tl.uint32))
            put_words(target, at, values, at < left, full, ADD)


class _Cast(Format):
    """The kernels of a 16-bit type, by the functions that convert to it and back."""

    def __init__(self, to_half: Any, to_float: Any) -> None:
        self._to_half, self._to_float = to_half, to_float

    def encode(self, x: Tensor, out: Tensor, params: Params, size: Tensor) -> None:
        n, args = x.numel(), (words_of(x), out.view(torch.uint16))
        launch(convert_kernel, ceil_div(n, _SIZE.value), *args, n, CONVERT=self._to_half, ADD=False)

    def decode(self, payload: Tensor, out: Tensor, params: Params, status: Tensor, *, add: bool) -> None:
        n, args = out.numel(), (payload.view(torch.uint16), words_of(out))
        launch(convert_kernel, ceil_div(n, _SIZE.value), *args, n, CONVERT=self._to_float, ADD=add)


FP16, BF16 = _Cast(fp16_of, float_of_fp16), _Cast(bf16_of, float_of_bf16)
