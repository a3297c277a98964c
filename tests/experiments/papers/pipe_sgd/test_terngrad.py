from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.pipe_sgd.terngrad import EXHIBIT, Options


def verdicts(terngrad: float, whole: float = 1.0, compressed: float = 0.0625) -> list[Verdict]:
    times = {("terngrad", 1600): terngrad, ("identity", 1600): whole, ("identity", 100): compressed}
    return [
        claim.verdict
        for claim in EXHIBIT.claims(
            [{"codec": codec, "nbytes": nbytes, "seconds": [each]} for (codec, nbytes), each in times.items()]
        )
    ]


def test_verdicts_follow_from_the_times_on_both_sides() -> None:
    assert verdicts(2.0) == [Verdict.REPRODUCED, Verdict.REPRODUCED]
    assert verdicts(0.5) == [Verdict.NOT_REPRODUCED, Verdict.NOT_REPRODUCED], "a faster codec is another one"
    assert verdicts(5.0) == [Verdict.NOT_REPRODUCED, Verdict.NOT_REPRODUCED]
    assert verdicts(2.0, compressed=0.2) == [Verdict.REPRODUCED, Verdict.NOT_REPRODUCED]


def test_what_it_sends_is_exchanged_without_it_too() -> None:
    found = perform(EXHIBIT.experiment, Options(400_000, 1), quiet=True)
    assert [(row["codec"], row["nbytes"]) for row in found] == [
        ("terngrad", 400_000),
        ("identity", 400_000),
        ("identity", 25_000),
    ]
    assert all(len(row["seconds"]) == 1 and row["seconds"][0] > 0 for row in found)
