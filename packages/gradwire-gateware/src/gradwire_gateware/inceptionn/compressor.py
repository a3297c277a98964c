"""The compressor of ``inceptionn``: groups of eight float32, classified, shortened, and packed."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring

from gradwire.codecs import Inceptionn
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import GROUP_LANES, GROUP_NBYTES, Classes
from gradwire_gateware.packer import Packer
from gradwire_gateware.stream import Circuit, Pipeline, block_ports, shift_left_bytes, spread_left_bytes

Piece = tuple[Value, Value]
"""The bytes of a payload and their number, with zeros after them."""


class InceptionnCompressor(Circuit):
    """A compressor from float32 to payloads of ``codec``, packet by packet.

    The stages are: the class and bits of each lane; three that join 2, 4, and 8 lanes; two that join two
    groups at 512 bits; and the ``Packer``. Words of raw floats, 34 bytes for 8, are accepted in 16 of 17
    cycles, and all other words in every cycle. ``masks`` is an option of ``Packer``.
    """

    def __init__(self, codec: Inceptionn, width: int = 256, *, masks: bool = False) -> None:
        self._classes, self._masks = Classes.of(codec), masks
        super().__init__(block_ports(width))

    def _describe(self, m: Module) -> None:
        come = self.s_axis
        groups = len(come.tdata) // LANE_BITS // GROUP_LANES
        most, are_wide = GROUP_NBYTES * groups, groups > 1
        m.submodules.packer = packer = Packer(len(come.tdata), most, are_wide=are_wide, masks=self._masks)
        stage = Pipeline(m, packer.ready)
        m.d.comb += come.tready.eq(packer.ready)

        valid = stage.hold(come.tvalid, resets=True)
        last = stage.hold(come.tlast)
        present = stage.hold(Cat(come.tkeep[4 * GROUP_LANES * group] for group in range(groups)))
        coded = [
            _code(m, self._classes, come.tdata.word_select(lane, LANE_BITS), come.tkeep[4 * lane])
            for lane in range(GROUP_LANES * groups)
        ]
        tags = stage.hold(Cat(tag for tag, _ in coded))
        pieces = [(stage.hold(bits), size_of(m, tags.word_select(i, 2))) for i, (_, bits) in enumerate(coded)]
        for _ in range(GROUP_LANES.bit_length() - 1):
            pieces = joined(stage, pieces)
            valid, last = stage.hold(valid, resets=True), stage.hold(last)
            tags, present = stage.hold(tags), stage.hold(present)
        pieces = [
            (Cat(tags.word_select(i, 2 * GROUP_LANES), bits), Mux(present[i], nbytes + 2, 0))
            for i, (bits, nbytes) in enumerate(pieces)
        ]
        if groups == 2:
            pieces = [_joined_far(m, stage, *pieces)]
            valid, last = stage.delay(valid, 2, resets=True), stage.delay(last, 2)
        m.d.comb += packer.take(*pieces[0], last, valid)
        wiring.connect(m, packer.m_axis, wiring.flipped(self.m_axis))


def _code(m: Module, classes: Classes, x: Value, is_kept: Value) -> Piece:
    """Return a float32's tag and its 0, 8, 16, or 32 bits, or the encoding of 0 if ``is_kept`` is low."""
    exponent = x[23:31]
    tag, bits = Signal(2), Signal(LANE_BITS)
    is_two = Signal()
    right = Signal(5)
    fraction = Signal(16)
    below_one = ~exponent[:5]  # 127 - exponent, without a carry
    m.d.comb += [
        is_two.eq(exponent >= classes.second),
        right.eq(below_one if classes.base == 127 else Mux(is_two, below_one, classes.base - exponent)),
        fraction.eq(Cat(x[8:23], Const(1, 1)) >> right),
    ]
    with m.If(is_kept & (exponent >= 127)):
        m.d.comb += [tag.eq(3), bits.eq(x)]
    with m.Elif(is_kept & is_two):
        m.d.comb += [tag.eq(2), bits.eq(Cat(fraction[:15], x[31]))]
    with m.Elif(is_kept & (exponent >= classes.first)):
        m.d.comb += [tag.eq(1), bits.eq(Cat(fraction[8:15], x[31]))]
    return tag, bits


def size_of(m: Module, tag: Value) -> Value:
    """Return the number of bytes of a tag's value."""
    size = Signal(3)
    m.d.comb += size.eq(Cat(tag == 1, tag == 2, tag == 3))
    return size


def joined(stage: Pipeline, pieces: list[Piece]) -> list[Piece]:
    """Return the registers of each pair of pieces, concatenated."""
    joined = []
    for (low, low_count), (high, high_count) in zip(pieces[::2], pieces[1::2], strict=True):
        both = low | shift_left_bytes(high, low_count, (len(low) + len(high)) // 8)
        joined.append((stage.hold(both), stage.hold(low_count + high_count)))
    return joined


def _joined_far(m: Module, stage: Pipeline, low: Piece, high: Piece) -> Piece:
    """Return the registers of two joined pieces, two stages later, because a size has a high fan-out."""
    low_bits, (low_count, copy) = stage.hold(low[0]), stage.hold_twice(low[1])
    high_bits, high_count = stage.hold(high[0]), stage.hold(high[1])
    both = low_bits | spread_left_bytes(m, high_bits, (low_count, copy), 2 * GROUP_NBYTES)
    return stage.hold(both), stage.hold(low_count + high_count)
