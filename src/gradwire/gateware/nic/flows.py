"""The connections of which a card compresses what its host sends; the host's driver writes them."""

from __future__ import annotations

from amaranth import Array, Cat, Const, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from gradwire.gateware.stream import Pipeline

KEY_BITS = 96
FLOW = data.StructLayout({"source": 32, "destination": 32, "ports": 32, "first": 2, "is_open": 1})
"""A connection: its addresses and ports as they stand in a packet that leaves, byte 0 in bits 7..0; the low
bits of the sequence number of the first byte; and whether it is one."""


class FlowTable(wiring.Component):
    """Looks connections up: two cycles after ``key``, ``is_open`` and ``first`` are those of its entry.

    In each cycle in which ``write`` is high, ``flow`` takes the place ``index``.
    """

    LATENCY = 2

    def __init__(self, flows: int) -> None:
        self._flows = flows
        super().__init__(
            {
                "write": In(1),
                "index": In(range(max(2, flows))),
                "flow": In(FLOW),
                "key": In(KEY_BITS),
                "is_open": Out(1),
                "first": Out(2),
            }
        )

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit: the key is compared with every connection at once."""
        m = Module()
        stage = Pipeline(m, Const(1))
        flows = [Signal(FLOW, name=f"flow{index}") for index in range(self._flows)]
        with m.If(self.write):
            m.d.sync += Array(flows)[self.index].eq(self.flow)
        parts = [
            stage.hold(
                Cat(
                    flow.is_open,
                    *(
                        self.key.word_select(at, 16) == flow.as_value()[:KEY_BITS].word_select(at, 16)
                        for at in range(KEY_BITS // 16)
                    ),
                )
            )
            for flow in flows
        ]
        hits = Cat(part.all() for part in parts)
        firsts = [flow.first & part.all().replicate(2) for flow, part in zip(flows, parts, strict=True)]
        first = firsts[0]
        for each in firsts[1:]:
            first = first | each
        m.d.comb += [self.is_open.eq(stage.hold(hits.any())), self.first.eq(stage.hold(first))]
        return m
