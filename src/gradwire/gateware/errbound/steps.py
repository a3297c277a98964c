"""What the compressor and the decompressor of ``errbound`` must know of the format."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import ErrBound
from gradwire.errors import SpecError


class Steps(NamedTuple):
    """The steps of an absolute bound."""

    exponent: int
    """The biased exponent of the bound."""
    limits: tuple[int, int]
    """The largest codes of one and of two bytes."""

    @classmethod
    def of(cls, codec: ErrBound) -> Steps:
        """Return the steps of a codec. Raises ``SpecError`` for a relative bound."""
        if codec.absolute is None:
            raise SpecError(
                "hardware of errbound wants an absolute bound, because a relative one needs sums in double "
                f"precision, but got {str(codec)!r}; for example, choose 'errbound:2^-10'"
            )
        (exponent, *_) = codec.compiled[1]
        overflow = 1 << (254 - exponent) if exponent > 238 else 1 << 16
        return cls(exponent, (min(127, overflow - 1), min(32767, overflow - 1)))
