from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradwire.codecs.base import floor_log2, half_ulp, largest_finite, truncation_bound

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def test_what_is_not_finite_has_no_magnitude() -> None:
    assert largest_finite(torch.tensor([1.0, -3.0, math.inf, math.nan])) == 3.0
    assert largest_finite(torch.tensor([math.nan, -math.inf])) == 0.0
    assert largest_finite(torch.empty(0)) == 0.0


@given(st.floats(5e-324, 1e308))
def test_the_exponent_is_that_of_the_binade(value: float) -> None:
    exponent = floor_log2(value)
    assert math.ldexp(1.0, exponent) <= value
    assert value / 2 < math.ldexp(1.0, exponent)


@given(st.floats(2.0**-149, 2.0**127, width=32))
def test_half_a_unit_is_half_of_numpys_spacing(value: float) -> None:
    assert half_ulp(value, 23, -126) == float(np.spacing(np.float32(value))) / 2
    assert half_ulp(0.0, 23, -126) == 0.0


@given(FLOATS, st.integers(0, 31))
@pytest.mark.filterwarnings("error")
def test_clearing_low_bits_errs_by_no_more_than_the_bound(value: float, dropped: int) -> None:
    exact = np.array([value], np.float32)
    cleared = (exact.view(np.uint32) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)).view(np.float32)
    error = abs(float(exact[0]) - float(cleared[0]))
    assert error <= truncation_bound(torch.from_numpy(exact), dropped)
