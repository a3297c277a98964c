from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import collectives
from gradwire.timing import formulas
from gradwire.timing.formulas import AlphaBetaGamma
from support.cases import for_each
from support.schedule_cost import cost

LINK = AlphaBetaGamma(13e-6, 0.8e-9, 0.11e-9)
POWERS = (2, 4, 8, 16, 32, 64)

Formula = Callable[[int, float, AlphaBetaGamma], float]

CLOSED: list[tuple[str, Formula, int]] = [
    *(("ring", formulas.ring_s, world) for world in (*range(1, 18), 64)),
    *(("star", formulas.star_s, world) for world in (*range(1, 18), 64)),
    *(("tree", formulas.tree_s, world) for world in POWERS),
    *(("butterfly", formulas.butterfly_s, world) for world in POWERS),
]


@pytest.mark.parametrize(("name", "formula", "world"), CLOSED)
def test_the_walk_meets_the_closed_form(name: str, formula: Formula, world: int) -> None:
    """Each constant alone, and all of them: so the terms are right one by one."""
    for link in (
        LINK,
        AlphaBetaGamma(1.0, 0.0),
        AlphaBetaGamma(0.0, 1.0),
        AlphaBetaGamma(1e-30, 1e-30, 1.0),
    ):
        walked = cost(collectives.get(name), world, 1e6, link)
        assert walked.total_s == pytest.approx(formula(world, 1e6, link), rel=1e-12, abs=1e-20)


@pytest.mark.parametrize("name", sorted(collectives.TABLE))
@for_each("world", range(1, 18))
def test_an_empty_bucket_takes_the_steps_of_the_card(name: str, world: int) -> None:
    algorithm = collectives.get(name)
    walked = cost(algorithm, world, 0, LINK)
    assert walked.hops == algorithm.steps(world)
    assert walked.total_s == pytest.approx(algorithm.steps(world) * LINK.alpha_s)


@pytest.mark.parametrize("name", sorted(collectives.TABLE))
@for_each("world", range(1, 18))
def test_bytes_are_those_of_the_card(name: str, world: int) -> None:
    algorithm = collectives.get(name)
    walked = cost(algorithm, world, 4800, LINK)
    assert max(walked.sent_nbytes) == pytest.approx(algorithm.nbytes(world, 4800))
    assert sum(walked.sent_nbytes) == pytest.approx(sum(walked.received_nbytes))


def test_the_terms_of_a_ring_of_four() -> None:
    walked = cost(collectives.get("ring"), 4, 800, AlphaBetaGamma(1.0, 0.01, 0.001))
    assert (walked.hops, walked.latency_s) == (6, 6.0)
    assert walked.transfer_s == pytest.approx(12.0)
    assert walked.reduction_s == pytest.approx(0.6)
    assert walked.sent_nbytes == walked.received_nbytes == (1200.0,) * 4


def test_a_codec_makes_the_transfer_shorter_and_leaves_the_additions() -> None:
    plain = cost(collectives.get("ring"), 4, 800, LINK)
    packed = cost(collectives.get("ring"), 4, 800, LINK, ratio=4)
    assert packed.transfer_s == pytest.approx(plain.transfer_s / 4)
    assert packed.latency_s == plain.latency_s
    assert packed.reduction_s == plain.reduction_s
    assert packed.sent_nbytes == pytest.approx([each / 4 for each in plain.sent_nbytes])


@given(
    st.sampled_from(sorted(collectives.TABLE)),
    st.integers(2, 17),
    st.floats(0, 1e9),
    st.floats(0, 1e-3),
    st.floats(0, 1e-6),
)
def test_nothing_beats_the_least_transfer_and_more_is_never_faster(
    name: str, world: int, nbytes: float, alpha_s: float, beta: float
) -> None:
    link = AlphaBetaGamma(alpha_s, beta, 1e-10)
    walked = cost(collectives.get(name), world, nbytes, link)
    rounding = 1 - 1e-9
    assert walked.total_s >= formulas.least_transfer_s(world, nbytes, link) * rounding
    for slower, more in (
        (AlphaBetaGamma(alpha_s * 2, beta, 1e-10), nbytes),
        (AlphaBetaGamma(alpha_s, beta * 2, 1e-10), nbytes),
        (link, nbytes * 2),
    ):
        assert cost(collectives.get(name), world, more, slower).total_s >= walked.total_s * rounding
