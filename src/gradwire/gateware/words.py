"""The words of a stream, for those that describe no hardware."""

from __future__ import annotations

WIDTHS = (256, 512)
"""The widths of a word that blocks can have, in bits."""
LANE_BITS = 32
"""A lane is one float32 of a word."""
