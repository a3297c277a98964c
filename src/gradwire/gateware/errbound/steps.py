"""What the compressor and the decompressor of ``errbound`` must know of the format."""

from __future__ import annotations

from typing import NamedTuple

from amaranth import Value

from gradwire.codecs import ErrBound


class Steps(NamedTuple):
    """The steps of a bound, as numbers or as signals."""

    exponent: int | Value
    """The biased exponent of the bound."""
    limits: tuple[int, int] | tuple[Value, Value]
    """The largest codes of one and of two bytes."""

    @classmethod
    def of(cls, codec: ErrBound) -> Steps:
        """Return the steps of a codec whose bound is absolute."""
        (exponent, *_) = codec.compiled[1]
        overflow = 1 << (254 - exponent) if exponent > 238 else 1 << 16
        return cls(exponent, (min(127, overflow - 1), min(32767, overflow - 1)))
