"""Batches, milliseconds, and their product, of rows whose answers are reckoned by hand."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.a2dtwp.measured import MeasuredPolicies
from support.offloaded_rows import batch, longer, training

ERRORS = [0.8, 0.8, 0.8, 0.5, 0.5, 0.5, 0.5]
"""Smoothed: 0.8 until 300 batches, 0.5 from 600 on; 0.51 is reached between 500 and 600."""


def rows() -> list[dict[str, Any]]:
    """Return two seeds of float32, AWP, and two static formats, and all their batches."""
    trained = [
        training(policy, [error + seed * 0.01 for error in errors], seed)
        for policy, errors in (
            ("fp32", ERRORS),
            ("awp", ERRORS),
            ("static:8", [0.9] * 7),
            ("static:16", ERRORS),
            ("bf16", ERRORS),
        )
        for seed in (-1, 1)
    ]
    timed = [batch("fp32", 4.0), batch("static:8", 1.0), batch("static:16", 2.0), batch("delta", 1.5)]
    adaptive = [batch(f"awp:{bits}", bits / 8) for bits in (8, 16, 24, 32)]
    return [longer(), *trained, *timed, *adaptive]


def test_errors_are_means_of_seeds_and_smoothed() -> None:
    found = MeasuredPolicies(rows())
    assert (found.networks, found.images, found.longer) == (["vgg"], "cifar10", {"vgg": 0.6})
    assert [error for _, error in found.curve("vgg", "fp32")] == pytest.approx(
        [0.8, 0.8, 0.8, 0.7, 0.6, 0.5, 0.5]
    )
    assert found.target("vgg") == pytest.approx(0.51)
    assert found.batches_to("vgg", "fp32") == pytest.approx(590)
    assert found.batches_to("vgg", "static:8") is None
    assert found.batches_to("vgg", "delta") == found.batches_to("vgg", "bf16")


def test_seconds_are_batches_times_those_of_the_full_network() -> None:
    found = MeasuredPolicies(rows())
    assert found.seconds("vgg", "fp32", "x86") == pytest.approx(2800)
    assert found.seconds_to("vgg", "static:16", "power") == pytest.approx(590)
    assert found.gain("vgg", "static:16", "fp32", "x86") == pytest.approx(0.5)
    assert found.gain("vgg", "static:8", "fp32", "x86") is None
    assert found.oracle("vgg", "x86") == "static:16"


def test_awp_takes_as_long_as_the_bits_of_its_layers_in_the_full_network() -> None:
    found = MeasuredPolicies(rows())
    # The full network's second layer has three quarters of the weights.
    bits = 199 * 32 + 60 * 8 + 40 * 14 + 110 * 16 + 110 * 22 + 181 * 24
    (row, _) = found.trainings("vgg", "awp")
    assert found.bits("vgg", row) == pytest.approx(bits / 700)
    assert found.seconds("vgg", "awp", "x86") == pytest.approx(bits / 8)
    # Its profile leaves out the epoch that is watched, as the paper's does.
    after = (bits - 199 * 32) / 500
    assert found.figure("vgg", "awp", "x86", "transfer_s") == pytest.approx(after / 80, rel=0.02)
    assert found.switches("vgg") == [4, 4]


def test_a_run_that_ends_in_its_first_epoch_has_seconds_but_no_profile() -> None:
    short = [training("awp", ERRORS, epoch=1000) if row.get("policy") == "awp" else row for row in rows()]
    found = MeasuredPolicies(short)
    assert found.figure("vgg", "awp", "x86", "transfer_s") is None
    assert found.seconds("vgg", "awp", "x86") is not None


def test_the_batches_of_all_rounds_count() -> None:
    slow = [{**row, "cycles": _times(row, 3.0)} for row in rows() if row["kind"] == "batch"]
    alone, both = MeasuredPolicies([*rows(), *slow]), MeasuredPolicies([*rows(), *slow, *slow])
    usual = MeasuredPolicies(rows()).figure("vgg", "fp32", "x86", "batch_s")
    assert usual is not None
    assert alone.figure("vgg", "fp32", "x86", "batch_s") == pytest.approx(2 * usual), "as many of each"
    assert both.figure("vgg", "fp32", "x86", "batch_s") == pytest.approx(3 * usual)


def _times(row: dict[str, Any], factor: float) -> dict[str, dict[str, list[float]]]:
    return {
        system: {name: [factor * value for value in values] for name, values in each.items()}
        for system, each in row["cycles"].items()
    }


def test_without_timed_batches_there_are_no_seconds() -> None:
    found = MeasuredPolicies([row for row in rows() if row["kind"] != "batch"])
    assert found.seconds_to("vgg", "awp", "x86") is None
    assert found.seconds_to("vgg", "fp32", "x86") is None
    assert found.oracle("vgg", "x86") is None
    assert found.bits("vgg", found.trainings("vgg", "static:8")[0]) == 8
