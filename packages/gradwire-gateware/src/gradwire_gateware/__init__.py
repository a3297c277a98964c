"""The codecs and the ring all-reduce as hardware, described in Amaranth; needs the extra ``gateware``.

Every block reads and writes AXI streams (``stream``), gives the bytes of the native codecs, and moves a word
in every cycle. Nothing here is imported before its first use, because Amaranth is an extra.
"""

from __future__ import annotations

# The words of a stream, for those that describe no hardware.

WIDTHS = (256, 512)
"""The widths of a word that blocks can have, in bits."""
LANE_BITS = 32
"""A lane is one float32 of a word."""
