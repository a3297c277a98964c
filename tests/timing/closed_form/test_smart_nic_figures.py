from __future__ import annotations

import pytest

from gradwire.timing.closed_form.smart_nic_figures import (
    SPEEDUPS,
    Figure,
    constants,
    figures,
    speedup,
    throughput,
)
from gradwire.timing.closed_form.smart_nic_prototype import LARGE, MANY, SMALL, Prototype, calibrate
from support.project import DOCS

PAGE = DOCS / "timing.md"


@pytest.fixture(scope="module")
def prototype() -> Prototype:
    return calibrate()


def find(prototype: Prototype, words: str) -> Figure:
    (found,) = [each for each in figures(prototype) if each.what == words]
    return found


def test_the_constants_meet_the_figures_that_they_were_taken_from(prototype: Prototype) -> None:
    calibrated = [each for each in figures(prototype) if each.calibrated]
    assert len(calibrated) == 5
    for each in calibrated:
        assert each.model == pytest.approx(each.published, rel=1e-6)


@pytest.mark.parametrize(
    ("words", "within"),
    [
        ("overlapped, batch 1792: speedup over naive", 0.03),
        ("NIC, batch 448: backward saved", 0.02),
        ("NIC + BFP, batch 448: part of the step saved", 0.02),
        ("NIC + BFP, batch 448, 6 nodes: speedup", 0.04),
        ("NIC + BFP, batch 448, 32 nodes: speedup", 0.04),
        ("NIC + BFP, batch 1792, 6 nodes: speedup", 0.04),
        ("NIC + BFP, batch 1792, 32 nodes: speedup", 0.05),
    ],
)
def test_it_predicts_the_other_figures(prototype: Prototype, words: str, within: float) -> None:
    figure = find(prototype, words)
    assert not figure.calibrated
    assert figure.model == pytest.approx(figure.published, rel=within)


def test_it_overstates_what_little_time_the_overlapped_step_exposes(prototype: Prototype) -> None:
    """A fiftieth of the naive step's is 2 % of the step; the model has 5 %."""
    figure = find(prototype, "overlapped, batch 1792: exposed time, naive over it")
    assert figure.published / 3 < figure.model < figure.published


def test_the_four_speedups_are_among_the_figures(prototype: Prototype) -> None:
    published = [each.published for each in figures(prototype) if each.what.endswith("speedup")]
    assert published[-4:] == [each for _, _, each in SPEEDUPS] == [1.6, 2.5, 1.1, 1.4]


def test_throughput_and_speedup_are_of_one_model(prototype: Prototype) -> None:
    for mlp in (SMALL, LARGE):
        before, after = (throughput(prototype, mlp, nic, MANY) for nic in (None, prototype.bfp))
        assert after / before == pytest.approx(speedup(prototype, mlp, prototype.bfp, MANY))


def test_every_figure_says_where_it_is_published(prototype: Prototype) -> None:
    assert all("figure" in each.source and "section" in each.source for each in figures(prototype))


def test_the_page_shows_what_the_model_says(prototype: Prototype) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for each in figures(prototype):
        how = "calibrated" if each.calibrated else "predicted"
        assert f"| {each.what} | {each.published:g} | {each.model:.3g} | {how} |" in page
    for constant in constants(prototype):
        source = f"omitted; {constant.source}" if constant.omitted else constant.source
        assert f"| {constant.what} | {constant.value} | {source} |" in page
