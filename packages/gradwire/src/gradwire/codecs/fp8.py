"""8-bit floats with a power-of-two scale per block."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.base import floor_log2, largest_finite
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.spec import Reader, error, is_whole, join
from gradwire.deferred import torch

_BLOCK = 256


@dataclass(frozen=True)
class Fp8(NativeCodec):
    """8-bit floats with a power-of-two scale per block.

    A value keeps 3 to 4 significant bits over a range of 2^17 within its block. Gradients a thousand times
    smaller than their neighbours therefore keep their precision. Optimizers such as Adam need this, because
    they divide by each weight's own scale; ``quantize:8``, with one step size per block, rounds such
    gradients to 0.

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

    name: ClassVar[str] = "fp8"
    wire_id: ClassVar[int] = 12
    EXAMPLES: ClassVar[tuple[str, ...]] = ("fp8", "fp8:block=16", "fp8:block=48", "fp8:block=65536")
    _format: ClassVar[str] = "fp8"

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
