"""What the compressor and the decompressor of ``quantize`` must know of the format."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import Quantize
from gradwire.gateware.words import LANE_BITS

SCALE_NBYTES = 4
"""A scale is a float32."""


class Layout(NamedTuple):
    """A codec's chunks in words of a width."""

    bits: int
    """Of a code."""
    block: int
    lanes: int
    chunk_words: int
    """Words of float32 in the largest chunk."""

    @classmethod
    def of(cls, codec: Quantize, width: int, chunk_words: int) -> Layout:
        """Return the layout; every block is a whole number of words."""
        return cls(codec.bits, codec.block, width // LANE_BITS, chunk_words)

    @property
    def words(self) -> int:
        """Words of float32 in the largest block of a chunk."""
        return min(self.block // self.lanes, self.chunk_words)

    @property
    def most_values(self) -> int:
        """The values of the largest chunk."""
        return self.chunk_words * self.lanes

    @property
    def nbytes(self) -> int:
        """Bytes of the codes of a word of float32."""
        return self.lanes * self.bits // 8

    @property
    def most_scales_nbytes(self) -> int:
        """Bytes of the scales of the largest chunk."""
        return SCALE_NBYTES * -(-self.most_values // self.block)

    @property
    def most_codes_nbytes(self) -> int:
        """Bytes of the codes of the largest chunk."""
        return self.chunk_words * self.nbytes

    def words_of(self, nbytes: int) -> int:
        """Return the words that some bytes fill."""
        return -(-nbytes * 8 // (self.lanes * LANE_BITS))
