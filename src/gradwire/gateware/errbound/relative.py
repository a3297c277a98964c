"""What waits in front of a compressor with relative bounds: words, until their block's bound is known."""

from __future__ import annotations

from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.codecs import ErrBound
from gradwire.errors import SpecError
from gradwire.gateware.errbound import squares
from gradwire.gateware.errbound.share import Least, exponent_of, normal_count
from gradwire.gateware.queues import Queue
from gradwire.gateware.stream import Pipeline, count_kept
from gradwire.gateware.words import LANE_BITS

_BOUNDS = 16
"""The bounds that can wait."""
_LATENCY = squares.LATENCY + squares.FOLD_LATENCY + 4
"""Cycles from a block's last word to its bound in front of the memory."""
_MARGIN = 6
"""Cycles through the memories, at most."""
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


def waiting(m: Module, codec: ErrBound, come: Any, takes: Value, chunk_words: int) -> Word:
    """Return the words of a stream, which leave in the cycles of ``takes``."""
    lanes_count = len(come.tdata) // LANE_BITS
    words = chunk_words if codec.block is None else min(chunk_words, codec.block // lanes_count)
    depth = words + _LATENCY + _MARGIN
    fields = {"word": len(come.tdata), "marks": 3 + lanes_count.bit_length()}
    values = Queue(m, "blocks", fields, depth, depth - 1)
    bounds = Queue(m, "bounds", {"bound": 8}, _BOUNDS, _BOUNDS // 2 - 1)

    index, word = Signal(range(max(2, words))), Signal(range(max(2, chunk_words)))
    rests = Signal(range(squares.FOLD_CYCLES))
    opens, moves = index == 0, come.tvalid & come.tready
    ends = come.tlast | (word == chunk_words - 1)
    closes = ends | (index == words - 1)
    has_bound = Const(1, 1) if codec.block is None else come.tkeep[0]
    m.d.comb += come.tready.eq(values.has_room & bounds.has_room & ((rests == 0) | ~closes))
    with m.If(moves):
        m.d.sync += [index.eq(Mux(closes, 0, index + 1)), word.eq(Mux(ends, 0, word + 1))]
    with m.If(moves & closes):
        m.d.sync += rests.eq(squares.FOLD_CYCLES - 1)
    with m.Elif(rests != 0):
        m.d.sync += rests.eq(rests - 1)

    keep = Signal(lanes_count)
    m.d.comb += keep.eq(come.tkeep[:: LANE_BITS // 8])
    kept = Signal.like(come.tdata)
    m.d.comb += kept.eq(come.tdata & Cat(bit.replicate(LANE_BITS) for bit in keep))
    lanes = [kept.word_select(at, LANE_BITS) for at in range(lanes_count)]
    marks = Cat(opens & has_bound, closes & has_bound, ends, count_kept(keep))
    values.put(moves, word=kept, marks=marks)
    finite = sum((keep[at] & ~lane[23:31].all() for at, lane in enumerate(lanes)), Const(0, 1))
    found, total, count = squares.summed(m, lanes, finite, moves & has_bound, opens, closes)
    stage, least = Pipeline(m, Const(1)), Least.of(codec)
    wanted, shift = normal_count(stage, count, least)
    found = stage.hold(stage.hold(found, resets=True), resets=True)
    bounds.put(found, bound=exponent_of(stage, total, wanted, shift, least))

    marks = values.first.marks
    bound = Signal(8)
    current = Mux(marks[0], bounds.first.bound, bound)
    valid = values.has & (~marks[0] | bounds.has)
    leaves = takes & valid
    m.d.comb += [values.takes.eq(leaves), bounds.takes.eq(leaves & marks[0])]
    with m.If(leaves):
        m.d.sync += bound.eq(current)
    return Word(values.first.word, marks[3:], marks[2], marks[1], current, valid)
