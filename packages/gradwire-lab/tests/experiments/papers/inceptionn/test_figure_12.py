from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Basis, Claim, Verdict
from gradwire_lab.experiments.papers.exhibit import OriginKind
from gradwire_lab.experiments.papers.inceptionn import figure_12
from gradwire_lab.experiments.papers.inceptionn.figure_12 import (
    COMPRESSED,
    EXHIBIT,
    INC,
    PACE,
    TREE,
    WA,
    WAYS,
    InceptionnFigure12Options,
    messages,
    most_saved,
)

PUBLISHED = {WA: 1.0, "WA+C": 0.77, TREE: 0.7, INC: 0.6} | dict.fromkeys(COMPRESSED, 0.41)
"""Steps of which WA communicates for three quarters, and the others as published."""


def rows(accuracy: float = 0.95, **steps: float) -> list[dict[str, Any]]:
    """``accuracy`` is that of the trainings with the codec."""
    return [
        {
            "run": name,
            "data": "digits",
            "seed": seed,
            "step_s": [seconds] * 3,
            "compute_s": [0.25] * 3,
            "accuracy": accuracy if WAYS[name].exact != name else 0.95,
        }
        for seed in range(3)
        for name, seconds in (PUBLISHED | steps).items()
    ]


def by_text(found: Sequence[Mapping[str, Any]]) -> dict[str, Claim]:
    return {claim.text: claim for claim in EXHIBIT.claims(found)}


def verdicts(found: Sequence[Mapping[str, Any]]) -> set[Verdict]:
    return {claim.verdict for claim in EXHIBIT.claims(found)}


def test_the_published_times_are_reproduced_and_the_share_is_calibrated() -> None:
    claims = EXHIBIT.claims(rows())
    assert [claim.verdict for claim in claims] == [Verdict.CALIBRATED, *[Verdict.REPRODUCED] * 17]
    assert [round(claim.mean or 0, 3) for claim in claims[:8]] == [
        *(0.75, 1.429, 0.533, 0.4),
        *(0.307, 0.787, 0.543, 2.439),
    ]


def test_rules_have_two_sides_and_more_than_the_bytes_explain_is_not_reproduced() -> None:
    text = "speed-up of INC+C"
    for step, wanted in (
        (0.60, Verdict.NOT_REPRODUCED),
        (0.41, Verdict.REPRODUCED),
        (0.28, Verdict.EXCEEDED),
        (0.15, Verdict.NOT_REPRODUCED),
    ):
        claim = by_text(rows(**{"INC+C": step}))[text]
        assert claim.verdict is wanted, step
        assert ("bytes over the links' rate" in claim.explained) is (wanted is Verdict.EXCEEDED)
    assert by_text(rows(**{WA: 3.0}))["communication saved by the ring"].verdict is Verdict.NOT_REPRODUCED


def test_what_bytes_alone_save_follows_from_the_collectives() -> None:
    """Four gradients and three weights pass the aggregator's link, and three halves of one a ring's."""
    assert messages(WA) == 7
    assert messages(INC) == 1.5
    assert messages("WA+C") == pytest.approx(4 / 11.6 + 3)
    assert most_saved(INC, WA) == pytest.approx(1 - 0.9 * 1.5 / 7)
    assert most_saved(COMPRESSED[2], INC) == most_saved(COMPRESSED[0], INC) == pytest.approx(1 - 0.9 / 11.6)


def test_times_of_dead_trainings_count_for_nothing() -> None:
    dead = rows(accuracy=0.15)
    alive = [each for each in EXHIBIT.claims(dead) if each.verdict is not Verdict.DID_NOT_LEARN]
    assert [each.text for each in alive if "accuracy" not in each.text] == [
        "share of WA's time in communication, for which the links' rate was set",
        "WA's time over the time with a tree of aggregators",
        "communication saved by the ring",
        "time saved by the ring",
    ]
    assert {each.verdict for each in alive if "accuracy" in each.text} == {Verdict.NOT_REPRODUCED}
    assert verdicts([row | {"accuracy": 0.15} for row in dead]) == {Verdict.DID_NOT_LEARN}
    assert verdicts(rows()[: len(WAYS)]) == {Verdict.TOO_SHORT}


@pytest.mark.parametrize("run", WAYS)
def test_a_comparator_that_is_removed_turns_its_rows(run: str) -> None:
    claims = EXHIBIT.claims([row for row in rows() if row["run"] != run])
    turned = [claim for claim in claims if any(each.name == run for each in claim.rests_on)]
    assert turned
    assert {claim.verdict for claim in turned} == {Verdict.DID_NOT_LEARN}
    assert len(claims) == len(EXHIBIT.claims(rows())), "no row goes away with it"


def test_the_share_that_sets_the_rate_is_no_result() -> None:
    assert EXHIBIT.origins["SHARE"].source is OriginKind.CALIBRATED
    (share,) = [claim for claim in EXHIBIT.claims(rows()) if "table II" in str(claim.published)]
    assert share.basis is Basis.CALIBRATED


def test_the_rate_comes_from_a_measured_step_and_is_every_run_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line takes 6e7 bits for WA's exchange, and computation 0.1 s."""
    measured: list[dict[str, Any]] = []

    def measure(module: str, cells: list[dict[str, Any]], report: Any) -> None:
        assert module == figure_12.ON_HOSTS
        measured.extend(cells)
        for cell in cells:
            step_s = 0.1 + 6e7 / float(cell["rate"].removesuffix("bit"))
            report({**cell, "step_s": [step_s], "compute_s": [0.1], "accuracy": 0.9, "nbytes": 1})

    monkeypatch.setattr(figure_12, "measure_cells", measure)
    found = perform(
        EXHIBIT.experiment, InceptionnFigure12Options("HDC, 3 layers, He", 8, (1, 2), 3, 2), quiet=True
    )
    share = by_text(found)["share of WA's time in communication, for which the links' rate was set"]
    assert share.mean == pytest.approx((0.709 + 0.802) / 2)
    assert [each["rate"] for each in measured[:1]] == ["300000000bit"]
    assert {each["rate"] for each in measured[2:]} == {found[0]["rate"]}
    assert found[0]["run"] == PACE
    assert [each["hosts"] for each in measured[::2]] == [5, 5, 5, 4, 4, 4, 4, 4]
    assert {each["nic"] for each in measured} == {"", "inceptionn:2^-10 --no-merge"}


def test_a_run_that_goes_on_keeps_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[dict[str, Any]] = []
    monkeypatch.setattr(figure_12, "measure_cells", lambda _module, cells, _report: measured.extend(cells))
    options = InceptionnFigure12Options("HDC, 3 layers, He", 8, (1,), 3, 2)
    first, *others = EXHIBIT.experiment.cells(options)
    EXHIBIT.experiment.run(options, others[2:], [{**first, "rate": "5bit"}], lambda _row: None)  # type: ignore[arg-type]
    assert {each["rate"] for each in measured} == {"5bit"}
