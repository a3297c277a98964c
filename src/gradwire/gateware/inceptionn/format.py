"""What the compressor and the decompressor of ``inceptionn`` must know of the format."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import Inceptionn

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
