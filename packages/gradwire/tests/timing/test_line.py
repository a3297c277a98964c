from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.timing.line import Line, LineRate, Point, fit

SIZES = [1 << k for k in range(27)]


def points(line: Line, sizes: list[int] = SIZES) -> list[Point]:
    """What a line without noise would be measured as; streams of small messages are slow."""
    return [
        Point(n, line.time_s(n), n / max(1e-4, n / line.nbytes_per_s), 0.9 * line.nbytes_per_s) for n in sizes
    ]


@given(st.floats(1e-6, 1e-2), st.floats(1e6, 1e9), st.floats(0, 4e5))
def test_the_fit_finds_the_line_that_made_the_points(latency: float, rate: float, burst: float) -> None:
    made = Line(latency, rate, burst)
    found = fit(points(made))
    assert found.latency_s == pytest.approx(latency + max(0.0, 1 - burst) / rate)  # of one byte
    assert found.nbytes_per_s == pytest.approx(rate, rel=1e-3)
    assert found.duplex_share == pytest.approx(0.9, rel=1e-3)
    assert found.burst_nbytes == pytest.approx(burst, rel=1e-3, abs=1e-3 * (1 << 22))


def test_a_disturbance_does_not_make_the_line_slower_nor_one_lucky_size_faster() -> None:
    made = points(Line(1e-4, 1e8), [1 << k for k in range(18, 25)])
    disturbed = [replace(point, nbytes_per_s=3e7, duplex_nbytes_per_s=2e7) for point in made[3:5]]
    lucky = replace(made[5], nbytes_per_s=2e8)
    found = fit([*made[:3], *disturbed, lucky, made[6]])
    assert found.nbytes_per_s == pytest.approx(1e8)
    assert found.duplex_share == pytest.approx(0.9)
    assert fit(made[:1]).nbytes_per_s == made[0].nbytes_per_s


def test_a_message_takes_the_latency_and_what_the_burst_leaves() -> None:
    line = Line(1e-3, 1e6, 500.0)
    assert line.time_s(1) == line.time_s(500) == 1e-3
    assert line.time_s(1500) == pytest.approx(2e-3)
    assert line.beta_s_per_nbyte == pytest.approx(1e-6)
    assert str(line) == "8mbit, 1ms"


@pytest.mark.parametrize(
    ("latency", "rate", "burst"),
    [
        (-1.0, 1e6, 0.0),
        (math.nan, 1e6, 0.0),
        (0.0, 0.0, 0.0),
        (0.0, math.nan, 0.0),
        (0.0, 1e6, -1.0),
        (0.0, 10**400, 0.0),
        (True, 1e6, 0.0),
    ],
)
def test_no_line_is_like_this(latency: float, rate: float, burst: float) -> None:
    with pytest.raises(SpecError, match="in a link, got"):
        Line(latency, rate, burst)


@pytest.mark.parametrize("share", [0.0, 1.1, math.nan])
def test_no_line_keeps_such_a_share_both_ways(share: float) -> None:
    with pytest.raises(SpecError, match="a finite number above 0 and at most 1 for duplex_share in a link"):
        Line(0.0, 1e6, duplex_share=share)


def test_a_fit_needs_points() -> None:
    with pytest.raises(SpecError, match="at least one measured message size"):
        fit([])


def test_the_record_survives_a_file(tmp_path: Path) -> None:
    rate = LineRate.of(points(Line(50e-6, 125e6, 1e5)))
    path = tmp_path / "line.json"
    path.write_text(rate.to_json())
    assert LineRate.load(path) == rate
    assert json.loads(path.read_text())["schema"] == "gradwire.line-rate/1"


def test_a_file_of_another_machine_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    rate = replace(LineRate.of(points(Line(50e-6, 125e6))), machine_id="0" * 16)
    path = tmp_path / "line.json"
    path.write_text(rate.to_json())
    with pytest.raises(
        SpecError, match=r"was measured on another machine \(.*cores\); measure this machine .* --elsewhere"
    ):
        LineRate.load(path)
    assert LineRate.load(path, elsewhere=True) == rate


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a line rate"),
        (
            '{"schema": "gradwire.train/1"}',
            "expected the schema gradwire.line-rate/1, got 'gradwire.train/1'",
        ),
        ('{"schema": "gradwire.line-rate/1"}', r"the line rate .*; measure the link again"),
        (
            '{"schema": "gradwire.line-rate/1", "points": [{}], "line": {}}',
            r"the line rate .*; measure the link again",
        ),
        ("[" * 100_000, "is not valid JSON"),
        (
            '{"schema": "gradwire.line-rate/1", "points": [{"nbytes": 0, "time_s": 1, "nbytes_per_s": 1, '
            '"duplex_nbytes_per_s": 1}], "line": {"latency_s": 0, "nbytes_per_s": 1}, '
            '"machine": {}, "machine_id": ""}',
            r"expected a finite number above 0 for points\[0\].nbytes in the line rate",
        ),
    ],
)
def test_a_damaged_file_is_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "line.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=reason):
        LineRate.load(path)


def test_a_missing_file_is_told_how_to_make(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match="cannot be read: No such file or directory; write one with 'gradwire line-rate"
    ):
        LineRate.load(tmp_path / "line.json")
