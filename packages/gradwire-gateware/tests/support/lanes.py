"""Blocks as the lanes of a wide stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth import Module
from amaranth.lib import wiring

from gradwire_gateware.lanes import Collector, Distributor


def side_by_side(m: Module, blocks: Sequence[Any], width: int, chunk_words: int) -> tuple[Any, Any]:
    """Return the wide streams into and out of blocks, of which each has every ``len(blocks)``-th packet."""
    distributor = Distributor(width, lanes=len(blocks), chunk_words=chunk_words)
    collector = Collector(width, lanes=len(blocks), chunk_words=chunk_words)
    m.submodules += [distributor, collector]
    for lane, block in enumerate(blocks):
        wiring.connect(m, distributor.lane[lane], block.s_axis)
        wiring.connect(m, block.m_axis, collector.lane[lane])
    return distributor.s_axis, collector.m_axis
