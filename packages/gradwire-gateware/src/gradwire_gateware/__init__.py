"""The codecs and the ring all-reduce as hardware, described in Amaranth.

Every block reads and writes AXI streams (``stream``), produces the same bytes as the native codecs, and moves
a word in every cycle. Modules are imported on first use, because Amaranth belongs to the extra ``gateware``.
"""

from __future__ import annotations

# Sizes of a stream's words, for modules that don't import Amaranth.

WIDTHS = (256, 512)
"""The word widths of blocks, in bits."""
LANE_BITS = 32
"""The number of bits of a lane, which is one float32 of a word."""
