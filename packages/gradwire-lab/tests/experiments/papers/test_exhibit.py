from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from gradwire.errors import JobError
from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Basis, Claim, Published, at_least, only
from gradwire_lab.experiments.papers.exhibit import Origin, calibrated, each, exhibit, paper, row_of


@dataclass(frozen=True)
class Options:
    """The numbers."""

    numbers: tuple[int, ...]


EXHIBIT = exhibit(
    "pipe-sgd",
    "Figure 4 (a)",
    "what are the squares?",
    cells=lambda options: [{"number": number} for number in options.numbers],
    run=each(lambda _options, cell: {"square": cell["number"] ** 2}),
    claims=lambda rows: [Claim("of 3", only(row_of(rows, number=3)["square"]), at_least(9), unit="")],
    quick=Options((3,)),
    full=Options((2, 3)),
    scaling="none.",
    seconds=(1, 2),
)


def test_its_experiment_measures_cell_by_cell() -> None:
    assert EXHIBIT.name == "pipe-sgd-figure-4-a"
    assert EXHIBIT.experiment.schema == "gradwire.experiment-pipe-sgd-figure-4-a/1"
    rows = perform(EXHIBIT.experiment, EXHIBIT.options(full=True), quiet=True)
    assert rows == [{"number": 2, "square": 4}, {"number": 3, "square": 9}]
    assert perform(EXHIBIT.experiment, EXHIBIT.options(full=False), quiet=True) == rows[1:]


@pytest.mark.parametrize(
    ("origin", "basis"),
    [
        (calibrated("table II, AlexNet's row"), Basis.CALIBRATED),
        (calibrated("table III"), Basis.MEASURED),
        (paper("table II"), Basis.MEASURED),
    ],
)
def test_a_constant_that_was_fitted_turns_the_verdict(origin: Origin, basis: Basis) -> None:
    fitted = Claim("of 3", only(9), at_least(9), unit="", published=Published("table II", 9, is_limit=True))
    made = dataclasses.replace(EXHIBIT, claims=lambda _rows: [fitted], origins={"numbers": origin})
    (claim,) = made.judge([])
    assert claim.basis is basis
    assert claim.verdict.value == ("calibrated" if basis is Basis.CALIBRATED else "reproduced")


@pytest.mark.parametrize(
    ("data", "system", "title"),
    [
        (["digits", "digits"], "", "of 3 on digits"),
        (["digits"], "at 2^-6", "of 3 at 2^-6, on digits"),
        (["digits"], "on digits, at 2^-6", "of 3 on digits, at 2^-6"),
        (["digits", "mnist"], "", "of 3"),
        (["mnist"], "", "of 3"),
        ([], "", "of 3"),
    ],
)
def test_figures_of_small_digits_say_so(data: list[str], system: str, title: str) -> None:
    claim = Claim("of 3", only(9), at_least(9), system, unit="")
    made = dataclasses.replace(EXHIBIT, claims=lambda _rows: [claim])
    assert [each.title for each in made.judge([{"data": each} for each in data] + [{}])] == [title]


def test_a_short_run_names_what_it_has_less_of() -> None:
    assert EXHIBIT.shortened({"numbers": [3]}) == {"numbers": "3 instead of 2, 3"}
    assert EXHIBIT.shortened({"numbers": [2, 3]}) == {}


def test_rows_must_have_all_words_of_the_cells() -> None:
    cells = [{"method": method, "data": "digits", "seed": 1} for method in ("ring", "star")]
    made = dataclasses.replace(
        EXHIBIT, experiment=dataclasses.replace(EXHIBIT.experiment, cells=lambda _options: cells)
    )
    rows = [{**cell, "data": "mnist"} for cell in cells]
    made.check_rows({"numbers": [3]}, rows)
    with pytest.raises(JobError, match="lacks rows: expected some with method star, got none; measure again"):
        made.check_rows({"numbers": [3]}, rows[:1])
    made.check_rows({"numbers": [7]}, rows[:1])  # options of an older gradwire have cells of their own


def test_there_is_one_row_for_each_cell_and_none_twice() -> None:
    """Seeds and lines have no words: a bad one that is removed, or covered by a copy, is missed."""
    cells = [{"method": "ring", "data": "digits", "seed": seed} for seed in (1, 2, 3, 4)]
    made = dataclasses.replace(
        EXHIBIT, experiment=dataclasses.replace(EXHIBIT.experiment, cells=lambda _options: cells)
    )
    rows = [{**cell, "data": "mnist", "accuracy": 0.9} for cell in cells]
    made.check_rows({"numbers": [3]}, rows[::-1])
    for left, found in ((rows[:3], "got 3 rows, 3"), ([*rows[:3], rows[0]], "got 4 rows, 3")):
        with pytest.raises(
            JobError, match=f"lacks rows: expected 4 different rows, {found} of them different"
        ):
            made.check_rows({"numbers": [3]}, left)


def test_its_claims_come_from_the_rows() -> None:
    assert EXHIBIT.claims([{"number": 3, "square": 9}])[0].is_met
    assert not EXHIBIT.claims([{"number": 3, "square": 8}])[0].is_met


def test_a_row_that_is_missing_is_named() -> None:
    rows: list[dict[str, object]] = [{"number": 3, "square": 9}, {"word": "none"}]
    assert row_of(rows, number=3) is rows[0]
    with pytest.raises(LookupError, match="expected a row with number 4, got none"):
        row_of(rows, number=4)
