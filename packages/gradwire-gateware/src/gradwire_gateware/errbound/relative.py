"""The queue before a compressor with relative bounds: words wait until the bound of their block is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from amaranth import Cat, Const, Module, Mux, Signal, Value

from gradwire.codecs import ErrBound
from gradwire.errors import SpecError
from gradwire_gateware import LANE_BITS
from gradwire_gateware.errbound.share import (
    BIAS,
    COUNT_BITS,
    EXPONENT_BITS,
    SIGNIFICAND_BITS,
    Double,
    Least,
    exponent_of,
    normal_count,
    summed,
)
from gradwire_gateware.queues import Queue, RewindingQueue
from gradwire_gateware.stream import LutFIFO, Pipeline, count_kept, leading_zeros

# Integer bounds of the CPU's sum of a block's squares, independent of the order of additions.
#
# Only a significand's highest 18 bits are squared. Squares and their sum are truncated at a bit determined by
# the largest exponent so far, in steps of eight exponents. So only integers are added, and their sum has few
# possible shifts. If no bit is lost, both bounds equal the CPU's sum, which is then exact as well, because it
# has at most 53 bits.

_HALF_BITS = 18
"""The number of bits of a significand that are squared, which is the width of a multiplier."""
_LOW_BITS = 23 + 1 - _HALF_BITS
_TERM_BITS = 2 * _HALF_BITS
_SUM_BITS = _TERM_BITS + COUNT_BITS - 1
_STEP_BITS = 16
"""The number of bits of a square per base, which covers eight exponents."""
_MOST_FINE = _STEP_BITS - 2
_UNIT = 2 * (-127 - (_HALF_BITS - 1)) + _MOST_FINE
"""The power of two of a sum's lowest bit at base 0."""
_LEAST_BASE = 2
"""The smallest base, at which a subnormal's square is less than a sum's lowest bit."""
_TO_LIMITS = 5
"""The number of stages from a sum to its lower bound, and from a count to the compared value."""


def latency(lanes: int) -> int:
    """Return the latency in cycles from a block's last word to the lower bound of its sum."""
    return 6 + 2 * (lanes - 1).bit_length() + _TO_LIMITS


class _Lane(NamedTuple):
    significand: Value
    """The highest bits, with the hidden bit, or 0 if the float is subnormal or not finite."""
    exponent: Value
    is_inexact: Value

    @classmethod
    def of(cls, stage: Pipeline, x: Value) -> _Lane:
        """Return the registers of a float32's lane."""
        is_finite, is_normal = ~x[23:31].all(), x[23:31].any()
        return cls(
            stage.hold(Mux(is_finite & is_normal, Cat(x[_LOW_BITS:23], Const(1, 1)), 0)),
            stage.hold(Mux(is_finite, x[23:31], 0)),
            stage.hold(is_finite & (x[:_LOW_BITS].any() | (~is_normal & x[_LOW_BITS:23].any()))),
        )

    def held(self, stage: Pipeline) -> _Lane:
        """Return the registers of a lane, one stage later."""
        return _Lane(*(stage.hold(each) for each in self))


class _Marks(NamedTuple):
    """The control signals of a word."""

    moves: Value
    opens: Value
    closes: Value
    counted: Value

    def held(self, stage: Pipeline) -> _Marks:
        """Return the registers of the signals, one stage later."""
        return _Marks(stage.hold(self.moves, resets=True), *(stage.hold(each) for each in self[1:]))


def bracketed(
    m: Module, lanes: Sequence[Value], keep: Value, moves: Value, opens: Value, closes: Value
) -> tuple[Value, Double, Value]:
    """Return a valid signal, the bounds of a block's sum of squares, and its number of finite values.

    The lower bound comes in the valid cycle, the upper one cycle later, the number ``_TO_LIMITS`` earlier.
    ``opens`` and ``closes`` mark a block's words among those of ``moves``; closing words must not be
    consecutive. Lanes that aren't kept must be 0.
    """
    stage = Pipeline(m, Const(1))
    parts, marks = [_Lane.of(stage, x) for x in lanes], _Marks(moves, opens, closes, Const(0, 1))
    counts = [stage.hold(is_kept & ~x[23:31].all()) for is_kept, x in zip(keep, lanes, strict=True)]
    marks = marks.held(stage)._replace(counted=sum(counts, Const(0, 1)))
    bases = [part.exponent[3:] for part in parts]
    while len(bases) > 1:
        bases = [stage.hold(Mux(a > b, a, b)) for a, b in zip(bases[::2], bases[1::2], strict=True)]
        parts, marks = [part.held(stage) for part in parts], marks.held(stage)

    base, highest = Signal(len(bases[0])), Signal(len(bases[0]))
    before = Mux(marks.opens, _LEAST_BASE, base)
    m.d.comb += highest.eq(Mux(bases[0] > before, bases[0], before))
    with m.If(marks.moves):
        m.d.sync += base.eq(highest)
    rise = stage.hold((highest - before)[: len(base)])
    parts, marks = [part.held(stage) for part in parts], marks.held(stage)

    term_lost = [_term(stage, part, base) for part in parts]
    for _ in range(3):
        rise, base, marks = stage.hold(rise), stage.hold(base), marks.held(stage)
    terms, lost = [term for term, _ in term_lost], stage.hold(Cat(is_lost for _, is_lost in term_lost).any())
    while len(terms) > 1:
        terms = [stage.hold(a + b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
        rise, base, marks = stage.hold(rise), stage.hold(base), marks.held(stage)
    lost = stage.delay(lost, (len(lanes) - 1).bit_length() - 1)
    return _limits(stage, _Sum.of(m, terms[0], lost, rise, base, marks))


def _term(stage: Pipeline, part: _Lane, base: Value) -> tuple[Value, Value]:
    """Return the registers of a square in a base's units, three stages later, and whether bits were lost."""
    above = (base - part.exponent[3:])[: len(base)]
    product = stage.hold(part.significand * part.significand)
    coarse = stage.hold(Mux(above[2:].any(), 3, above[:2]))
    fine, lost = stage.hold_all(~part.exponent[:3], part.is_inexact)

    steps = range(0, _TERM_BITS, _STEP_BITS)
    falls = Cat(product[at : at + _STEP_BITS].any() & (coarse > index) for index, at in enumerate(steps))
    product = stage.hold((product >> Cat(Const(0, 4), coarse))[:_TERM_BITS])
    fine, lost = stage.hold(fine), stage.hold(lost | falls.any())

    exact = stage.hold(
        (Cat(Const(0, _MOST_FINE), product) >> Cat(Const(0, 1), fine))[: _TERM_BITS + _MOST_FINE]
    )
    return exact[_MOST_FINE:], stage.hold(lost) | exact[:_MOST_FINE].any()


class _Sum(NamedTuple):
    """The registers of a block's sum. All except the first two are stable for at least two cycles."""

    total: Value
    is_inexact: Value
    ended: Value
    base: Value
    count: Value

    @classmethod
    def of(cls, m: Module, word: Value, lost: Value, rise: Value, base: Value, marks: _Marks) -> _Sum:
        """Return the sum of words in units of ``base``, which the latest word has increased by ``rise``."""
        total, is_inexact, ended = Signal(_SUM_BITS), Signal(), Signal()
        steps = range(0, _SUM_BITS, _STEP_BITS)
        falls = Cat(total[at : at + _STEP_BITS].any() & (rise > index) for index, at in enumerate(steps))
        shifted = Mux(rise[2:].any(), 0, total >> Cat(Const(0, 4), rise[:2]))
        count, block_base, block_count = Signal(COUNT_BITS), Signal.like(base), Signal(COUNT_BITS)
        counted = Mux(marks.opens, 0, count) + marks.counted
        with m.If(marks.moves):
            m.d.sync += [
                total.eq(Mux(marks.opens, 0, shifted) + word),
                is_inexact.eq(lost | (~marks.opens & (is_inexact | falls.any()))),
                count.eq(counted),
            ]
        ends = marks.moves & marks.closes
        m.d.sync += ended.eq(ends)
        with m.If(ends):
            m.d.sync += [block_base.eq(base), block_count.eq(counted)]
        return cls(total, is_inexact, ended, block_base, block_count)


def _limits(stage: Pipeline, of: _Sum) -> tuple[Value, Double, Value]:
    """Return the valid signal, bounds, and number of finite values, as ``bracketed`` does.

    The CPU's sum of N squares is below the exact sum by a relative 2^-40 at most. The CPU's sum exceeds the
    truncated sum by at most a relative 2^-16 and 2^-40, and 2 N units, because each term and each shift loses
    less than one unit. So the lower bound is a relative 2^-32 and one unit below the truncated sum. The upper
    bound is a relative 2^-15 and 4 N units above the truncated sum.
    """
    total, bits = of.total, _SUM_BITS + 1
    less = Mux(of.is_inexact, ~Cat(total[32:], Const(0, bits - len(total[32:]))), 0)  # ~x is -x - 1
    low = stage.hold((total + less)[:bits])
    more = stage.hold(Mux(of.is_inexact, total[15:] + Cat(Const(0, 2), of.count), 0))
    high, first = stage.hold((stage.hold(total) + more)[:bits]), stage.hold(of.ended, resets=True)
    limit = stage.hold(Mux(first, Mux(low[-1], 0, low), high))
    zeros = stage.hold(leading_zeros(Cat(Const(0, 64 - bits), limit)))
    limit = stage.hold(limit)
    fine, limit = stage.hold(zeros[:3]), stage.hold((limit << Cat(Const(0, 3), zeros[3:]))[:bits])
    limit = stage.hold((limit << fine)[:bits])
    base = stage.delay(of.base, 3)
    exponent = stage.hold((Cat(Const(0, 4), base) + (BIAS + _UNIT) - zeros)[:EXPONENT_BITS])
    found = stage.delay(first, _TO_LIMITS - 1, resets=True)
    assert bits == SIGNIFICAND_BITS
    return found, Double(limit, stage.hold(exponent)), of.count


_BOUNDS = 32
"""The depth of the queue of bounds."""
_TO_BOUND = 6
"""The latency in cycles from the lower bound of a block's sum to the queue of bounds."""
_MARGIN = 6
"""The largest latency in cycles through the memories."""
_FEW = 4
"""The depth of the queue between the memory and its consumer."""
ON_THEIR_WAY = _FEW + 1
"""The number of words in the queue between memory and consumer, and in the register after the queue."""
_MOST_VALUES = 65536
"""The largest number of values in a block. In larger blocks, the CPU adds sums in a different order."""


class Word(NamedTuple):
    """The next queued word and its block's bound, which are valid while ``valid`` is high."""

    lanes: Value
    count: Value
    ends: Value
    """The signal that the chunk ends with this word."""
    needs_bound: Value
    """The signal that the bound is sent with this word, the last word of its block."""
    bound: Value
    valid: Value


def check(codec: ErrBound, values: int) -> None:
    """Raise ``SpecError`` if more values share a bound than the CPU adds in one block."""
    if codec.block is None and values > _MOST_VALUES:
        raise SpecError(
            f"{codec}: expected chunks of at most {_MOST_VALUES} values, got {values}; lower chunk_words, or "
            "add block= to the codec"
        )


def waiting(m: Module, codec: ErrBound, come: Any, may_leave: Value, takes: Value, chunk_words: int) -> Word:
    """Return words with bounds; if ``may_leave`` is low, at most ``ON_THEIR_WAY`` more words arrive."""
    lanes_count, least = len(come.tdata) // LANE_BITS, Least.of(codec)
    words = chunk_words if codec.block is None else min(chunk_words, codec.block // lanes_count)
    depth = words + latency(lanes_count) + _TO_BOUND + _MARGIN
    fields = {"word": len(come.tdata), "marks": 3 + lanes_count.bit_length()}
    values = RewindingQueue(m, "blocks", fields, depth, depth - 1)

    index, word = Signal(range(max(2, words))), Signal(range(max(2, chunk_words)))
    rests, has_room = Signal(), Signal()
    opens, moves = index == 0, come.tvalid & come.tready
    is_full, is_whole = Signal(init=chunk_words == 1), Signal(init=words == 1)  # chunk, or block, is full
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

    keep, kept = kept_lanes(m, come)
    marks = Cat(opens & has_bound, closes & has_bound, ends, count_kept(keep))
    values.put(moves, word=kept, marks=marks)
    lanes = [kept.word_select(at, LANE_BITS) for at in range(lanes_count)]
    found, limit, count = bracketed(m, lanes, keep, moves & has_bound, opens, closes)
    bounds = _bounds(m, found, limit, count, least)
    m.d.comb += has_room.eq(values.has_room & bounds.has_room)
    return _leaving(m, values, bounds, least, may_leave, takes)


def kept_lanes(m: Module, come: Any) -> tuple[Signal, Signal]:
    """Return the mask of a word's kept float32, and the word with all other float32 set to 0."""
    keep, kept = Signal(len(come.tdata) // LANE_BITS), Signal.like(come.tdata)
    m.d.comb += keep.eq(come.tkeep[:: LANE_BITS // 8])
    m.d.comb += kept.eq(come.tdata & Cat(bit.replicate(LANE_BITS) for bit in keep))
    return keep, kept


def _bounds(m: Module, found: Value, limit: Double, count: Value, least: Least) -> Queue:
    """Return the queue of blocks' bounds, and whether the sum's two bounds differ in effect (``is_near``).

    ``limit`` is the sum's lower bound in the cycle of ``found``, and its upper bound in the next.
    """
    stage = Pipeline(m, Const(1))
    wanted, shift = normal_count(stage, count, least)
    bound = exponent_of(stage, limit, wanted, shift, least)
    low = stage.hold(bound)
    wanted, shift = stage.delay(wanted, 2), stage.delay(shift, 2)
    fields = {"bound": len(bound), "is_near": 1, "wanted": len(wanted), "shift": len(shift)}
    bounds = Queue(m, "bounds", fields, _BOUNDS, _BOUNDS // 2)
    found = stage.delay(found, 3, resets=True)
    bounds.put(found, bound=low, is_near=low != bound, wanted=wanted, shift=shift)
    return bounds


def _leaving(
    m: Module, values: RewindingQueue, bounds: Queue, least: Least, may_leave: Value, takes: Value
) -> Word:
    """Return the words of blocks with known bounds.

    If a block's bound ``is_near``, the block's squares are added one by one, in the CPU's order, before the
    block's words are read again. A few words wait in LUT RAM and a register, so that their consumer, which
    stalls many registers, doesn't also have to stall the memory in the same cycle.
    """
    stage, marks = Pipeline(m, Const(1)), values.first.marks
    opens, closes, near = marks[0], marks[1], bounds.first
    adds_up, is_added, exact, bound = Signal(), Signal(), Signal(8), Signal(8)
    is_taken = Signal()  # the bound is consumed; it leaves one cycle later, because this signal is late
    has_bound = bounds.has & ~is_taken
    is_open = values.has & (~opens | (has_bound & (~near.is_near | is_added)))
    begins = values.has & opens & has_bound & near.is_near & ~adds_up & ~is_added
    adder_takes, found, total = summed(m, values.first.word, closes, begins)
    exact_bound = exponent_of(stage, total, near.wanted, near.shift, least)
    found = stage.delay(found, 2, resets=True)
    with m.If(begins):
        m.d.sync += adds_up.eq(1)
    with m.If(found):
        m.d.sync += [adds_up.eq(0), is_added.eq(1), exact.eq(exact_bound)]

    current = Mux(opens, Mux(is_added, exact, near.bound), bound)
    fields = Cat(current, marks[1:], values.first.word)
    m.submodules.leaving = few = LutFIFO(width=len(fields), depth=_FEW)
    has_place = stage.hold(may_leave & (few.level < _FEW - 2), resets=True)  # two more words are in flight
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
