"""Times and gains of rows whose answers are reckoned by hand."""

from __future__ import annotations

import pytest

from gradwire_lab.experiments.a2dtwp.measured import (
    curve_of,
    figure_of,
    gain,
    last_error,
    nothing_to_save,
    seconds_of,
    seconds_to,
    typical,
)
from support.offloaded_rows import row

FLAT = [0.8, 0.8, 0.8, 0.6, 0.6, 0.6]
"""Smoothed: 0.8 until 30 batches, 0.6 at 60."""
FP32 = row("fp32", 2.0, FLAT)


def test_a_burst_of_other_work_is_not_typical() -> None:
    assert typical([1.0] * 9 + [50.0] + [1.0] * 9) == [1.0] * 19
    assert typical([1.0] * 20 + [2.0] * 20) == [1.0] * 20 + [2.0] * 20


def test_batches_on_the_other_link_take_as_long_as_those_around_them() -> None:
    assert seconds_of(FP32, "x86") == [2.0 * number for number in range(1, 61)]
    assert seconds_of(FP32, "power")[-1] == 60
    slower = row("fp32", 1.0, FLAT)
    slower["cycles"]["x86"]["batch_s"] = [1.0] * 15 + [3.0] * 15
    assert seconds_of(slower, "x86")[-1] == 30 * 1 + 30 * 3
    assert figure_of(slower, "x86", "batch_s") == 2


def test_errors_are_smoothed() -> None:
    assert [error for _, _, error in curve_of(FP32, "x86")] == pytest.approx(
        [0.8, 0.8, 0.8, 0.8 - 0.2 / 3, 0.8 - 0.4 / 3, 0.6]
    )
    assert last_error(FP32) == pytest.approx(0.6)


def test_the_time_to_an_error_lies_between_two_evaluations() -> None:
    # From 0.6667 at 50 batches, 100 s, straight to 0.6 at 60 batches, 120 s.
    assert seconds_to(FP32, "x86", 0.61) == pytest.approx(117)
    assert seconds_to(FP32, "power", 0.61) == pytest.approx(58.5)
    assert seconds_to(FP32, "x86", 0.5) is None


def test_a_gain_is_the_share_of_the_other_time() -> None:
    faster, stuck = row("awp", 1.5, FLAT), row("static:8", 1.0, [0.8] * 6)
    assert gain(faster, FP32, "x86", 0.61) == pytest.approx(0.25)
    assert gain(stuck, FP32, "x86", 0.61) is None


@pytest.mark.parametrize(
    ("unlimited_s", "explains"), [(1.96, True), (2.1, True), (1.9, False), (None, False)]
)
def test_nothing_is_to_save_where_a_link_without_limit_is_no_faster(
    unlimited_s: float | None, explains: bool
) -> None:
    reason = nothing_to_save([row("bf16", 2.0, FLAT, unlimited_s)], "x86")
    assert (reason is not None) is explains
