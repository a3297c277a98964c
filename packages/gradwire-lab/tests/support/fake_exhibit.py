"""Exhibits without hosts: squares of numbers, each a cell."""

from __future__ import annotations

from gradwire_lab.experiments.claim import Claim, Explanation, Published, at_least, only
from gradwire_lab.experiments.learning import Goal, Trainings
from gradwire_lab.experiments.papers.exhibit import Exhibit
from support.fake_experiment import Options, Squares


def squares(
    place: str = "table I", paper: str = "study", accuracy: float = 0.95, **kind: object
) -> tuple[Exhibit[Options], Squares]:
    """Return an exhibit whose largest square is to be 9, resting on trainings, and what it measures."""
    made = Squares(**kind)  # type: ignore[arg-type]
    experiment = made.experiment()

    def claims(rows: object) -> list[Claim]:
        largest = max(row["square"] for row in rows)  # type: ignore[attr-defined]
        published = Published(place, 9.0, "the paper prints 8.")
        otherwise = Explanation("squares are small here.", at_least(4))
        learned = Trainings("squares", [accuracy] * 3, [accuracy] * 3, Goal(0.1, 0.95, "table I"))
        return [
            Claim(
                "largest",
                only(largest),
                at_least(9),
                unit="",
                published=published,
                otherwise=otherwise,
                rests_on=[learned],
            )
        ]

    quick, full = Options((3, 1, 2)), Options((4, 3, 1, 2))
    return Exhibit(paper, place, experiment, quick, full, claims, "smaller numbers.", (3, 4)), made
