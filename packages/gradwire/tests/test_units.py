from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.units import (
    check_link_rate,
    counted,
    exact_size,
    format_duration,
    format_rate,
    format_size,
    parse_count,
    parse_duration,
    parse_rate,
    parse_size,
    parse_whole,
    ranks_in_words,
)


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
        ("1Gbit/s", 125e6),
        ("1gbit/s", 125e6),
        ("1 Gbps", 125e6),
        ("100Mbps", 12.5e6),
        ("100Mb/s", 12.5e6),
        ("10GbE", 1.25e9),
        ("2.5GbE", 312.5e6),
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


def test_a_rate_that_means_bits_to_some_and_bytes_to_others_is_refused() -> None:
    for text in ("100mbps", "1gbps", "10kbps"):
        with pytest.raises(SpecError, match="because 'bps' after a lowercase letter is ambiguous"):
            parse_rate(text)


@pytest.mark.parametrize(
    "text", ["", "100", "mbit", "100mbps", "100MBit/h", "1e3mbit", "-1mbit", "0mbit", "1..2mbit", "1tbit"]
)
def test_anything_else_is_refused_with_examples(text: str) -> None:
    with pytest.raises(
        SpecError, match=r"expected a rate such as '100mbit', '12\.5MBps' or 'unlimited', got"
    ):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("50us", 5e-5),
        ("50 us", 5e-5),
        ("1.5ms", 1.5e-3),
        ("2s", 2.0),
        ("7ns", 7e-9),
        ("0", 0.0),
        ("0ms", 0.0),
    ],
)
def test_durations_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "50", "us", "-1us", "1 min", "1e3us", "1..2s"])
def test_a_time_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected a time such as '50us'"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("16MB", 16_000_000), ("4MiB", 1 << 22), ("64KiB", 1 << 16), ("1.5kB", 1500), ("12", 12), ("1B", 1)],
)
def test_sizes_are_bytes(text: str, nbytes: int) -> None:
    assert parse_size(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "-1", "1.5B", "4mb", "1TB", "1e6"])
def test_half_a_byte_and_unknown_units_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected a size such as '16MB'"):
        parse_size(text)


@given(st.integers(1, 10**12))
def test_a_rate_survives_being_written(bits: int) -> None:
    assert parse_rate(format_rate(bits / 8)) == pytest.approx(bits / 8, rel=1e-3)


@given(st.integers(1, 10**12))
def test_a_size_survives_being_written(nbytes: int) -> None:
    rounded = float(f"{nbytes:.4g}")
    assert parse_size(format_size(rounded)) == pytest.approx(nbytes, rel=1e-3)


@given(st.floats(1e-9, 1e9))
def test_a_time_survives_being_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-2)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.9996, "1s"), (999.4, "999s"), (999.6, "1000s"), (1234.5, "1234s")]
)
def test_a_long_time_is_written_in_whole_seconds(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_no_limit_has_a_name() -> None:
    assert format_rate(None) == "unlimited"


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(1, "1B"), (4000, "4kB"), (65536, "64KiB"), (16_000_000, "16MB"), (1 << 26, "64MiB"), (1004, "1004B")],
)
def test_an_exact_size_is_written_the_short_way(nbytes: int, text: str) -> None:
    assert exact_size(nbytes) == text


@given(st.integers(1, 1 << 33))
def test_an_exact_size_is_read_back_exactly(nbytes: int) -> None:
    assert parse_size(exact_size(nbytes)) == nbytes


def test_counts_and_ranks_are_words() -> None:
    assert [counted(count, "step") for count in (0, 1, 2)] == ["0 steps", "1 step", "2 steps"]
    assert [ranks_in_words(ranks) for ranks in ([1], [0, 3])] == ["rank 1", "ranks 0, 3"]


@pytest.mark.parametrize(("text", "nbytes_per_s"), [("1kbit", 125), ("1000gbit", 125e9), ("unlimited", None)])
def test_the_limits_of_a_links_rate_are_taken(text: str, nbytes_per_s: float | None) -> None:
    assert check_link_rate(text) == nbytes_per_s
    assert check_link_rate(None) is None


@pytest.mark.parametrize("text", ["999bit", "1001gbit"])
def test_beyond_them_a_links_rate_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=f"--rate: expected 1kbit to 1000gbit, or unlimited, got {text}"):
        check_link_rate(text)


@pytest.mark.parametrize("text", ["9" * 5000, f"0.{'0' * 5000}1", f"{'0' * 5000}1", "1" * 101])
def test_more_digits_than_python_reads_are_a_mistake_in_one_short_sentence(text: str) -> None:
    for parse, unit in ((parse_count, "M"), (parse_size, "MiB"), (parse_rate, "mbit"), (parse_duration, "s")):
        with pytest.raises(SpecError) as caught:
            parse(f"{text}{unit}")
        assert len(str(caught.value)) < 250
    assert parse_whole(text) is None
