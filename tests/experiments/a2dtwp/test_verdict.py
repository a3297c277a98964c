"""Times, gains, and claims of rows whose answers are reckoned by hand."""

from __future__ import annotations

import pytest

from gradwire.experiments.a2dtwp.verdict import (
    claims,
    curve_of,
    figure_of,
    gain,
    last_error,
    oracle_of,
    overhead,
    seconds_of,
    seconds_to,
    target_of,
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


def test_errors_are_smoothed_and_the_target_is_a_point_above_the_last() -> None:
    assert [error for _, _, error in curve_of(FP32, "x86")] == pytest.approx(
        [0.8, 0.8, 0.8, 0.8 - 0.2 / 3, 0.8 - 0.4 / 3, 0.6]
    )
    assert last_error(FP32) == pytest.approx(0.6)
    assert target_of(FP32) == pytest.approx(0.61)


def test_the_time_to_an_error_lies_between_two_evaluations() -> None:
    # From 0.6667 at 50 batches, 100 s, straight to 0.6 at 60 batches, 120 s.
    assert seconds_to(FP32, "x86", 0.61) == pytest.approx(117)
    assert seconds_to(FP32, "power", 0.61) == pytest.approx(58.5)
    assert seconds_to(FP32, "x86", 0.5) is None


def test_a_gain_is_the_share_of_the_other_time() -> None:
    faster, stuck = row("awp", 1.5, FLAT), row("static:8", 1.0, [0.8] * 6)
    assert gain(faster, FP32, "x86", target_of(FP32)) == pytest.approx(0.25)
    assert gain(stuck, FP32, "x86", target_of(FP32)) is None
    # Both reach 0.8 and a point with their first evaluation, one after 10 batches of 1 s, one of 2 s.
    assert target_of(stuck, FP32) == pytest.approx(0.81)
    assert gain(stuck, FP32, "x86", target_of(stuck, FP32)) == pytest.approx(0.5)


def test_the_oracle_is_the_static_format_that_is_there_first() -> None:
    rows = {
        "fp32": FP32,
        "static:24": row("static:24", 1.8, FLAT),
        "static:16": row("static:16", 1.6, FLAT),
        "static:8": row("static:8", 1.0, [0.9] * 6),
        "bf16": row("bf16", 0.1, FLAT),
    }
    assert oracle_of(rows, "x86", 0.61) is rows["static:16"]
    assert oracle_of({"bf16": rows["bf16"]}, "x86", 0.61) is None


def test_claims_are_judged_by_the_mean_or_by_each_model() -> None:
    def trained(awp_s: float, delta_s: float) -> dict[str, object]:
        rows = [
            row("fp32", 2.0, FLAT, transfer_s=0.8),
            row("bf16", 1.6, FLAT, transfer_s=0.4),
            row("static:8", 1.4, FLAT),
            row("awp", awp_s, [error + 0.005 for error in FLAT], transfer_s=0.2),
            row("delta", delta_s, FLAT),
        ]
        return {each["policy"]: each for each in rows}

    found = claims({"vgg": trained(1.4, 1.3), "resnet": trained(1.8, 1.7)}, ["x86", "power"])  # type: ignore[dict-item]
    by_text = {claim.text: claim for claim in found if claim.system == "x86"}
    assert len(found) == 2 * len(by_text)
    transfer = by_text["transfer, fp32 over awp"]
    assert transfer.mean == pytest.approx(4)
    assert transfer.is_met
    # AWP is later by 0.005 / (0.2 / 3) of 10 batches.
    seconds = [1.4 * 59.25, 1.8 * 59.25]
    saved = by_text["time saved by awp, under fp32"]
    assert [*saved.figures.values()] == pytest.approx([1 - each / 117 for each in seconds])
    assert saved.is_met
    assert by_text["error of awp over fp32's"].mean == pytest.approx(0.005)
    assert by_text["awp's time over the oracle's"].mean == pytest.approx(
        ((seconds[0] + seconds[1]) / (1.4 * 58.5) - 2) / 2
    )
    assert not by_text["awp's time over the oracle's"].is_met
    assert overhead(row("awp", 1.5, FLAT), "x86") == pytest.approx(0.02)
    each = by_text["time saved by delta, under bf16"]
    assert [*each.figures.values()] == pytest.approx([1 - 1.3 / 1.6, 1 - 1.7 / 1.6])
    assert not each.is_met, "one model is slower"
    assert not by_text["time saved by delta, under static:8"].is_met
    assert by_text["time saved by delta, under awp"].is_met


@pytest.mark.parametrize(
    ("unlimited_s", "awp_s", "verdict"),
    [
        (1.9, 1.92, "explained"),  # 5 % could be saved, and 4 % are
        (1.9, 1.96, "not reproduced"),
        (1.5, 1.92, "not reproduced"),
        (2.1, 2.02, "not reproduced"),  # nothing could be saved, and time is lost
        (None, 1.92, "not reproduced"),
        (1.5, 1.6, "reproduced"),
    ],
)
def test_little_is_saved_only_where_a_link_without_limit_saves_little(
    unlimited_s: float | None, awp_s: float, verdict: str
) -> None:
    rows = {"fp32": row("fp32", 2.0, FLAT, unlimited_s), "awp": row("awp", awp_s, FLAT)}
    found = {claim.text: claim for claim in claims({"vgg": rows}, ["x86", "unlimited"])}
    claim = found["time saved by awp, under fp32"]
    assert claim.system == "x86", "nothing is claimed of a link that no system has"
    assert claim.verdict == verdict
    assert ("a link without limit would save 5.0% of float32's time" in claim.explained) == (
        verdict == "explained"
    )


def test_without_float32_or_awp_nothing_is_claimed() -> None:
    assert claims({"vgg": {"fp32": FP32}}, ["x86"]) == []
