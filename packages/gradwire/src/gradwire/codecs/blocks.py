"""Codecs with one exponent per block: integers (``bfp``), and 8-bit floats (``fp8``)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gradwire.codecs.base import floor_log2, largest_finite
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.spec import Reader, error, is_whole, join
from gradwire.deferred import torch

SMALLEST_EXPONENT = 32
"""Blocks with exponents below this are sent as zeros."""
NAN_EXPONENT = 255
"""The exponent that marks a block with a non-finite value."""


@dataclass(frozen=True)
class Bfp(NativeCodec):
    """Integers in blocks that share the exponent of their largest magnitude.

    Formula: E is the biased exponent of the block's largest magnitude, the unit is 2^(E - 127 - (M - 1));
    q = round_half_even(x / unit) saturated to +-(2^M - 1); y = q unit.

    Payload: per block one byte E, then the block's values, M + 1 bits each in two's complement, packed
    little-endian; the last block is padded with zeros. A block with E < 32 is sent as E = 0 and is all zero.

    Bound: one unit of the block with the largest magnitude, plus 2^-95 for blocks sent as zero. Non-finite
    values: any NaN or infinity turns its block into NaN (E = 255); other blocks are unaffected. Ratio:
    32 B / (B (M + 1) + 8), 3.76 for 7x16. Source: Ma et al., "FPGA-Based AI Smart NICs for Scalable
    Distributed AI Training Systems", section IV.B, BFP16.

    Parameters
    ----------
    mantissa_bits
        M, 1 to 15, without the sign bit.
    block
        B, the number of values that share an exponent: a multiple of 8 from 8 to 1024.

    Examples
    --------
    >>> import torch
    >>> Bfp(7, 8).encode(torch.tensor([1.0, -0.5, 0.25])).tolist()
    [127, 64, 224, 16, 0, 0, 0, 0, 0]
    """

    mantissa_bits: int = 7
    block: int = 16

    name = "bfp"
    wire_id = 7
    EXAMPLES = ("bfp:7x16", "bfp:1x8", "bfp:3x16", "bfp:10x64", "bfp:15x1024")
    _format = "bfp"

    def __post_init__(self) -> None:
        if not is_whole(self.mantissa_bits, 1, 15):
            raise error(self.name, "1 to 15 mantissa bits", self.mantissa_bits, self.EXAMPLES[0])
        if not is_whole(self.block, 8, 1024) or self.block % 8:
            raise error(
                self.name, "a block of 8 to 1024 values, a multiple of 8", self.block, self.EXAMPLES[0]
            )

    @property
    def _params(self) -> tuple[int, ...]:
        return self.mantissa_bits, self.block

    def __str__(self) -> str:
        return f"{self.name}:{self.mantissa_bits}x{self.block}"

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int, ...]:
        expected = "mantissa bits and block written as 7x16"
        text = reader.argument(expected)
        match = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text, re.ASCII)
        if match is None:
            raise error(cls.name, expected, text, reader.example)
        return int(match[1]), int(match[2])

    def bound(self, x: torch.Tensor) -> float:
        """Return one unit of the block with the largest magnitude, plus the flush-to-zero threshold."""
        largest = largest_finite(x)
        if largest == 0.0:
            return 0.0
        unit = math.ldexp(1.0, floor_log2(largest) - (self.mantissa_bits - 1))
        return unit + 2.0 ** (SMALLEST_EXPONENT - 127)


# 8-bit floats.

_BLOCK = 256


@dataclass(frozen=True)
class Fp8(NativeCodec):
    """8-bit floats with a power-of-two scale per block.

    A value keeps 3 to 4 significant bits over a range of 2^17 within its block. Gradients a thousand times
    smaller than their neighbours therefore keep their precision. Optimizers such as Adam need this precision,
    because they divide each weight's gradient by its own typical size. ``quantize:8``, with one step size per
    block, rounds such gradients to 0.

    Formula: E is the biased exponent of the block's largest magnitude, u = x 2^(134 - E), so that the largest
    |u| is within [128, 256); u is rounded half to even to 3 mantissa bits if |u| >= 2^-6 and otherwise to
    multiples of 2^-9, and to at most 256 (240 if E = 254, because 256 would overflow); y = u 2^(E - 134).

    Payload: ceil(n / block) bytes E, then n codes of a sign bit, 4 exponent bits with the bias 7 and 3
    mantissa bits (exponent 0: subnormal). A block below 2^-95 has E = 0 and only zeros.

    Bound: 2^(e - 4) + 2^-95 with e = floor(log2 max|x|), twice the first term if e = 127; for each value,
    max(|x| / 16, 2^(e - 17)) with the e of its block. Non-finite values: any NaN or infinity turns its block
    into NaN (E = 255), or the whole chunk if that is shorter; other blocks are unaffected.
    Ratio: 4 block / (block + 1), 3.98 at the default block. Source: Micikevicius et al., "FP8 Formats for
    Deep Learning", 2022, E4M3, without its NaN and its 448, which the scale makes unnecessary; block scales
    as in the OCP Microscaling Formats (MX) specification, 2023.

    Parameters
    ----------
    block
        The number of values that share a scale: a multiple of 16 from 16 to 65536.

    Examples
    --------
    >>> import torch
    >>> Fp8().encode(torch.tensor([1.0, -0.5, 0.3, 0.001])).tolist()
    [127, 112, 232, 98, 32]
    >>> decoded = torch.empty(4)
    >>> Fp8().decode(Fp8().encode(torch.tensor([1.0, -0.5, 0.3, 0.001])), decoded)
    >>> decoded.tolist()
    [1.0, -0.5, 0.3125, 0.0009765625]
    """

    block: int = _BLOCK

    name = "fp8"
    wire_id = 12
    EXAMPLES = ("fp8", "fp8:block=16", "fp8:block=48", "fp8:block=65536")
    _format = "fp8"

    def __post_init__(self) -> None:
        if not is_whole(self.block, 16, 65536) or self.block % 16:
            raise error(
                self.name, "a block of 16 to 65536 values, a multiple of 16", self.block, "fp8:block=1024"
            )

    @property
    def _params(self) -> tuple[int, ...]:
        return (self.block,)

    def __str__(self) -> str:
        return join(self.name, "" if self.block == _BLOCK else f"block={self.block}")

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int]:
        block = reader.option("block")
        return (_BLOCK if block is None else reader.whole("a block that is a whole number", block),)

    def bound(self, x: torch.Tensor) -> float:
        """Return half a unit in the last place of the largest magnitude, plus the flush-to-zero threshold."""
        largest = largest_finite(x)
        if largest == 0.0:
            return 0.0
        exponent = floor_log2(largest)
        return math.ldexp(1.0, exponent - (3 if exponent == 127 else 4)) + 2.0**-95
