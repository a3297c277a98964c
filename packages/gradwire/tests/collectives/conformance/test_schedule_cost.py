from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import collectives
from support.cases import for_each
from support.schedule_cost import Uniform, cost

LINK = Uniform(13e-6, 0.8e-9, 0.11e-9)


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
    walked = cost(collectives.get("ring"), 4, 800, Uniform(1.0, 0.01, 0.001))
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
    link = Uniform(alpha_s, beta, 1e-10)
    walked = cost(collectives.get(name), world, nbytes, link)
    rounding = 1 - 1e-9
    assert walked.total_s >= 2 * (world - 1) / world * nbytes * beta * rounding
    for slower, more in (
        (Uniform(alpha_s * 2, beta, 1e-10), nbytes),
        (Uniform(alpha_s, beta * 2, 1e-10), nbytes),
        (link, nbytes * 2),
    ):
        assert cost(collectives.get(name), world, more, slower).total_s >= walked.total_s * rounding
