import math
import struct
from fractions import Fraction

import pytest

from gradwire.codecs import ErrBound
from gradwire_gateware.errbound.share import Least


@pytest.mark.parametrize("relative", [0.05, 0.25, 0.1, 1.0, 2.0**-24, 0.7, 1 / 3])
@pytest.mark.parametrize("count", [1, 2, 3, 64, 1000, 65535, 65536])
def test_the_least_sum_is_where_the_cpus_bound_changes(relative: float, count: int) -> None:
    codec = ErrBound(relative=relative)
    least = Least.of(codec)
    share = struct.unpack("<f", struct.pack("<f", relative))[0]
    assert 2**53 <= least.significand < 2**54
    wanted = count * least.significand * Fraction(2) ** least.power
    near = float(wanted)
    for _ in range(3):
        near = math.nextafter(near, 0.0)
    for _ in range(6):
        reaches = Fraction(near) >= wanted if least.is_enough else Fraction(near) > wanted
        assert reaches == (share * math.sqrt(near / count) >= 1.0), near.hex()
        near = math.nextafter(near, math.inf)
