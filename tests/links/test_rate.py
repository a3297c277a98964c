from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.links import parse_rate


@pytest.mark.parametrize(
    ("text", "nbytes_per_s"),
    [
        ("8bit", 1.0),
        ("1kbit", 125.0),
        ("100mbit", 12.5e6),
        ("100Mbit", 12.5e6),
        ("1gbit", 125e6),
        ("2.5 gbit", 312.5e6),
        ("100Bps", 100.0),
        ("3kBps", 3000.0),
        ("12.5MBps", 12.5e6),
        ("12.5MB/s", 12.5e6),
        ("1GBps", 1e9),
    ],
)
def test_rates_are_bytes_per_second(text: str, nbytes_per_s: float) -> None:
    assert parse_rate(text) == pytest.approx(nbytes_per_s, rel=1e-12)


@given(st.integers(1, 10**6))
def test_a_byte_is_eight_bits(number: int) -> None:
    bits, nbytes = parse_rate(f"{8 * number}mbit"), parse_rate(f"{number}MBps")
    assert bits is not None
    assert bits == pytest.approx(nbytes, rel=1e-12)


@pytest.mark.parametrize("text", [None, "unlimited"])
def test_unlimited_is_none(text: str | None) -> None:
    assert parse_rate(text) is None


@pytest.mark.parametrize(
    "text", ["", "100", "mbit", "100mbps", "100MBit/h", "1e3mbit", "-1mbit", "0mbit", "1..2mbit", "1tbit"]
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(
        SpecError, match=r"a rate is written like '100mbit', '12\.5MBps' or 'unlimited', but this"
    ):
        parse_rate(text)
