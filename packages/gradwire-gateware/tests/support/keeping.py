"""Words that are kept between two streams."""

from __future__ import annotations

from amaranth import Module
from amaranth.lib import wiring

from gradwire_gateware.stream import block_ports, flat, kept_word


class Keeping(wiring.Component):  # type: ignore[misc]
    """Gives the words that come, in the cycle in which they come, or keeps one."""

    def __init__(self, width: int) -> None:
        super().__init__(block_ports(width))

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        m = Module()
        come, go = self.s_axis, self.m_axis
        is_here, word, may_come = kept_word(m, come.tvalid, flat(come), go.tready)
        m.d.comb += [flat(go).eq(word), go.tvalid.eq(is_here), come.tready.eq(may_come)]
        return m
