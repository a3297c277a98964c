"""The largest number of each block of words."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth import Const, Module, Mux, Signal, Value

from gradwire.gateware.stream import Pipeline


def peaks_latency(lanes: int) -> int:
    """Return the cycles from a block's last word to its peak."""
    return 1 + (lanes - 1).bit_length()


def find_peaks(
    m: Module, numbers: Sequence[Value], moves: Value, opens: Value, closes: Value
) -> tuple[Value, Value]:
    """Return when the largest number of a block is there, and which it is.

    A word's numbers come in the cycles of ``moves``; ``opens`` and ``closes`` mark a block's first and last
    word. A stage takes them as they come, and each of those behind it halves the lanes.
    """
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
