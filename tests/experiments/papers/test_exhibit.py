from __future__ import annotations

from dataclasses import dataclass

from gradwire.experiments import perform
from gradwire.experiments.claim import Claim, at_least, only
from gradwire.experiments.papers.exhibit import each, exhibit, row_of


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


def test_its_claims_come_from_the_rows() -> None:
    assert EXHIBIT.claims([{"number": 3, "square": 9}])[0].is_met
    assert not EXHIBIT.claims([{"number": 3, "square": 8}])[0].is_met
