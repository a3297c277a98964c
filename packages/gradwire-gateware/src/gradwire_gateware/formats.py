"""The formats of ``bfp`` and ``inceptionn``, shared by their compressors and decompressors."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import Bfp, Inceptionn
from gradwire.errors import SpecError
from gradwire_gateware import LANE_BITS


class BfpLayout(NamedTuple):
    """The layout of a ``bfp`` codec's blocks in a stream's words."""

    mantissa_bits: int
    lanes: int
    words: int
    """The number of float32 words in a block."""
    nbytes: int
    """The bytes of the mantissas of a float32 word, after the exponent in a block's first word."""

    @classmethod
    def of(cls, codec: Bfp, width: int) -> BfpLayout:
        """Return a codec's layout. Raises ``SpecError`` if a block isn't a whole number of words."""
        lanes = width // LANE_BITS
        if codec.block % lanes:
            raise SpecError(
                f"hardware of {width} bits: expected a block whose length is a multiple of {lanes}, got "
                f"{str(codec)!r}; choose another block, or a width of 256"
            )
        nbytes = lanes * (codec.mantissa_bits + 1) // 8
        return cls(codec.mantissa_bits, lanes, codec.block // lanes, nbytes)


# The format of ``inceptionn``.

GROUP_LANES = 8
"""The number of values that share a word of tags. The format calls such a group a burst."""
GROUP_NBYTES = 2 + 4 * GROUP_LANES
"""The size of the largest group, with its tags and eight raw floats."""


class Classes(NamedTuple):
    """The boundaries between the size classes of ``inceptionn``, as biased exponents."""

    first: int
    """The smallest exponent encoded in 8 bits."""
    second: int
    """The smallest exponent encoded in 16 bits."""
    base: int
    """The exponent of the unit in which the 8 bits are a fraction."""

    @classmethod
    def of(cls, codec: Inceptionn) -> Classes:
        """Return a codec's classes, from the parameters of its compiled kernels."""
        _, (first, bounded) = codec.compiled
        second = first + (127 - first + 1) // 2
        return cls(first, second, second if bounded else 127)
