from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_lab.closed_forms import formulas
from gradwire_lab.closed_forms import formulas as step_time
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, WorkerAggregatorStep

LINK = AlphaBetaGamma(1.0, 0.01, 0.001)
SECONDS = st.floats(0, 1e3)


def test_the_models_of_pipe_sgd_by_hand() -> None:
    parts = {"update_s": 1.0, "compute_s": 4.0, "communicate_s": 10.0}
    assert step_time.sync_s(100, **parts) == 1500
    assert step_time.pipelined_unlimited_s(100, 2, **parts) == 750
    assert step_time.pipelined_s(100, **parts) == 1000
    assert step_time.scaling_efficiency(**parts) == 0.5


def test_a_pipeline_bound_by_computation_scales_perfectly() -> None:
    assert step_time.scaling_efficiency(update_s=1, compute_s=4, communicate_s=5) == 1
    assert step_time.scaling_efficiency(update_s=0, compute_s=0, communicate_s=0) == 1


@given(SECONDS, SECONDS, SECONDS)
def test_the_efficiency_is_the_time_alone_over_the_time_together(
    update_s: float, compute_s: float, communicate_s: float
) -> None:
    parts = {"update_s": update_s, "compute_s": compute_s, "communicate_s": communicate_s}
    together_s = step_time.pipelined_s(1, **parts)
    assert step_time.scaling_efficiency(**parts) * together_s == pytest.approx(update_s + compute_s)
    assert together_s <= step_time.sync_s(1, **parts) * (1 + 1e-12)
    assert together_s >= step_time.pipelined_unlimited_s(1, 2, **parts) * (1 - 1e-12)


def test_sequential_and_segmented_exchange_by_hand() -> None:
    """Four ranks and 800 bytes: 6 s of latency, 12 s of transfer, 0.6 s of additions."""
    sequential_s = step_time.segmented_exchange_s(
        10,
        update_s=1,
        forward_s=2,
        first_backward_s=4,
        world=4,
        nbytes=800,
        link=LINK,
        segments=1,
        synchronisation_s=0.5,
    )
    assert sequential_s == pytest.approx(10 * (6 + 12 + 0.6 + 0.5))
    segmented_s = step_time.segmented_exchange_s(
        10,
        update_s=1,
        forward_s=2,
        first_backward_s=1,
        world=4,
        nbytes=800,
        link=LINK,
        segments=3,
        synchronisation_s=0.5,
    )
    assert segmented_s == pytest.approx(10 * (3 * 6 + 12 + 0.6 + 3 * 0.5))


def test_when_computation_decides_segments_save_its_rest() -> None:
    fast = AlphaBetaGamma(0.0, 0.0)
    assert (
        step_time.segmented_exchange_s(
            1, update_s=1, forward_s=2, first_backward_s=4, world=4, nbytes=800, link=fast, segments=1
        )
        == 7
    )
    assert (
        step_time.segmented_exchange_s(
            1, update_s=1, forward_s=2, first_backward_s=1, world=4, nbytes=800, link=fast, segments=4
        )
        == 4
    )


def test_pipe_sgd_prefers_the_sequential_exchange_while_communication_decides() -> None:
    """The conclusion that the paper draws from its equations 5 and 6."""
    times = [
        formulas.segmented_ring_s(4, 800, LINK, segments=segments, synchronisation_s=0.5)
        for segments in range(1, 10)
    ]
    assert times == sorted(times)


TABLE_2 = {
    "AlexNet": (WorkerAggregatorStep(3.13, 16.22, 5.68, 8.94, 148.71, 13.67), 196.35, 0.757),
    "HDC": (WorkerAggregatorStep(0.08, 0.07, 0.00, 0.09, 1.36, 0.09), 1.70, 0.802),
    "ResNet-50": (WorkerAggregatorStep(2.63, 4.87, 2.24, 3.68, 60.58, 1.55), 75.55, 0.802),
    "VGG-16": (WorkerAggregatorStep(32.25, 142.34, 12.09, 19.89, 583.58, 30.50), 823.65, 0.709),
}
"""INCEPTIONN's table II: parts and total of 100 steps, and the share of communication that it prints."""


@pytest.mark.parametrize("model", ["AlexNet", "HDC", "ResNet-50"])
def test_the_parts_of_inceptionns_table_2_add_up(model: str) -> None:
    parts, total_s, _ = TABLE_2[model]
    assert parts.total_s == pytest.approx(total_s, abs=0.0101)  # HDC's two decimals are 0.01 off


def test_vgg_16_is_printed_3_seconds_too_low_in_its_forward_pass() -> None:
    """The share of the total that is printed beside it, 4.3 %, is that of 35.25 s, which mends the sum."""
    parts, total_s, _ = TABLE_2["VGG-16"]
    assert parts.total_s == pytest.approx(820.65)
    mended = replace(parts, forward_s=parts.forward_s + 3)
    assert mended.total_s == pytest.approx(total_s)
    assert round(100 * mended.forward_s / total_s, 1) == 4.3 != round(100 * parts.forward_s / total_s, 1)


@pytest.mark.parametrize("model", TABLE_2)
def test_communication_takes_the_share_that_the_table_prints(model: str) -> None:
    parts, _, share = TABLE_2[model]
    assert parts.communication_share == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize(
    ("model", "nbytes"), [("AlexNet", 233e6), ("HDC", 2.5e6), ("ResNet-50", 98e6), ("VGG-16", 525e6)]
)
def test_no_model_communicates_faster_than_inceptionns_own_formula(model: str, nbytes: float) -> None:
    """Table II was measured with four workers over 10 Gbit/s; the formula is for a perfect network."""
    parts, _, _ = TABLE_2[model]
    best_s = 100 * formulas.worker_aggregator_s(4, nbytes, AlphaBetaGamma(0.0, 8 / 10e9))
    assert 0.4 < best_s / parts.communicate_s < 1
