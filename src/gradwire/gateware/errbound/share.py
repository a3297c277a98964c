"""The exponent of a relative bound, from the sum of a block's squares and their number.

The CPU computes share * sqrt(sum / count) in double precision, and rounds three times. Every step is
monotone, so the result is 2^k or more exactly if the sum is count * M * 4^k or more, where M is a constant
of the share: nothing is left to divide.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import NamedTuple

from amaranth import Cat, Const, Mux, Value

from gradwire.codecs import ErrBound
from gradwire.gateware.errbound.squares import BIAS, COUNT_BITS, SIGNIFICAND_BITS, Double
from gradwire.gateware.stream import Pipeline, leading_zeros

LATENCY = 5
"""Stages from a count to what its sum is compared with."""
_LEAST_BITS = SIGNIFICAND_BITS + 1


class Least(NamedTuple):
    """The least sum of squares of one value whose bound is 1 or more: significand * 2^power."""

    significand: int
    power: int
    is_enough: bool
    """Whether that sum itself is enough, or must be exceeded."""

    @classmethod
    def of(cls, codec: ErrBound) -> Least:
        """Return it for the share of a codec."""
        share: float = struct.unpack("<f", struct.pack("<f", codec.relative))[0]
        root = _least(1.0 / share, lambda value: share * value >= 1.0)
        square = _least(root * root, lambda value: math.sqrt(value) >= root)
        middle = (Fraction(square) + Fraction(math.nextafter(square, 0.0))) / 2
        mantissa = int(math.frexp(square)[0] * 2**SIGNIFICAND_BITS)
        power = math.frexp(square)[1] - _LEAST_BITS
        if middle < Fraction(2) ** (_LEAST_BITS - 1 + power):
            power -= 1
        return cls(int(middle / Fraction(2) ** power), power, mantissa % 2 == 0)


def _least(near: float, is_enough: object) -> float:
    """Return the smallest number that is enough, near one."""
    assert callable(is_enough)
    while is_enough(near):
        near = math.nextafter(near, 0.0)
    while not is_enough(near):
        near = math.nextafter(near, math.inf)
    return near


def normal_count(stage: Pipeline, count: Value, least: Least) -> tuple[Value, Value]:
    """Return the registers of count * M with its highest bit set, and what to add to the exponent."""
    zeros = stage.hold(leading_zeros(Cat(Const(0, 32 - COUNT_BITS), count)))
    count = stage.hold(count)
    count, zeros = stage.hold((count << zeros)[:COUNT_BITS]), stage.hold(zeros)
    third = _LEAST_BITS // 3
    thirds = [(least.significand >> at) & (2**third - 1) for at in range(0, _LEAST_BITS, third)]
    low, middle, high = (stage.hold(count * Const(part, third)) for part in thirds)
    zeros = stage.hold(zeros)
    product = stage.hold(
        (low + Cat(Const(0, third), middle) + Cat(Const(0, 2 * third), high))[: COUNT_BITS + _LEAST_BITS]
    )
    zeros = stage.hold(zeros)
    top = product[-1]
    return stage.hold(Mux(top, product, Cat(0, product[:-1]))), stage.hold((zeros + ~top)[:6])


def exponent_of(stage: Pipeline, total: Double, wanted: Value, shift: Value, least: Least) -> Value:
    """Return the register of the biased exponent of the bound, two stages after the sum."""
    bits = len(wanted)
    have = Cat(Const(0, bits - SIGNIFICAND_BITS), total.significand)
    reaches = stage.hold(have >= wanted if least.is_enough else have > wanted)
    # Twice the exponent of the bound, with an offset that keeps it positive.
    offset = -BIAS - (bits - SIGNIFICAND_BITS) - least.power + 2 * 512
    twice = stage.hold((total.exponent + shift + offset)[:12])
    is_zero = stage.hold(total.significand == 0)
    power = ((twice - ~reaches)[:12] >> 1)[:11]
    least_power, most_power = 512 - 126, 512 + 126
    low = is_zero | (power < least_power)
    clipped = Mux(low, 1, Mux(power > most_power, 253, power - (512 - 127)))
    return stage.hold(clipped[:8])
