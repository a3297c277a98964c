"""A queue in block RAM that knows a cycle ahead whether it has a word, and room for one."""

from __future__ import annotations

from amaranth import Module, Mux, Signal, Value
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory


class BlockFIFO(SyncFIFOBuffered):
    """A ``SyncFIFOBuffered``, cycle by cycle, of two words and more, whose answers come from registers.

    The block RAMs of a wide queue are all over the chip, and its producer may be far away, too: comparing the
    level in front of the wires to them takes too long.
    """

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit: words in a memory, and the first one in its output register."""
        m = Module()
        places = self.depth - 1
        m.submodules.storage = storage = Memory(shape=self.width, depth=places, init=[])
        write, read = storage.write_port(), storage.read_port(domain="sync")
        held, has_word, has_room = Signal(range(places + 1)), Signal(), Signal(init=1)
        writes, reads = Signal(), Signal()
        m.d.comb += [
            self.w_rdy.eq(has_room),
            self.level.eq(held + self.r_rdy),
            self.w_level.eq(self.level),
            self.r_level.eq(self.level),
            writes.eq(has_room & self.w_en),
            reads.eq(has_word & (~self.r_rdy | self.r_en)),
            write.data.eq(self.w_data),
            write.en.eq(writes),
            read.en.eq(reads),
            self.r_data.eq(read.data),
        ]
        m.d.sync += [
            held.eq(held + writes - reads),
            has_word.eq(writes | (held > 1) | ((held == 1) & ~reads)),
            has_room.eq(reads | (held < places - 1) | ((held == places - 1) & ~writes)),
            self.r_rdy.eq(reads | (self.r_rdy & ~self.r_en)),
        ]
        with m.If(writes):
            m.d.sync += write.addr.eq(_next(write.addr, places))
        with m.If(reads):
            m.d.sync += read.addr.eq(_next(read.addr, places))
        return m


def _next(address: Value, places: int) -> Value:
    return Mux(address == places - 1, 0, address + 1)[: len(address)]
