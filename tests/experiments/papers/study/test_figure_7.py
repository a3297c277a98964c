from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.study.figure_7 import EXHIBIT, Options


def line(latency_s: float, large: float) -> list[dict[str, object]]:
    points = [(1, latency_s, 1e3), (1 << 20, 0.01, large), (1 << 22, 0.04, 120e6)]
    return [
        {
            "nominal_nbytes_per_s": 125e6,
            "points": [{"nbytes": n, "time_s": s, "nbytes_per_s": r} for n, s, r in points],
        }
    ]


def verdicts(rows: list[dict[str, object]]) -> list[Verdict]:
    return [claim.verdict for claim in EXHIBIT.claims(rows)]


def test_verdicts_follow_from_the_points() -> None:
    good, explained, failed = Verdict.REPRODUCED, Verdict.EXPLAINED, Verdict.NOT_REPRODUCED
    assert verdicts(line(4e-6, 115e6)) == [good, good, good]
    assert verdicts(line(6e-4, 100e6)) == [good, failed, explained]
    assert verdicts(line(1e-2, 115e6)) == [good, good, failed]
    slow = line(4e-6, 115e6)
    slow[0]["nominal_nbytes_per_s"] = 1e9
    assert verdicts(slow) == [failed, good, good]


def test_a_line_is_measured_by_message_size() -> None:
    (row,) = perform(EXHIBIT.experiment, Options((0, 16), 0.02), quiet=True)
    assert [point["nbytes"] for point in row["points"]] == [1, 1 << 16]
    assert row["points"][0]["time_s"] > 100e-6
