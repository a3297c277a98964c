from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import SpecError
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import Line

COST = CodecCost(
    "errbound:2^-10",
    (CodecPoint(1, 0.6, 1e-9, 2e-9, 3e-9, 1e-3), CodecPoint(4, 1.0, 2e-9, 2e-9, 3e-9, 1e-3)),
)


def test_between_measured_terms_the_logarithm_counts() -> None:
    assert COST.at(1).nbytes == 0.6
    assert COST.at(2).nbytes == pytest.approx(0.8)
    assert COST.at(2).encode_s == pytest.approx(1.5e-9)
    assert COST.at(4).nbytes == 1.0
    assert COST.at(100).nbytes == 1.0  # beyond the last one: as that
    assert COST.ratio(4) == pytest.approx(4.0 / 0.8), "of what half of the ranks have added up"


@given(st.integers(1, 4), st.integers(1, 4))
def test_more_terms_never_shrink_what_grows(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert COST.at(low).nbytes <= COST.at(high).nbytes


@pytest.mark.parametrize("terms", [(), (2, 1), (1, 1), (0, 1)])
def test_points_must_rise(terms: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="ascending term counts of at least 1"):
        CodecCost("identity", tuple(CodecPoint(each, 4.0, 0.0, 0.0, 0.0) for each in terms))


def test_what_was_not_measured_stays_unknown_between_points() -> None:
    points = [
        CodecPoint(terms, 4.0, 0.0, 0.0, 0.0, lost=lost) for terms, lost in ((1, 0.1), (4, 0.3), (16, None))
    ]
    cost = CodecCost("x", tuple(points))
    assert cost.at(2).lost == pytest.approx(0.2)
    assert cost.at(8).lost is None
    assert cost.at(2).carried_nbytes == 4.0


def test_on_the_line_there_is_what_nics_leave() -> None:
    cost = CodecCost("x", (CodecPoint(1, 4.0, 0.0, 0.0, 0.0, line_nbytes=0.5),))
    assert cost.at(1).carried_nbytes == 0.5
    assert cost.ratio() == 8.0


def test_an_unmeasured_codec_is_named_with_the_measured_ones() -> None:
    environment = Environment(Line(0.0, math.inf), {COST.codec: COST})
    assert environment.cost(COST.codec) is COST
    with pytest.raises(SpecError, match=r"the costs of bf16 were not measured \(measured: errbound:2\^-10\)"):
        environment.cost("bf16")


def test_every_rank_may_have_a_line_of_its_own() -> None:
    slow, fast = Line(0.0, 1.0), Line(0.0, 2.0)
    assert Environment(fast, {}).line_of(3) is fast
    assert Environment(fast, {}, lines=(fast, slow)).line_of(1) is slow


def test_a_finished_sum_has_costs_of_its_own_where_another_codec_encodes_it() -> None:
    finished = CodecPoint(4, 2.0, 4e-9, 4e-9, 4e-9, lost=0.1)
    cost = replace(COST, finished=finished)
    assert cost.of(4, world=4) is finished
    assert cost.of(3, world=4) == cost.at(3) == COST.at(3)
    assert COST.of(4, world=4) == COST.at(4)
    assert cost.typical(4).nbytes == pytest.approx((COST.at(2).nbytes + 2.0) / 2)
    assert cost.typical(4).lost is None
    assert cost.ratio(4) == pytest.approx(4.0 / cost.typical(4).nbytes)
    assert cost.all_points == (*COST.points, finished)
