"""The formats of ``bfp`` and ``inceptionn``, as their compressors and decompressors share them."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import Bfp, Inceptionn
from gradwire.errors import SpecError
from gradwire_gateware import LANE_BITS


class BfpLayout(NamedTuple):
    """A codec's blocks in words of a width."""

    mantissa_bits: int
    lanes: int
    words: int
    """Words of float32 in a block."""
    nbytes: int
    """Bytes of the mantissas of one word of float32; those of a block's first word follow its exponent."""

    @classmethod
    def of(cls, codec: Bfp, width: int) -> BfpLayout:
        """Return the layout. Raises ``SpecError`` if a block is not a whole number of words."""
        lanes = width // LANE_BITS
        if codec.block % lanes:
            raise SpecError(
                f"hardware of {width} bits: expected a block of a multiple of {lanes} values, got "
                f"{str(codec)!r}; choose another block, or a width of 256"
            )
        nbytes = lanes * (codec.mantissa_bits + 1) // 8
        return cls(codec.mantissa_bits, lanes, codec.block // lanes, nbytes)


# The format of ``inceptionn``.

GROUP_LANES = 8
"""The values whose tags stand together; the format calls them a burst."""
GROUP_NBYTES = 2 + 4 * GROUP_LANES
"""The largest group: its tags, and eight raw floats."""


class Classes(NamedTuple):
    """The borders between the classes, as biased exponents."""

    first: int
    """The smallest exponent that costs 8 bits."""
    second: int
    """The smallest exponent that costs 16 bits."""
    base: int
    """The exponent of which the 8 bits are a fraction."""

    @classmethod
    def of(cls, codec: Inceptionn) -> Classes:
        """Return the classes of a codec, from the parameters that its compiled kernels take."""
        _, (first, bounded) = codec.compiled
        second = first + (127 - first + 1) // 2
        return cls(first, second, second if bounded else 127)
