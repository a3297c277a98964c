"""The format of the INCEPTIONN NIC, bit for bit, and a variant with the threshold as its error bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire.codecs.base import floor_log2
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.spec import Reader, error, is_power, nearest_power, write_power
from gradwire.deferred import torch

_EXPECTED = "a power of two from 2^-20 to 2^-1"


@dataclass(frozen=True)
class Inceptionn(NativeCodec):
    """Truncated values in four size classes by exponent: 0, 8, 16, or all 32 bits of a value.

    Formula: with the threshold 2^-k and mid = ceil(k / 2) - k: |x| < 2^-k takes no bits and becomes 0; up to
    2^mid, x takes 8 bits, sign and 7 fraction bits; below 1, it takes 16 bits, sign and 15 fraction bits;
    from 1 up, it is sent whole. All classes truncate towards zero.

    Payload: bursts of 8 values, the last one padded with zeros. A burst is 16 tag bits (lane i in bits
    2i+1..2i: 0 none, 1 for 8, 2 for 16, 3 for 32 bits), then the payloads in lane order, all little-endian; 8
    bits are ``sign << 7 | fraction``, 16 bits ``sign << 15 | fraction``.

    Bound: as published, the lowest of the 8 bits is 2^-7 for any threshold, so the error is up to max(2^-k,
    min(2^-7, 2^mid)): twice the threshold at 2^-8, eight times at 2^-10. With ``bounded``, the highest of the
    8 bits follows 2^mid instead of 1, with the same tags and sizes: no error exceeds 2^-k, and errors of the
    8-bit class are below 1/4, 1/8, 1/16 of 2^-k at 2^-10, 2^-8, 2^-6. Non-finite values: exact, each
    independently. Ratio: 16 if all values are small, 16/17 at worst.

    Source: Li et al., "A Network-Centric Hardware/Algorithm Co-Design to Accelerate Distributed Training of
    Deep Neural Networks" (INCEPTIONN, MICRO 2018), algorithms 2 and 3, figures 9 and 10.

    Parameters
    ----------
    threshold
        2^-1 to 2^-20; the paper's error bound.
    bounded
        Whether the threshold bounds the error; for 2^-1 to 2^-14 only.

    Examples
    --------
    >>> import torch
    >>> Inceptionn(2**-10).encode(torch.tensor([0.0, 0.015625, 1.0])).tolist()
    [52, 0, 2, 0, 0, 128, 63]
    >>> Inceptionn(2**-10).bound(torch.tensor([0.0])) == 2**-7
    True
    >>> Inceptionn(2**-10, bounded=True).bound(torch.tensor([0.0])) == 2**-10
    True
    """

    threshold: float
    bounded: bool = False

    name = "inceptionn"
    wire_id = 3
    EXAMPLES = (
        "inceptionn:2^-10",
        "inceptionn:2^-6",
        "inceptionn:2^-20",
        "inceptionn:2^-10,bounded",
        "inceptionn:2^-14,bounded",
        "inceptionn:2^-1,bounded",
    )
    _format = "inceptionn"

    def __post_init__(self) -> None:
        if not is_power(self.threshold, -20, -1):
            nearest = f"{self.name}:{nearest_power(self.threshold, -20, -1)}"
            raise error(self.name, _EXPECTED, self.threshold, nearest)
        if self.bounded and self.threshold < 2**-14:
            got = write_power(self.threshold)
            raise error(self.name, "2^-14 or more with 'bounded'", got, f"{self.name}:2^-14,bounded")

    @property
    def _params(self) -> tuple[int, ...]:
        return 127 + floor_log2(self.threshold), int(self.bounded)

    @property
    def is_offloadable(self) -> bool:
        """Whether a NIC may apply the codec to any piece of a stream: always True."""
        return True

    @property
    def is_scalable(self) -> bool:
        """Whether the error bound is absolute: always True."""
        return True

    def __str__(self) -> str:
        return f"{self.name}:{write_power(self.threshold)}{',bounded' if self.bounded else ''}"

    @classmethod
    def _fields(cls, reader: Reader) -> tuple[float, bool]:
        return reader.real(_EXPECTED, reader.argument(_EXPECTED)), reader.flag("bounded")

    def bound(self, x: torch.Tensor) -> float:  # noqa: ARG002 - the same for every chunk
        """Return the error bound of values below 1: the threshold if ``bounded``, else up to 2^-7."""
        if self.bounded:
            return self.threshold
        exponent = floor_log2(self.threshold)
        middle = math.ldexp(1.0, exponent + (1 - exponent) // 2)
        return max(self.threshold, min(2.0**-7, middle))
