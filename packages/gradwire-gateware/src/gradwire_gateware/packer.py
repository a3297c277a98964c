"""Packers of groups of bytes into the words of packets, without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from gradwire_gateware.stream import (
    AxiStream,
    Circuit,
    Pipeline,
    first_bytes,
    shift_left_bytes,
    spread_left_bytes,
)


class Packer(Circuit):
    """A packer of groups of 0 to ``most`` bytes, one per cycle, into full words and a partial last word.

    ``data`` must be 0 from byte ``count`` on. A group is transferred in a cycle in which ``valid`` and
    ``ready`` are high. The first stage shifts a group to its offset in the words, which depends only on
    earlier counts; the second stage collects the bytes of a word. A group may complete several words, which
    leave one by one.

    If all groups except a packet's last group are multiples of ``step`` bytes, a power of two, so are all
    offsets. If ``step`` equals ``most``, ``ready`` stays high while the consumer's ``ready`` is high.

    With ``come_far``, for distant sources, an extra first stage registers groups and their offsets, so that
    the shifter is near the words. With ``are_wide``, for control signals of high fan-out, two stages shift a
    group, by the low bits of its offset and then by the high bits, and control signals are duplicated
    registers, each for half of the bits. The two options exclude each other. With ``masks``, which
    ``are_wide`` implies, registers of shifted groups have no reset, because the reset's wire would be too
    long in a large block.
    """

    def __init__(
        self,
        width: int,
        most: int,
        step: int = 1,
        *,
        come_far: bool = False,
        are_wide: bool = False,
        masks: bool = False,
    ) -> None:
        self._most, self._step = most, step
        self._come_far, self._are_wide, self._masks = come_far, are_wide, masks
        super().__init__(
            {
                "data": In(8 * most),
                "count": In(range(most + 1)),
                "last": In(1),
                "valid": In(1),
                "ready": Out(1),
                "m_axis": Out(AxiStream(width)),
            }
        )

    def take(self, data: Value, count: Value, last: Value, valid: Value) -> list[Any]:
        """Return the statements that drive the packer's input with groups."""
        return [self.data.eq(data), self.count.eq(count), self.last.eq(last), self.valid.eq(valid)]

    def _describe(self, m: Module) -> None:
        out = self.m_axis
        size = len(out.tkeep)
        reach = size - self._step + self._most
        stage = Pipeline(m, self.ready)

        place = Signal(range(size // self._step))
        position = Cat(Const(0, self._step.bit_length() - 1), place)
        end = Signal(range(reach + 1))
        rest = end[: len(position)]
        full = end[len(position) :]
        follows = Mux(self.last, 0, rest[len(position) - len(place) :])
        m.d.comb += end.eq(position + self.count)
        with m.If(self.ready & self.valid):
            m.d.sync += place.eq(follows)
        data, last, valid = self.data, self.last, self.valid
        if self._come_far:
            data, last, valid = stage.hold(data), stage.hold(last), stage.hold(valid, resets=True)
            position, rest, full = stage.hold(position), stage.hold(rest), stage.hold(full)
        if self._are_wide:
            low = len(position) // 2
            places = Pipeline(m, self.ready & self.valid).hold_twice(follows, resets=True)
            fine = [Cat(Const(0, len(position) - len(place)), each)[:low] for each in places]
            coarse = [Cat(Const(0, low), each) for each in stage.hold_twice(position[low:])]
            data = stage.hold(spread_left_bytes(m, data, fine, self._most + 2**low - 1))
            last = stage.hold(last)
            valid, rest, full = stage.hold(valid, resets=True), stage.hold(rest), stage.hold(full)
            moved = stage.hold(spread_left_bytes(m, data, coarse, reach))
        else:
            moved = stage.hold(
                spread_left_bytes(m, data, (position, position), reach)
                if self._masks
                else shift_left_bytes(data, position, reach)
            )
        moved_full = stage.hold(Mux(valid, full, 0), resets=True)
        moved_closes = stage.hold(valid & last & ((rest != 0) | (full == 0)), resets=True)
        moved_rest, ends_full, moved_last = stage.hold_all(rest, (rest == 0) & (full != 0), last)
        moved_valid = stage.hold(valid, resets=True)

        left = Signal(range(reach // size + 2))
        held = Signal(8 * reach)
        held_keep = stage.hold(first_bytes(moved_rest, size) | ends_full.replicate(size))
        held_last = stage.hold(moved_last)
        is_final = left == 1
        kept = Signal.like(held)
        words = moved_full + moved_closes
        if self._are_wide:
            # Selection depends on ``left`` alone; the consumer's ready only enables the registers.
            collect = Pipeline(m, (left == 0) | out.tready)
            after = Mux(left <= 1, words, left - 1)
            goes = collect.hold_twice(after != 0, resets=True)
            comes = collect.hold_twice((after <= 1) & Mux(left <= 1, valid, moved_valid), resets=True)
            stays = _either(goes, held >> len(out.tdata), held)
            # While more than one word is left, no group arrives.
            joined = rests = kept | _either(comes, moved, Const(0, len(held)))
        else:
            stays = Mux((left != 0) & out.tready, held >> len(out.tdata), held)
            joined, rests = kept | Mux(moved_valid, moved, 0), kept
        m.d.comb += [
            self.ready.eq((left == 0) | (is_final & out.tready)),
            kept.eq(stays),
            out.tdata.eq(held),
            out.tkeep.eq(Mux(held_last & is_final, held_keep, 2**size - 1)),
            out.tlast.eq(held_last & is_final),
            out.tvalid.eq(left != 0),
        ]
        with m.If(self.ready):
            m.d.sync += [left.eq(words), held.eq(joined)]
        with m.Elif(out.tready):
            m.d.sync += [left.eq(left - 1), held.eq(rests)]


def _either(choices: tuple[Value, Value], yes: Value, no: Value) -> Value:
    """Return ``yes`` or ``no``, selected by two copies of a bit, each for half of the bits."""
    half = len(no) // 2
    return Cat(Mux(choices[0], yes[:half], no[:half]), Mux(choices[1], yes[half:], no[half:]))


# The maximum of the numbers of each block of words.


def peaks_latency(lanes: int) -> int:
    """Return the latency in cycles from a block's last word to its maximum."""
    return 1 + (lanes - 1).bit_length()


def find_peaks(
    m: Module, numbers: Sequence[Value], moves: Value, opens: Value, closes: Value
) -> tuple[Value, Value]:
    """Return the valid signal and the maximum of each block, from the first (``opens``) to the last word."""
    stage = Pipeline(m, Const(1))
    numbers = [stage.hold(number) for number in numbers]
    moves, opens, closes = stage.hold(moves, resets=True), stage.hold(opens), stage.hold(closes)
    while len(numbers) > 1:
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        numbers = [stage.hold(Mux(a > b, a, b)) for a, b in pairs]
        moves, opens, closes = stage.hold(moves, resets=True), stage.hold(opens), stage.hold(closes)
    peak, highest = Signal.like(numbers[0]), Signal.like(numbers[0])
    before = Mux(opens, 0, peak)
    m.d.comb += highest.eq(Mux(numbers[0] > before, numbers[0], before))
    with m.If(moves):
        m.d.sync += peak.eq(highest)
    return moves & closes, highest
