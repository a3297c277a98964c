"""What waits in front of a compressor with relative bounds: words, until their block's bound is known."""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.codecs import ErrBound
from gradwire.errors import SpecError
from gradwire.gateware.errbound.bracket import bracketed, latency
from gradwire.gateware.errbound.rewinding import RewindingQueue
from gradwire.gateware.errbound.share import Least, exponent_of, normal_count
from gradwire.gateware.errbound.squares import Double, summed
from gradwire.gateware.lut_fifo import LutFIFO
from gradwire.gateware.queues import Queue
from gradwire.gateware.stream import Pipeline, count_kept
from gradwire.gateware.words import LANE_BITS

_BOUNDS = 32
"""The bounds that can wait."""
_TO_BOUND = 6
"""Cycles from the lower limit of a block's sum to its bound in front of the memory."""
_MARGIN = 6
"""Cycles through the memories, at most."""
_FEW = 4
"""The words between the memory and its consumer."""
ON_THEIR_WAY = _FEW + 1
"""Those, and the one in a register behind them."""
_MOST_VALUES = 65536
"""The CPU adds the sums of larger blocks in another order."""


class Word(NamedTuple):
    """The next word that waits, and the bound of its block, while ``valid`` is high."""

    lanes: Value
    count: Value
    ends: Value
    """Whether the chunk does."""
    needs_bound: Value
    """Whether a bound is to be sent with it: it is the last word of a block."""
    bound: Value
    valid: Value


def check(codec: ErrBound, values: int) -> None:
    """Raise ``SpecError`` if values that share a bound are more than the CPU adds up at once."""
    if codec.block is None and values > _MOST_VALUES:
        raise SpecError(
            f"the compressor of {codec} wants chunks of at most {_MOST_VALUES} values, because they share a "
            f"bound, but got {values}; choose fewer chunk_words, or a block"
        )


def waiting(m: Module, codec: ErrBound, come: Any, may_leave: Value, takes: Value, chunk_words: int) -> Word:
    """Return the words of a stream, which leave in the cycles of ``takes``.

    While ``may_leave`` is low, no more come than ``ON_THEIR_WAY``.
    """
    lanes_count, least = len(come.tdata) // LANE_BITS, Least.of(codec)
    words = chunk_words if codec.block is None else min(chunk_words, codec.block // lanes_count)
    depth = words + latency(lanes_count) + _TO_BOUND + _MARGIN
    fields = {"word": len(come.tdata), "marks": 3 + lanes_count.bit_length()}
    values = RewindingQueue(m, "blocks", fields, depth, depth - 1)

    index, word = Signal(range(max(2, words))), Signal(range(max(2, chunk_words)))
    rests, has_room = Signal(), Signal()
    opens, moves = index == 0, come.tvalid & come.tready
    is_full, is_whole = Signal(init=chunk_words == 1), Signal(init=words == 1)  # the chunk, the block
    ends = come.tlast | is_full
    closes = ends | is_whole
    has_bound = Const(1, 1) if codec.block is None else come.tkeep[0]
    m.d.comb += come.tready.eq(has_room & (~rests | ~closes))
    m.d.sync += rests.eq(moves & closes)
    with m.If(moves):
        m.d.sync += [
            index.eq(Mux(closes, 0, index + 1)),
            word.eq(Mux(ends, 0, word + 1)),
            is_whole.eq(Mux(closes, words == 1, index == words - 2)),
            is_full.eq(Mux(ends, chunk_words == 1, word == chunk_words - 2)),
        ]

    keep = Signal(lanes_count)
    m.d.comb += keep.eq(come.tkeep[:: LANE_BITS // 8])
    kept = Signal.like(come.tdata)
    m.d.comb += kept.eq(come.tdata & Cat(bit.replicate(LANE_BITS) for bit in keep))
    marks = Cat(opens & has_bound, closes & has_bound, ends, count_kept(keep))
    values.put(moves, word=kept, marks=marks)
    lanes = [kept.word_select(at, LANE_BITS) for at in range(lanes_count)]
    found, limit, count = bracketed(m, lanes, keep, moves & has_bound, opens, closes)
    bounds = _bounds(m, found, limit, count, least)
    m.d.comb += has_room.eq(values.has_room & bounds.has_room)
    return _leaving(m, values, bounds, least, may_leave, takes)


def _bounds(m: Module, found: Value, limit: Double, count: Value, least: Least) -> Queue:
    """Return the queue of the lower bounds of blocks, which ``is_near`` the border to the next one or not.

    The ``limit`` is the lower one in the cycle in which it is ``found``, then the upper one. What a sum is
    compared with stays with the bound.
    """
    stage = Pipeline(m, Const(1))
    wanted, shift = normal_count(stage, count, least)
    bound = exponent_of(stage, limit, wanted, shift, least)
    low = stage.hold(bound)
    wanted, shift = stage.hold(stage.hold(wanted)), stage.hold(stage.hold(shift))
    fields = {"bound": len(bound), "is_near": 1, "wanted": len(wanted), "shift": len(shift)}
    bounds = Queue(m, "bounds", fields, _BOUNDS, _BOUNDS // 2)
    for _ in range(3):
        found = stage.hold(found, resets=True)
    bounds.put(found, bound=low, is_near=low != bound, wanted=wanted, shift=shift)
    return bounds


def _leaving(
    m: Module, values: RewindingQueue, bounds: Queue, least: Least, may_leave: Value, takes: Value
) -> Word:
    """Return the words of blocks whose bounds are known.

    If a block's bound ``is_near``, its squares are added up one by one, in the CPU's order, before its words
    are read again. A few words wait in LUT RAM and a register, so that their consumer, which stops many
    registers, doesn't also have to stop the memory in the same cycle.
    """
    stage, marks = Pipeline(m, Const(1)), values.first.marks
    opens, closes, near = marks[0], marks[1], bounds.first
    adds_up, is_added, exact, bound = Signal(), Signal(), Signal(8), Signal(8)
    is_taken = Signal()  # the bound, which leaves a cycle later, because it takes long
    has_bound = bounds.has & ~is_taken
    is_open = values.has & (~opens | (has_bound & (~near.is_near | is_added)))
    begins = values.has & opens & has_bound & near.is_near & ~adds_up & ~is_added
    adder_takes, found, total = summed(m, values.first.word, closes, begins)
    exact_bound = exponent_of(stage, total, near.wanted, near.shift, least)
    found = stage.hold(stage.hold(found, resets=True), resets=True)
    with m.If(begins):
        m.d.sync += adds_up.eq(1)
    with m.If(found):
        m.d.sync += [adds_up.eq(0), is_added.eq(1), exact.eq(exact_bound)]

    current = Mux(opens, Mux(is_added, exact, near.bound), bound)
    fields = Cat(current, marks[1:], values.first.word)
    m.submodules.leaving = few = LutFIFO(width=len(fields), depth=_FEW)
    has_place = stage.hold(may_leave & (few.level < _FEW - 2), resets=True)  # two more are on their way
    leaves = is_open & has_place & ~adds_up
    m.d.comb += [
        few.w_data.eq(stage.hold(fields)),
        few.w_en.eq(stage.hold(leaves, resets=True)),
        few.r_en.eq(takes),
        values.takes.eq(leaves | adder_takes),
        values.frees.eq(leaves),
        values.rewinds.eq(found),
        bounds.takes.eq(is_taken),
    ]
    m.d.sync += is_taken.eq(leaves & opens)
    with m.If(leaves):
        m.d.sync += [bound.eq(current), is_added.eq(0)]
    out = Pipeline(m, takes)
    has, word = out.hold(few.r_rdy, resets=True), out.hold(few.r_data)
    marks = word[len(bound) : -len(values.first.word)]
    return Word(word[-len(values.first.word) :], marks[2:], marks[1], marks[0], word[: len(bound)], has)
