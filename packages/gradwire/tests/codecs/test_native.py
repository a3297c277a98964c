from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.codecs.native import as_int32


@given(st.integers(-(2**40), 2**40))
def test_parameters_are_numbers_with_the_same_low_bits(bits: int) -> None:
    assert struct.pack("<i", as_int32(bits)) == struct.pack("<I", bits % 2**32)


@pytest.mark.parametrize(("bits", "number"), [(2**31 - 1, 2**31 - 1), (2**31, -(2**31)), (2**32 - 1, -1)])
def test_the_borders(bits: int, number: int) -> None:
    assert as_int32(bits) == number
