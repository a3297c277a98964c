"""The input of a NIC: frames wait in a memory, and a second stream passes them on at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from gradwire_gateware.nic.packets import (
    COMPRESSED,
    DSCP,
    ETHERNET_NBYTES,
    FIXED_NBYTES,
    IP_NBYTES,
    MOST_HEADERS,
    TCP,
    UNUSUAL_FLAGS,
    big,
)
from gradwire_gateware.queues import Queue, open_memory
from gradwire_gateware.sections import Trim
from gradwire_gateware.stream import AxiStream, Circuit, Pipeline, copy, stream, watch

# The fields of a frame that a NIC needs before its payload: one record for every frame.

HEAD = data.StructLayout(
    {
        "fits": 1,  # an unfragmented IPv4 packet without options, with a TCP header, within the MTU
        "is_data": 1,  # a packet of a marked TCP stream without SYN, RST, and URG
        "claims": 1,  # a marked compressed packet, if it fits
        "is_sound": 1,  # the IP checksum is correct
        "is_single": 1,  # TCP's checksum is 0: a compressed packet of a single segment
        "headers": 7,  # bytes of all headers
        "end": 16,  # bytes of the frame, without padding by an interface
        "payload": 16,  # bytes after the headers
        "source": 32,
        "destination": 32,
        "ports": 32,
        "sequence": 2,
        "sum": 19,  # sum of the IP header's 16-bit words, without length, protocol, and checksum
    }
)


class HeadReader(Circuit):
    """A monitor of frames that outputs ``head`` in the cycle of ``found``, once per frame.

    A word is read in a cycle in which ``moves`` is high. The four stages are: the bytes of the headers;
    fields and sums of pairs; comparisons; and combinations of comparisons.
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

    def _describe(self, m: Module) -> None:
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
            with m.If(index == 0):  # in every cycle, because ``moves`` is known late
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
        reaches_tcp, found = stage.hold(has_all & seen[FIXED_NBYTES - 1]), stage.hold(found, resets=True)
        m.d.comb += self.head.eq(self._fields(stage, held, reaches_ip, reaches_tcp))
        m.d.comb += self.found.eq(stage.delay(found, self.LATENCY - 1, resets=True))

    def _fields(self, stage: Pipeline, held: Value, reaches_ip: Value, reaches_tcp: Value) -> Value:
        """Return the ``HEAD`` record, three stages after the bytes."""
        ip = held[8 * ETHERNET_NBYTES :]
        tcp = ip[8 * IP_NBYTES :]
        halves = [ip.word_select(at, 16) for at in range(IP_NBYTES // 2)]
        protocol = ip.word_select(9, 8)
        length, tcp_words = big(ip, 2, 2), tcp[100:104]
        flags = tcp.word_select(13, 8)

        is_ipv4 = stage.hold(reaches_ip & (big(held, 12, 2) == 0x0800) & (ip[4:8] == 4))
        is_plain = stage.hold(reaches_tcp & (ip[:4] == IP_NBYTES // 4) & ((big(ip, 6, 2) & 0x3FFF) == 0))
        is_marked = stage.hold((ip.word_select(1, 8) & DSCP) == self._dscp)
        is_tcp = stage.hold(protocol == TCP)
        is_compressed = stage.hold(protocol == COMPRESSED)
        is_usual = stage.hold((flags & UNUSUAL_FLAGS) == 0)
        has_words = stage.hold(tcp_words >= 5)
        is_single = stage.hold(tcp.word_select(8, 16) == 0)
        headers = stage.hold((ETHERNET_NBYTES + IP_NBYTES + (tcp_words << 2))[:7])
        end = stage.hold((length + ETHERNET_NBYTES)[:17])
        others = ((halves[0], halves[2]), (halves[3], halves[4][:8]), (halves[6], halves[7]), halves[8:])
        pairs = [stage.hold(one + other) for one, other in others]
        checked = stage.hold(halves[1] + halves[5] + Cat(Const(0, 8), protocol))
        key = stage.hold(Cat(ip[96:128], ip[128:160], tcp[:32], tcp[56:58]))

        claims = stage.hold(is_ipv4 & is_compressed & is_marked)
        is_data = stage.hold(is_ipv4 & is_tcp & is_marked & is_usual)
        is_header = stage.hold(is_ipv4 & is_plain & has_words)
        is_short, is_single = stage.hold(end <= self._most), stage.hold(is_single)
        payload = stage.hold((end - headers)[:18])  # negative if the length is too small
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


class Intake(Circuit):
    """A duplicator of frames to the streams ``kept`` and ``read``, with ``head`` in the cycle of ``found``.

    Frames are accepted while ``has_room`` is high. The memory of ``kept`` has ``depth`` words.
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

    def _describe(self, m: Module) -> None:
        m.submodules.reader = reader = self._reader
        come = self.s_axis
        rooms: list[Value] = [self.has_room]
        entering = stream(len(come.tdata))
        for name, depth, out in (("frames", self._depth, self.kept), ("ahead", _READ_AHEAD, self.read)):
            leaving, has_room = open_memory(m, name, entering, depth)
            wiring.connect(m, leaving, wiring.flipped(out))
            rooms.append(has_room)
        is_taken = Signal(init=1)
        m.d.sync += is_taken.eq(Cat(rooms).all())  # one more word may arrive before the register is updated
        m.d.comb += [
            copy(entering, come),
            entering.tvalid.eq(come.tvalid & is_taken),
            come.tready.eq(is_taken),
            *watch(reader, come, come.tvalid & is_taken),
            self.head.eq(reader.head),
            self.found.eq(reader.found),
        ]


# The payloads of wanted frames, extracted from the intake's second stream.

_BETWEEN = 7
"""The depth in words of the memory between two parts of the NIC."""


def strip(
    m: Module, read: Any, starts: Queue, meter: Any, behind: Sequence[Queue]
) -> tuple[Any, Value, Value]:
    """Return the stream of payloads, the valid signal of a payload's first word, and that word.

    For each frame, ``starts`` says whether its payload is wanted, and at which position the payload starts.
    ``meter`` reads the wanted frames. A frame waits until all queues ``behind`` have room for its results.
    """
    m.submodules.strip = trim = Trim(len(read.tdata), MOST_HEADERS)
    stripped, may_strip = between(m, "stripped", trim.m_axis)
    start, within = starts.first, Signal()
    wiring.connect(m, read, trim.s_axis)
    m.d.comb += [
        trim.told.eq(_all_of(starts.has, behind, may_strip)),
        trim.wanted.eq(start.wanted),
        trim.skip.eq(start.headers),
        trim.nbytes.eq(start.payload),
        starts.takes.eq(trim.takes_last),
        *watch(meter, read, read.tvalid & read.tready & start.wanted),
        meter.end.eq(start.end),
        meter.headers.eq(start.headers),
    ]
    with m.If(trim.m_axis.tvalid):
        m.d.sync += within.eq(~trim.m_axis.tlast)
    return stripped, trim.m_axis.tvalid & ~within, trim.m_axis.tdata


def align(m: Module, come: Any, cuts: Queue, most_skipped: int, behind: Sequence[Queue] = ()) -> Any:
    """Return a stream of the byte ranges in ``cuts``, one per payload, aligned to the start of a word."""
    m.submodules.align = trim = Trim(len(come.tdata), most_skipped)
    aligned, may_align = between(m, "aligned", trim.m_axis)
    wiring.connect(m, come, trim.s_axis)
    m.d.comb += [
        trim.told.eq(_all_of(cuts.has, behind, may_align)),
        trim.wanted.eq(1),
        trim.skip.eq(cuts.first.skip),
        trim.nbytes.eq(cuts.first.nbytes),
        cuts.takes.eq(trim.takes_last),
    ]
    return aligned


def between(m: Module, name: str, come: Any) -> tuple[Any, Signal]:
    """Return the output stream of a small memory between two parts, and the register ``has_room``."""
    return open_memory(m, name, come, _BETWEEN)


def _all_of(has: Value, behind: Sequence[Queue], has_room: Value) -> Value:
    """Return whether a record is valid and all queues for its results have room."""
    return reduce(Value.__and__, (*(queue.has_room for queue in behind), has_room), has)
