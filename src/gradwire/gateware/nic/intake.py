"""The entrance of a card: frames wait in a memory, and come once more for those who need them now."""

from __future__ import annotations

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gradwire.gateware.nic.head import HEAD, HeadReader
from gradwire.gateware.queues import open_memory
from gradwire.gateware.stream import AxiStream, copy, stream

_READ_AHEAD = 16


class Intake(wiring.Component):
    """Gives every frame twice, at ``kept`` and at ``read``, and its ``head`` in the cycle of ``found``.

    Frames are taken while ``has_room`` is high. ``kept`` holds ``depth`` words.
    """

    def __init__(self, width: int, tos: int, mtu: int, depth: int) -> None:
        self._reader, self._depth = HeadReader(width, tos, mtu), depth
        super().__init__(
            {
                "s_axis": In(AxiStream(width)),
                "kept": Out(AxiStream(width)),
                "read": Out(AxiStream(width)),
                "has_room": In(1),
                "head": Out(HEAD),
                "found": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        m.submodules.reader = reader = self._reader
        come = self.s_axis
        rooms: list[Value] = [self.has_room]
        entering = stream(len(come.tdata))
        for name, depth, out in (("frames", self._depth, self.kept), ("ahead", _READ_AHEAD, self.read)):
            leaving, has_room = open_memory(m, name, entering, depth)
            wiring.connect(m, leaving, wiring.flipped(out))
            rooms.append(has_room)
        is_taken = Signal(init=1)
        m.d.sync += is_taken.eq(Cat(rooms).all())  # one more word may come until it falls
        m.d.comb += [copy(entering, come), entering.tvalid.eq(come.tvalid & is_taken)]
        m.d.comb += [
            come.tready.eq(is_taken),
            *(getattr(reader, name).eq(getattr(come, f"t{name}")) for name in ("data", "keep", "last")),
            reader.moves.eq(come.tvalid & is_taken),
            self.head.eq(reader.head),
            self.found.eq(reader.found),
        ]
        return m
