"""The entrance of a card: frames wait in a memory, and come once more for those who need them now."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from gradwire_gateware.nic.packets import (
    COMPRESSED,
    DSCP,
    ETHERNET_NBYTES,
    FIXED_NBYTES,
    IP_NBYTES,
    TCP,
    UNUSUAL_FLAGS,
    big,
)
from gradwire_gateware.queues import open_memory
from gradwire_gateware.stream import AxiStream, Pipeline, copy, stream

# What a card must know of a frame before it handles its payload: one record for every frame.

HEAD = data.StructLayout(
    {
        "fits": 1,  # a whole IPv4 packet without options, with a TCP header, and not above the MTU
        "is_data": 1,  # of a marked TCP stream, but not of its beginning, reset or urgent
        "claims": 1,  # a marked compressed packet, if it fits
        "is_sound": 1,  # the checksum of IP is right
        "is_single": 1,  # TCP's checksum is 0: a compressed packet that stands for one segment only
        "headers": 7,  # bytes of all headers
        "end": 16,  # bytes of the frame, without what an interface has appended
        "payload": 16,  # bytes after the headers
        "source": 32,
        "destination": 32,
        "ports": 32,
        "sequence": 2,
        "sum": 19,  # of the halves of the IP header, without length, protocol and checksum
    }
)


class HeadReader(wiring.Component):
    """A watch on the words of frames, with ``head`` in the cycle of ``found``, once for every frame.

    A word is watched in a cycle in which ``moves`` is high. Four stages: the bytes of the headers; fields and
    sums of pairs; comparisons; what depends on several of them.
    """

    LATENCY = 4

    def __init__(self, width: int, tos: int, mtu: int) -> None:
        self._dscp, self._most = tos & DSCP, ETHERNET_NBYTES + mtu
        super().__init__(
            {
                "data": In(width),
                "keep": In(width // 8),
                "last": In(1),
                "moves": In(1),
                "head": Out(HEAD),
                "found": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:  # noqa: ARG002 - Amaranth's interface
        """Return the circuit."""
        m = Module()
        stage = Pipeline(m, Const(1))
        size = len(self.keep)
        before = -(-FIXED_NBYTES // size) - 1
        words, seen = self.data, self.keep
        has_all: Value = Const(1, 1)
        found = Signal()
        if before:
            index, first = Signal(range(3)), Signal(len(self.data), reset_less=True)
            with m.If(self.moves):
                m.d.sync += index.eq(Mux(self.last, 0, Mux(index == 2, 2, index + 1)))
            with m.If(index == 0):  # until one moves, which is known late
                m.d.sync += first.eq(self.data)
            words, seen = Cat(first, self.data), Cat(Const(-1, size), self.keep)
            has_all = index == 1
            m.d.comb += found.eq(self.moves & ((index == 1) | ((index == 0) & self.last)))
        else:
            within = Signal()
            with m.If(self.moves):
                m.d.sync += within.eq(~self.last)
            m.d.comb += found.eq(self.moves & ~within)

        held = stage.hold(words[: 8 * FIXED_NBYTES])
        reaches_ip = stage.hold(has_all & seen[ETHERNET_NBYTES + IP_NBYTES - 1])
        reaches_tcp = stage.hold(has_all & seen[FIXED_NBYTES - 1])
        found = stage.hold(found, resets=True)
        m.d.comb += self.head.eq(self._fields(stage, held, reaches_ip, reaches_tcp))
        for _ in range(self.LATENCY - 1):
            found = stage.hold(found, resets=True)
        m.d.comb += self.found.eq(found)
        return m

    def _fields(self, stage: Pipeline, held: Value, reaches_ip: Value, reaches_tcp: Value) -> Value:
        """Return the record, three stages after the bytes."""
        ip = held[8 * ETHERNET_NBYTES :]
        tcp = ip[8 * IP_NBYTES :]
        halves = [ip.word_select(at, 16) for at in range(IP_NBYTES // 2)]
        protocol = ip.word_select(9, 8)
        length, tcp_words = big(ip, 2, 2), tcp[100:104]
        flags = tcp.word_select(13, 8)

        is_ipv4 = stage.hold(reaches_ip & (big(held, 12, 2) == 0x0800) & (ip[4:8] == 4))
        is_plain = stage.hold(reaches_tcp & (ip[:4] == IP_NBYTES // 4) & ((big(ip, 6, 2) & 0x3FFF) == 0))
        is_marked = stage.hold((ip.word_select(1, 8) & DSCP) == self._dscp)
        is_tcp, is_compressed = stage.hold(protocol == TCP), stage.hold(protocol == COMPRESSED)
        is_usual = stage.hold((flags & UNUSUAL_FLAGS) == 0)
        has_words, is_single = stage.hold(tcp_words >= 5), stage.hold(tcp.word_select(8, 16) == 0)
        headers = stage.hold((ETHERNET_NBYTES + IP_NBYTES + (tcp_words << 2))[:7])
        end = stage.hold((length + ETHERNET_NBYTES)[:17])
        pairs = [
            halves[0] + halves[2],
            halves[3] + halves[4][:8],
            halves[6] + halves[7],
            halves[8] + halves[9],
        ]
        pairs = [stage.hold(pair) for pair in pairs]
        checked = stage.hold(halves[1] + halves[5] + Cat(Const(0, 8), protocol))
        key = stage.hold(Cat(ip[96:128], ip[128:160], tcp[:32], tcp[56:58]))

        claims = stage.hold(is_ipv4 & is_compressed & is_marked)
        is_data = stage.hold(is_ipv4 & is_tcp & is_marked & is_usual)
        is_header = stage.hold(is_ipv4 & is_plain & has_words)
        is_short, is_single = stage.hold(end <= self._most), stage.hold(is_single)
        payload = stage.hold((end - headers)[:18])  # negative where the length is too small
        headers, end = stage.hold(headers), stage.hold(end[:16])
        total = stage.hold((pairs[0] + pairs[1]) + (pairs[2] + pairs[3]))
        checked, key = stage.hold(checked), stage.hold(key)

        fits = is_header & is_short & ~payload[17]
        all_ = (total + checked)[:20]
        folded = all_[:16] + all_[16:]
        record = Cat(
            fits, is_data, claims, folded == 0xFFFF, is_single, headers, end, payload[:16], key, total[:19]
        )
        return stage.hold(record)


_READ_AHEAD = 16


class Intake(wiring.Component):
    """A splitter of every frame to ``kept`` and ``read``, with its ``head`` in the cycle of ``found``.

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
