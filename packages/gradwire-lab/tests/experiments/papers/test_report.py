from __future__ import annotations

from gradwire.tables import WIDTH, lines
from gradwire_lab.experiments.claim import Claim, Published, at_least
from gradwire_lab.experiments.papers.reproduce import Judged, in_words, report
from support.fake_exhibit import squares

TITLES = {"pipe-sgd": "a pipeline", "study": "a study"}


def judged(largest: int) -> Judged:
    exhibit, _ = squares()
    return Judged(exhibit, exhibit.claims([{"square": largest}]))


def test_verdicts_come_first_and_figures_stand_beside_each_other() -> None:
    each = squares(paper="pipe-sgd")[0]
    ratios = Claim(
        "ratio", {"a": 2.0, "b": 4.0}, at_least(1), of_each=True, published=Published("figure 2", 3)
    )
    printed = lines(*report([judged(9), Judged(each, [ratios])], TITLES))
    assert printed[0] == "2 reproduced"
    assert max(map(len, printed)) <= WIDTH
    rows = [line.split() for line in printed]
    assert ["reproduced", "table", "I", "largest", "9", "9", ">=", "9"] in rows
    place = next(number for number, row in enumerate(rows) if row[:1] == ["reproduced"])
    assert rows[place] == ["reproduced", "figure", "2", "ratio", "300.0%", "200.0%", ">=", "100.0%"]
    assert rows[place + 1] == ["400.0%"]
    text = " ".join(printed)
    assert text.index("pipe-sgd: a pipeline") < text.index("study: a study")
    assert "Erratum of table I: the paper prints 8." in text
    assert "table I, here: smaller numbers." in text
    assert "explained" not in text


BUSY = "Other programs took 9.0 % of the cores (median of 3 rows; 20.0 % at most)."


def test_a_short_run_lossy_warnings_and_a_busy_machine_are_told() -> None:
    exhibit = squares()[0]
    warned = [f"rank {rank}: fp8 loses 99.0%" for rank in range(5)]
    claims = exhibit.claims([{"square": 9}])
    short = Judged(exhibit, claims, shortened={"steps": "168 instead of 600"}, lossy=warned, others=BUSY)
    text = " ".join(" ".join(lines(*report([short], TITLES))).split())
    assert "largest (short: steps)" in text
    assert "table I is too short for a final verdict: steps 168 instead of 600." in text
    assert "table I: Lossy warnings during the measurement: rank 0: fp8 loses 99.0%; rank 1: fp8" in text
    assert text.count("loses") == 3
    assert "; and 2 more in the record." in text
    assert f"table I: {BUSY}" in text
    whole = " ".join(lines(*report([Judged(exhibit, claims)], TITLES)))
    assert "short" not in whole
    assert "Lossy" not in whole
    assert "Other programs" not in whole


def test_reasons_and_failures_are_told() -> None:
    failed = Judged(squares("table II")[0], failure="a host is gone")
    assert in_words([judged(4), judged(3), failed]) == "1 not reproduced, 1 explained, 1 not run"
    printed = lines(*report([judged(4), judged(3), failed], TITLES))
    assert printed[0] == "1 not reproduced, 1 explained, 1 not run"
    assert "largest: explained, because squares are small here." in printed
    assert "table II was not run: a host is gone" in printed
    rows = [line.split()[:3] for line in printed]
    assert ["explained", "table", "I"] in rows
    assert ["not", "run", "table"] in rows
    assert ["not", "reproduced", "table"] in rows
