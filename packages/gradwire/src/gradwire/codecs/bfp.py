"""Block floating point: one exponent per block, as in smart network cards."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.base import floor_log2, largest_finite
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.spec import Reader, error, is_whole
from gradwire.deferred import torch

SMALLEST_EXPONENT = 32
"""Blocks with exponents below this are sent as zeros."""
NAN_EXPONENT = 255
"""The exponent that marks a block with a non-finite value."""


@dataclass(frozen=True)
class Bfp(NativeCodec):
    """Blocks that share the exponent of their largest magnitude.

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

    name: ClassVar[str] = "bfp"
    wire_id: ClassVar[int] = 7
    EXAMPLES: ClassVar[tuple[str, ...]] = ("bfp:7x16", "bfp:1x8", "bfp:3x16", "bfp:10x64", "bfp:15x1024")
    _format: ClassVar[str] = "bfp"

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
