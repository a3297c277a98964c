from __future__ import annotations

from gradwire_lab.experiments import perform
from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.study.table_1 import EXHIBIT, StudyTable1Options


def test_schedules_have_the_published_terms_and_altered_ones_fail() -> None:
    rows = [dict(row) for row in perform(EXHIBIT.experiment, EXHIBIT.quick, quiet=True)]
    assert {claim.verdict for claim in EXHIBIT.claims(rows)} == {Verdict.MODELLED}
    four = perform(EXHIBIT.experiment, StudyTable1Options((4,)), quiet=True)
    found = [(row["algorithm"], row["bytes"], row["messages"]) for row in four]
    assert found == [("parameter server", 8, 8), ("tree", 4, 4), ("ring", 1.5, 6), ("butterfly", 1.5, 4)]
    altered = [row | {"messages": row["messages"] + (row["algorithm"] == "ring")} for row in rows]
    failed = [claim.text for claim in EXHIBIT.claims(altered) if not claim.is_met]
    assert failed == ["ring, 16 servers: latency term"]
