"""Floats as codecs: uncompressed, and cast to 16 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire.codecs.base import half_ulp, largest_finite
from gradwire.codecs.native import NativeCodec
from gradwire.deferred import torch


class PlainCodec(NativeCodec):
    """A compiled codec without parameters, whose spec is its name."""

    def __str__(self) -> str:
        return self.name


# No compression: the baseline, which uses the same code path as all other codecs.


@dataclass(frozen=True)
class Identity(PlainCodec):
    """Uncompressed floats.

    Formula: y = x. Payload: 4n bytes, the floats little-endian. Bound: 0. Non-finite values: carried exactly,
    with all bits. Ratio: 1.

    Examples
    --------
    >>> import torch
    >>> payload = Identity().encode(torch.tensor([1.0, -2.0]))
    >>> payload.tolist()
    [0, 0, 128, 63, 0, 0, 0, 192]
    """

    name = "identity"
    wire_id = 0
    EXAMPLES = ("identity",)
    EXACT = True
    SEGMENT_NBYTES = 1 << 18  # the network is the bottleneck: keep it busy between two hops
    _format = "pack"
    _params = (32,)

    def bound(self, x: torch.Tensor) -> float:  # noqa: ARG002 - the contract's parameter
        """Return 0, because the codec is lossless."""
        return 0.0


# Casts to 16 bits.


@dataclass(frozen=True)
class Fp16(PlainCodec):
    """IEEE binary16, rounded to nearest even.

    Formula: y = the nearest half-precision number. Payload: 2n bytes, little-endian. Bound: half a unit in
    the last place of the largest element, 2^-11 of its binade and at least 2^-25. Values from 65520 up
    overflow to infinity, as IEEE 754 specifies; the bound is then ``inf``. Non-finite values: each
    independently; infinities are exact, and NaN stays NaN. Ratio: 2. Source: IEEE 754-2019, section 5.4.2
    (conversion) and table 3.5 (binary16).

    Examples
    --------
    >>> import torch
    >>> Fp16().encode(torch.tensor([1.0, -2.0])).tolist()
    [0, 60, 0, 192]
    >>> Fp16().bound(torch.tensor([1.0])) == 2**-11
    True
    """

    name = "fp16"
    wire_id = 1
    EXAMPLES = ("fp16",)
    _format = "fp16"
    _params = ()

    def bound(self, x: torch.Tensor) -> float:
        """Return half a unit in the last place of the largest element, or ``inf`` if rounding overflows."""
        largest = largest_finite(x)
        return math.inf if largest >= 65520.0 else half_ulp(largest, mantissa_bits=10, min_exponent=-14)


@dataclass(frozen=True)
class Bf16(PlainCodec):
    """The upper half of a float32, rounded to nearest even.

    Formula: y = the nearest number with 8 significant bits. Payload: 2n bytes, little-endian. Bound: half a
    unit in the last place of the largest element, 2^-8 of its binade and at least 2^-134. The largest finite
    floats, from (2 - 2^-8) 2^127 up, overflow to infinity; the bound is then ``inf``. Non-finite values: each
    independently; infinities are exact, and NaN stays NaN. Ratio: 2. Source: Kalamkar et al., "A Study of
    BFLOAT16 for Deep Learning Training", section 2.

    Examples
    --------
    >>> import torch
    >>> Bf16().encode(torch.tensor([1.0, -2.0])).tolist()
    [128, 63, 0, 192]
    """

    name = "bf16"
    wire_id = 2
    EXAMPLES = ("bf16",)
    _format = "bf16"
    _params = ()

    def bound(self, x: torch.Tensor) -> float:
        """Return half a unit in the last place of the largest element, or ``inf`` if rounding overflows."""
        largest = largest_finite(x)
        overflow = math.ldexp(2.0 - 2.0**-8, 127)
        return math.inf if largest >= overflow else half_ulp(largest, mantissa_bits=7, min_exponent=-126)
