"""A queue in LUT RAM that writes its next place in every cycle."""

from __future__ import annotations

from amaranth import Module, Signal
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory

_PLACES = 16
"""The words of a LUT RAM. Fewer take as much room."""


class LutFIFO(SyncFIFO):
    """A ``SyncFIFO`` whose writes wait for nothing, because a wide LUT RAM is all over the chip.

    Whether a word comes, and has room, moves the address alone, which is near its producer. Until then, the
    place that it would take is written in every cycle; that place is free as long as there are more places
    than words, which holds unless ``depth`` is a power of two of 16 or more.
    """

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit. The memory has a power of two of places, so that addresses wrap."""
        m = Module()
        places = max(_PLACES, 1 << (self.depth - 1).bit_length())
        m.submodules.storage = storage = Memory(shape=self.width, depth=places, init=[])
        write, read = storage.write_port(), storage.read_port(domain="comb")
        writes, reads = Signal(), Signal()
        m.d.comb += [
            self.w_rdy.eq(self.level != self.depth),
            self.r_rdy.eq(self.level != 0),
            self.w_level.eq(self.level),
            self.r_level.eq(self.level),
            writes.eq(self.w_rdy & self.w_en),
            reads.eq(self.r_rdy & self.r_en),
            write.data.eq(self.w_data),
            write.en.eq(1 if self.depth < places else writes),
            self.r_data.eq(read.data),
        ]
        m.d.sync += [write.addr.eq(write.addr + writes), read.addr.eq(read.addr + reads)]
        with m.If(writes & ~reads):
            m.d.sync += self.level.eq(self.level + 1)
        with m.If(~writes & reads):
            m.d.sync += self.level.eq(self.level - 1)
        return m
