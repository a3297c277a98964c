from __future__ import annotations

import pytest

from gradwire.line_rate.page import describe_line, show_line_rate
from gradwire.machine import TOPOLOGY
from gradwire.timing.line import Line, LineRate, Point
from gradwire_lab.benchmark.allreduce import TORCH, Checked, Configuration, Result, Timing
from gradwire_lab.benchmark.page import show_allreduce

LINE = Line(50e-6, 125e6, burst_nbytes=32_000)


@pytest.fixture(autouse=True)
def _no_testbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOPOLOGY, raising=False)


def rate(*points: Point) -> LineRate:
    return LineRate(LINE, points, {}, "here")


def result(algorithm: str, p50_s: float, **options: int) -> Result:
    """Return one of 2 ranks with 1 MB, of which 40 % went over the line."""
    sent = (0, 0) if algorithm == TORCH else (400_000, 300_000)
    checked = Checked(sent, 2.5, 1e-4, 2e-3, 0.03)
    timing = Timing((p50_s, p50_s, 2 * p50_s))
    return Result(Configuration(algorithm, "bf16", 1_000_000, **options), 2, timing, checked, LINE)


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    return lines


def test_a_line_is_shown_by_its_points_and_what_they_come_to(capsys: pytest.CaptureFixture[str]) -> None:
    show_line_rate({(0, 1): rate(Point(1024, 51e-6, 2e7, 1e7), Point(1 << 20, 9e-3, 1.25e8, 1e8))}, None)
    lines = printed(capsys)
    assert lines[0] == "link between ranks 0 and 1, not throttled"
    assert [line.split() for line in lines if line.startswith("1")] == [
        ["1KiB", "51us", "160mbit", "80mbit"],
        ["1MiB", "9ms", "1gbit", "800mbit"],
    ]
    assert lines[1] == "The link: latency 50us, 1gbit, after a burst of 32kB."
    assert not any("all pairs" in line for line in lines)


def test_several_pairs_have_a_table_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    point = Point(1024, 51e-6, 2e7, 1e7)
    show_line_rate({(0, 1): rate(point), (0, 2): rate(point)}, "1gbit")
    lines = printed(capsys)
    assert lines[0] == "link between ranks 0 and 1, throttled to 1gbit"
    assert [line.split() for line in lines[lines.index("links of all pairs") :] if " and " in line] == [
        ["0", "and", other, "50us", "1gbit", "32kB"] for other in ("1", "2")
    ]


def test_a_row_has_bandwidths_and_the_speed_against_torch(capsys: pytest.CaptureFixture[str]) -> None:
    """1 MB in 10 ms is 0.1 GB/s, on two ranks also that of the bus; torch takes 25 ms."""
    results = [result(TORCH, 0.025), result("ring", 0.010), result("ring", 0.020, segment_nbytes=1 << 20)]
    show_allreduce(results, LINE, "laplace:0.001", None)
    lines = printed(capsys)
    assert lines[0] == "all-reduce of laplace:0.001, not throttled"
    said = "ring with bf16 is the fastest for 1MB on 2 ranks: 10ms, 2.50x as fast as PyTorch's own."
    assert " ".join(lines[1:3]) == said
    torchs, ring, small = (line.split() for line in lines[3:] if "bf16" in line)
    assert torchs[:6] == ["torch", "bf16", "2", "1MB", "25", "49.5"]
    assert torchs[-3:] == ["-", "-", "1.00x"], "torch counts no bytes"
    assert ring[:8] == ["ring", "bf16", "2", "1MB", "10", "19.8", "0.1", "0.1"]
    assert ring[-3:] == ["0.4", "2.50", "2.50x"]
    assert int(ring[8]) == round(100 * (2 * 50e-6 + 0.4e6 / 125e6) / 0.010), "2 steps, and 40 % of the bytes"
    assert small[:2] == ["ring", "/1MiB"]
    assert small[-1] == "1.25x"


def test_without_a_line_nothing_is_compared_with_theory(capsys: pytest.CaptureFixture[str]) -> None:
    results = [
        Result(Configuration("ring", "bf16", 1_000_000), 2, Timing((0.01,)), result("ring", 1).checked)
    ]
    show_allreduce(results, None, "laplace:0.001", "1gbit")
    lines = printed(capsys)
    (row,) = (line.split() for line in lines[2:] if "bf16" in line)
    assert (row[8], row[-1]) == ("-", "-")
    assert "The line" not in " ".join(lines)


def test_a_line_without_a_burst_says_nothing_of_one() -> None:
    assert describe_line(Line(0.001, 12.5e6)) == "The link: latency 1ms, 100mbit."
