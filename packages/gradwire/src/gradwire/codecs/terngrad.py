"""TernGrad: unbiased stochastic rounding to three values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradwire.codecs.base import largest_finite
from gradwire.codecs.native import NativeCodec, as_int32
from gradwire.codecs.spec import Reader, error, is_whole, join
from gradwire.deferred import torch

_EXPECTED, _EXAMPLE = "a seed from 0 to 2^64 - 1", "terngrad:seed=1"


@dataclass(frozen=True)
class TernGrad(NativeCodec):
    """Unbiased stochastic rounding of every value to -s, 0, or +s.

    Formula: s = max|x| over the chunk; y = s sign(x) b with P(b = 1) = |x| / s. The random numbers are a
    counter-based hash of the seed, the CRC32C of the chunk, and the index: the same chunk gives the same
    bytes on every machine, and a different step's chunk gives different random numbers.

    Payload: float32 s, then 2 bits per value (0 zero, 1 +s, 2 -s; 3 is malformed), four per byte from the
    low bits up, unused bits 0. Bound: max|x|; only the expectation is exact. Non-finite values: any NaN or
    infinity turns the whole chunk, in an exchange the segment, into NaN (s is NaN). Ratio: 16. Source: Wen et
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

    name: ClassVar[str] = "terngrad"
    wire_id: ClassVar[int] = 9
    EXAMPLES: ClassVar[tuple[str, ...]] = ("terngrad", "terngrad:seed=18446744073709551615")
    _format: ClassVar[str] = "terngrad"

    def __post_init__(self) -> None:
        if not is_whole(self.seed, 0, 2**64 - 1):
            raise error(self.name, _EXPECTED, self.seed, _EXAMPLE)

    @property
    def _params(self) -> tuple[int, ...]:
        return as_int32(self.seed), as_int32(self.seed >> 32)

    def __str__(self) -> str:
        return join(self.name, f"seed={self.seed}" if self.seed else "")

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[int]:
        reader.example = _EXAMPLE
        seed = reader.option("seed")
        return (0 if seed is None else reader.whole(_EXPECTED, seed),)

    def bound(self, x: torch.Tensor) -> float:
        """Return the largest finite magnitude, because any value can become 0 or as large as the largest."""
        return largest_finite(x)
