from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_lab.testbed.delay_line import DelayLine, Errors, RelayReport

REPORT = RelayReport(
    frames=1000,
    nbytes=2_000_000,
    lost=3,
    overruns=0,
    refused=0,
    seconds=2.0,
    processor_s=0.5,
    error_median_s=100e-6,
    error_p99_s=0.0012,
)


@given(st.floats(0, 10), st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(sorted))
def test_without_jitter_every_frame_waits_for_the_delay(delay_s: float, arrivals: list[float]) -> None:
    line = DelayLine(delay_s, 0.0, 0.0, seed=1)
    for number, arrived in enumerate(arrivals):
        line.put(b"%d" % number, arrived)
    assert [frame.data for frame in line.frames] == [b"%d" % number for number in range(len(arrivals))]
    assert [frame.due for frame in line.frames] == [arrived + delay_s for arrived in arrivals]


@given(st.integers(0, 9), st.lists(st.floats(0, 10), min_size=2, max_size=50).map(sorted))
def test_jitter_delays_within_its_range_and_keeps_the_order(seed: int, arrivals: list[float]) -> None:
    line = DelayLine(3.0, 2.0, 0.0, seed)
    for arrived in arrivals:
        line.put(b"", arrived)
    dues = [frame.due for frame in line.frames]
    assert dues == sorted(dues)
    assert all(due - arrived >= 1 - 1e-9 for arrived, due in zip(arrivals, dues, strict=True))
    # a frame never waits for longer than the longest delay, not even behind the ones before it
    assert all(due - arrived <= 5 + 1e-9 for arrived, due in zip(arrivals, dues, strict=True))


def test_jitter_is_uniform_around_the_delay() -> None:
    line, n = DelayLine(0.1, 0.02, 0.0, seed=0), 20_000
    for number in range(n):
        line.put(b"", float(number))  # too far apart to wait for each other
    delays = [frame.due - number for number, frame in enumerate(line.frames)]
    deviation = 0.02 / math.sqrt(3)
    assert statistics.mean(delays) == pytest.approx(0.1, abs=5 * deviation / math.sqrt(n))
    assert statistics.stdev(delays) == pytest.approx(deviation, rel=0.03)


@pytest.mark.parametrize("loss", [0.001, 0.1, 0.7])
def test_the_share_of_lost_frames_is_the_one_asked_for(loss: float) -> None:
    line, n = DelayLine(0.0, 0.0, loss, seed=3), 100_000
    for _ in range(n):
        line.put(b"", 0.0)
    assert line.lost + len(line.frames) == n
    assert line.lost == pytest.approx(n * loss, abs=5 * math.sqrt(n * loss * (1 - loss)))


def kept(seed: int, n: int = 200) -> list[bytes]:
    line = DelayLine(1.0, 0.5, 0.3, seed)
    for number in range(n):
        line.put(b"%d" % number, 0.0)
    return [frame.data for frame in line.frames]


def test_the_same_seed_loses_the_same_frames() -> None:
    assert kept(5) == kept(5)
    assert len({tuple(kept(seed)) for seed in range(8)}) == 8


def test_only_stamped_frames_are_measured() -> None:
    line = DelayLine(0.25, 0.0, 0.0, seed=0)
    line.put(b"a", 10.0)
    line.put(b"b", 10.0, stamp=1e9)
    line.put(b"c", 9.0, stamp=2e9)  # it waits behind the others, which is no error
    assert [frame.delay_s for frame in line.frames] == [None, 0.25, 1.25]
    assert [frame.arrived for frame in line.frames][1:] == [1e9, 2e9]


@given(st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=200), st.sampled_from([0.01, 0.5, 0.99]))
def test_a_quantile_is_the_least_error_that_enough_others_do_not_exceed(us: list[int], share: float) -> None:
    errors = Errors()
    for each in us:
        errors.add(each / 1e6)
    ordered = sorted(abs(each) for each in us)
    found = errors.quantile_s(share)
    assert found is not None
    assert round(found * 1e6) == ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def test_without_measured_delays_there_is_no_error() -> None:
    assert Errors().quantile_s(0.5) is None


def test_a_report_is_one_line_and_survives_json() -> None:
    assert RelayReport(**json.loads(json.dumps(asdict(REPORT)))) == REPORT
    assert REPORT.processor_s_per_gb == 250.0
    assert str(REPORT) == (
        "2MB in 1000 frames, 3 lost on purpose; 250.0 s of processor time per GB (25 % of a core); "
        "error of the delay 100us (median), 1.2ms (99 %)"
    )


def test_a_report_without_traffic_has_no_cost_per_byte() -> None:
    idle = RelayReport(0, 0, 0, 0, 0, 1.0, 0.0, None, None)
    assert idle.processor_s_per_gb is None
    assert str(idle) == "0B in 0 frames, 0 lost on purpose"
