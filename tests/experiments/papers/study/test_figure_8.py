from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.claim import Verdict
from gradwire.experiments.papers.study.figure_8 import EXHIBIT, Options


def test_more_than_twice_the_best_fails() -> None:
    rows = [{"servers": servers, "seconds": [1.5, 9.0, 1.4], "best_s": 1.0} for servers in (4, 16)]
    assert [claim.verdict for claim in EXHIBIT.claims(rows)] == [Verdict.REPRODUCED] * 2
    rows[0]["seconds"] = [2.5]
    assert [claim.is_met for claim in EXHIBIT.claims(rows)] == [True, False]
    rows[1]["seconds"] = [2.1]
    assert [claim.is_met for claim in EXHIBIT.claims(rows)] == [False, False]


def test_sizes_and_rates_are_scaled() -> None:
    (row,) = perform(EXHIBIT.experiment, Options((2,), 200, 240, 1), quiet=True)
    assert row["nbytes"] == 265_000
    # 265 kB at 25 MB/s and twice 2.5 us.
    assert round(row["best_s"], 6) == 0.010605
    assert row["seconds"][0] >= 0.0106
    assert round(row["published_best_s"], 6) == 0.008838
