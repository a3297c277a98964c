"""Rounding to evenly spaced values: to the nearest (``quantize``), or at random to three (``terngrad``)."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.codecs.base import largest_finite
from gradwire.codecs.native import NativeCodec, as_int32
from gradwire.codecs.spec import Reader, error, is_whole, join
from gradwire.deferred import torch

SMALLEST_PEAK = 2.0**-100
"""Blocks whose largest magnitude is below this are sent as zeros."""
CLEARED_BITS = 8
"""The number of low bits of a scale that are cleared."""
_BLOCK = 1024
_BITS_EXPECTED = "4 or 8 bits"


@dataclass(frozen=True)
class Quantize(NativeCodec):
    """Scalar quantisation with a step size proportional to each block's largest magnitude.

    Formula: with qmax = 127 (8 bits) or 7 (4 bits), scale = max|x| / qmax over the block, its low 8 mantissa
    bits cleared so that products are exact; q = round_half_even(x / scale) within +-qmax; y = q scale.

    Payload: ceil(n / block) float32 scales, then n bytes, or ceil(n / 2) bytes of two signed nibbles, low
    nibble first, unused nibble 0. A block below 2^-100 has scale 0 and only zeros.

    Bound: 0.51 max|x| / qmax + 2^-100. Non-finite values: any NaN or infinity turns its block into NaN (the
    scale is NaN), or the whole chunk if that is shorter; other blocks are unaffected. Ratio: 3.98 (8 bits)
    or 7.94 (4 bits) at the default block. Source: Pipe-SGD (Li et al., NeurIPS 2018), section 3.2, "Q":
    8-bit scalar quantisation over the range of the largest element; the blocks are gradwire's.

    Parameters
    ----------
    bits
        8 or 4.
    block
        The number of values that share a scale: a multiple of 16 from 16 to 65536.

    Examples
    --------
    >>> import torch
    >>> Quantize(8).encode(torch.tensor([127.0, -1.0, 0.4])).tolist()
    [0, 0, 128, 63, 127, 255, 0]
    >>> Quantize(4).encode(torch.tensor([7.0, -1.0, 0.4])).tolist()
    [0, 0, 128, 63, 247, 0]
    """

    bits: int = 8
    block: int = _BLOCK

    name = "quantize"
    wire_id = 6
    EXAMPLES = (
        "quantize:8",
        "quantize:4",
        "quantize:8,block=16",
        "quantize:4,block=48",
        "quantize:8,block=65536",
    )
    _format = "quantize"

    def __post_init__(self) -> None:
        if not is_whole(self.bits, 4, 8) or self.bits not in (4, 8):
            raise error(self.name, _BITS_EXPECTED, self.bits, "quantize:8")
        if not is_whole(self.block, 16, 65536) or self.block % 16:
            expected = "a block of 16 to 65536 values, a multiple of 16"
            raise error(self.name, expected, self.block, "quantize:8,block=1024")

    @property
    def WANTS_RESIDUAL(self) -> bool:  # noqa: N802 - a constant of other codecs
        """Whether training needs error feedback, as it does with 4 bits, whose step size is coarse."""
        return self.bits == 4

    @property
    def largest_code(self) -> int:
        """The largest code, 127 or 7. The smallest code is its negative."""
        return (1 << (self.bits - 1)) - 1

    @property
    def _params(self) -> tuple[int, ...]:
        return self.bits, self.block

    def __str__(self) -> str:
        return join(self.name, str(self.bits), "" if self.block == _BLOCK else f"block={self.block}")

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int, int]:
        bits, block = reader.whole(_BITS_EXPECTED, reader.argument(_BITS_EXPECTED)), reader.option("block")
        return bits, _BLOCK if block is None else reader.whole("a block that is a whole number", block)

    def bound(self, x: torch.Tensor) -> float:
        """Return slightly more than half the step size of the block with the largest magnitude."""
        largest = largest_finite(x)
        return 0.51 * largest / self.largest_code + SMALLEST_PEAK if largest else 0.0


# Unbiased stochastic rounding to three values.

_SEED_EXPECTED, _SEED_EXAMPLE = "a seed from 0 to 2^64 - 1", "terngrad:seed=1"


@dataclass(frozen=True)
class TernGrad(NativeCodec):
    """Unbiased stochastic rounding of every value to -s, 0, or +s.

    Formula: s = max|x| over the chunk; y = s sign(x) b with P(b = 1) = |x| / s. The random numbers are a
    counter-based hash of the seed, the chunk's CRC32C, and the index. So the same chunk gives the same bytes
    on every machine, and each step's chunk gets different random numbers.

    Payload: float32 s, then 2 bits per value (0 zero, 1 +s, 2 -s; 3 is malformed), four per byte from the
    low bits up, unused bits 0. Bound: max|x|; only the expectation is exact. Non-finite values: any NaN or
    infinity turns the whole chunk (in an exchange, the segment) into NaN: s is NaN. Ratio: 16. Source: Wen et
    al., "TernGrad" (NIPS 2017), equations 1 to 3, without clipping and layer-wise scales (the chunk takes the
    layer's place).

    Parameters
    ----------
    seed
        0 to 2^64 - 1.

    Examples
    --------
    >>> import torch
    >>> TernGrad().encode(torch.tensor([2.0, -2.0, 0.0])).tolist()
    [0, 0, 0, 64, 9]
    """

    seed: int = 0

    name = "terngrad"
    wire_id = 9
    EXAMPLES = ("terngrad", "terngrad:seed=18446744073709551615")
    _format = "terngrad"

    def __post_init__(self) -> None:
        if not is_whole(self.seed, 0, 2**64 - 1):
            raise error(self.name, _SEED_EXPECTED, self.seed, _SEED_EXAMPLE)

    @property
    def _params(self) -> tuple[int, ...]:
        return as_int32(self.seed), as_int32(self.seed >> 32)

    def __str__(self) -> str:
        return join(self.name, f"seed={self.seed}" if self.seed else "")

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int]:
        reader.example = _SEED_EXAMPLE
        seed = reader.option("seed")
        return (0 if seed is None else reader.whole(_SEED_EXPECTED, seed),)

    def bound(self, x: torch.Tensor) -> float:
        """Return the largest finite magnitude, because any value can become 0 or as large as the largest."""
        return largest_finite(x)
