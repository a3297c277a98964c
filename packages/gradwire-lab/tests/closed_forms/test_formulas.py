from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire_lab.closed_forms import formulas
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma

STUDY = AlphaBetaGamma(2.5e-6, 1 / 6e9)
"""The line rate of the measurement study's cluster: 2.5 microseconds and 6 GB/s."""

GOOGLENET_NBYTES = 53e6

ROUND = AlphaBetaGamma(1.0, 0.01, 0.001)
"""Numbers in which every term can be read off the sum."""


@pytest.mark.parametrize(
    ("formula", "expected_s"),
    [
        (formulas.parameter_server_s, 0.282746667),  # 32 x 53 MB / 6 GB/s + 32 x 2.5 us
        (formulas.star_s, 0.265075),  # 30 x (8833.33 + 2.5) us
        (formulas.tree_s, 0.070686667),  # 8 x (8833.33 + 2.5) us
        (formulas.ring_s, 0.0166375),  # 30/16 x 8833.33 us + 30 x 2.5 us
        (formulas.butterfly_s, 0.0165825),  # 30/16 x 8833.33 us + 8 x 2.5 us
        (formulas.least_transfer_s, 0.0165625),
    ],
)
def test_53_mb_at_16_servers_of_the_study(
    formula: Callable[[int, float, AlphaBetaGamma], float], expected_s: float
) -> None:
    assert formula(16, GOOGLENET_NBYTES, STUDY) == pytest.approx(expected_s, rel=1e-8)


def test_the_study_finds_the_butterfly_best_and_the_server_worst() -> None:
    """Its table 1, at the sizes of its figure 8."""
    for world in (2, 4, 8, 16, 32, 64, 128):
        times = [
            formula(world, GOOGLENET_NBYTES, STUDY)
            for formula in (
                formulas.butterfly_s,
                formulas.ring_s,
                formulas.tree_s,
                formulas.parameter_server_s,
            )
        ]
        assert times == sorted(times)


@pytest.mark.parametrize(
    ("formula", "expected_s"),
    [
        (formulas.worker_aggregator_s, 3 + 6 * 8 + 3 * 0.8),
        (formulas.star_s, 6 + 6 * 8 + 3 * 0.8),
        (formulas.tree_s, 4 + 4 * 8 + 2 * 0.8),
        (formulas.ring_s, 6 + 6 / 4 * 8 + 3 / 4 * 0.8),
        (formulas.butterfly_s, 4 + 6 / 4 * 8 + 3 / 4 * 0.8),
    ],
)
def test_four_ranks_and_800_bytes_by_hand(
    formula: Callable[[int, float, AlphaBetaGamma], float], expected_s: float
) -> None:
    assert formula(4, 800, ROUND) == pytest.approx(expected_s, rel=1e-12)


def test_inceptionn_wa_grows_about_linearly_and_its_ring_stays_about_constant() -> None:
    """Measured there from 4 to 8 workers, at 10 Gbit/s with AlexNet's 233 MB."""
    link = AlphaBetaGamma(50e-6, 8 / 10e9)
    server = formulas.worker_aggregator_s(8, 233e6, link) / formulas.worker_aggregator_s(4, 233e6, link)
    ring = formulas.ring_s(8, 233e6, link) / formulas.ring_s(4, 233e6, link)
    assert 1.7 < server < 2.0
    assert 1.0 < ring < 1.2


def test_every_segment_pays_latency_and_synchronisation_once_more() -> None:
    one = formulas.segmented_ring_s(4, 800, ROUND, segments=1, synchronisation_s=10.0)
    five = formulas.segmented_ring_s(4, 800, ROUND, segments=5, synchronisation_s=10.0)
    assert one == pytest.approx(formulas.ring_s(4, 800, ROUND) + 10)
    assert five - one == pytest.approx(4 * (6 * ROUND.alpha_s + 10.0))


@pytest.mark.parametrize(
    "formula",
    [formulas.star_s, formulas.tree_s, formulas.ring_s, formulas.butterfly_s, formulas.least_transfer_s],
)
def test_one_rank_has_nothing_to_exchange(formula: Callable[[int, float, AlphaBetaGamma], float]) -> None:
    assert formula(1, 1e9, ROUND) == 0


@given(st.integers(2, 4096), st.floats(0, 1e12))
def test_nothing_beats_the_least_transfer(world: int, nbytes: float) -> None:
    bound_s = formulas.least_transfer_s(world, nbytes, STUDY)
    for formula in (formulas.star_s, formulas.tree_s, formulas.ring_s, formulas.butterfly_s):
        assert formula(world, nbytes, STUDY) >= bound_s


@pytest.mark.parametrize("value", [-1e-9, math.inf, math.nan, True, "50us"])
def test_a_constant_that_cannot_be_is_refused(value: float) -> None:
    with pytest.raises(SpecError, match="a finite number of at least 0 for alpha_s in a hop's cost, got"):
        AlphaBetaGamma(value, 0.0)
    with pytest.raises(SpecError, match="for gamma_s_per_nbyte in a hop's cost, got"):
        AlphaBetaGamma(0.0, 0.0, value)
