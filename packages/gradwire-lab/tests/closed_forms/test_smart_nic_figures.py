from __future__ import annotations

import pytest

from gradwire_lab.closed_forms.smart_nic_figures import (
    LARGE,
    MANY,
    SMALL,
    SPEEDUPS,
    Figure,
    How,
    Prototype,
    calibrate,
    constants,
    figures,
    speedup,
    throughput,
)
from support.project import DOCS

PAGE = DOCS / "timing.md"


@pytest.fixture(scope="module")
def prototype() -> Prototype:
    return calibrate()


def find(prototype: Prototype, words: str) -> Figure:
    (found,) = [each for each in figures(prototype) if each.what == words]
    return found


def test_the_constants_meet_the_figures_that_they_were_taken_from(prototype: Prototype) -> None:
    met = [each.what for each in figures(prototype) if each.model == pytest.approx(each.published, rel=1e-6)]
    assert met == [each.what for each in figures(prototype) if "set from it" in each.reason]
    assert len(met) == 4


def test_what_holds_by_construction_says_why(prototype: Prototype) -> None:
    for each in figures(prototype):
        assert bool(each.reason) == (each.how is not How.PREDICTED), each.what
    predicted = [each.what for each in figures(prototype) if each.how is How.PREDICTED]
    assert predicted == [
        "overlapped, batch 1792: exposed time, naive over it",
        "NIC, batch 448, 32 nodes: speedup",
        "NIC + BFP, batch 448, 32 nodes: speedup",
        "NIC + BFP, batch 1792, 32 nodes: speedup",
    ]


@pytest.mark.parametrize(
    ("words", "recombined"),
    [
        ("overlapped, batch 1792: speedup over naive", 1 / (0.49 * (1 / 3 + 2 / 3 * 1.11) + 0.51 / 62)),
        ("NIC, batch 448: backward saved", 1 - 1 / 1.11),
        # Of the old step, A is exposed, and B is backward at 1.11 and half as much forward at 1:
        # 0.18 = 0.37 A + B - B / 1.11 gives A and B, and 0.95 A + B - B / 1.11 this.
        ("NIC + BFP, batch 448: part of the step saved", 0.395),
        ("NIC + BFP, batch 448, 6 nodes: speedup", 1 / (1 - 0.395)),
        ("NIC + BFP, batch 1792, 6 nodes: speedup", 1 / 3 + 2 / 3 * 1.11),
    ],
)
def test_they_follow_from_published_figures_alone(
    prototype: Prototype, words: str, recombined: float
) -> None:
    assert find(prototype, words).model == pytest.approx(recombined, rel=0.01)


def test_without_a_fitted_cost_the_speedups_of_32_nodes_are_not_predicted(prototype: Prototype) -> None:
    """Nothing in the model makes the baseline fall behind as its ring grows, which the paper measured."""
    for words in (
        "NIC, batch 448, 32 nodes: speedup",
        "NIC + BFP, batch 448, 32 nodes: speedup",
        "NIC + BFP, batch 1792, 32 nodes: speedup",
    ):
        figure = find(prototype, words)
        assert 1 < figure.model < 0.8 * figure.published


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
        how = f"{each.how}: {each.reason}" if each.reason else each.how
        assert f"| {each.what} | {each.published:g} | {each.model:.3g} | {how} |" in page
    for constant in constants(prototype):
        source = f"omitted; {constant.source}" if constant.omitted else constant.source
        assert f"| {constant.what} | {constant.value} | {source} |" in page
