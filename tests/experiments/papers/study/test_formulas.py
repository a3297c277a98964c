from __future__ import annotations

from gradwire.experiments import perform
from gradwire.experiments.papers.study.formulas import EXHIBIT, FORMULAS, Options


def rows(**seconds: float) -> list[dict[str, object]]:
    return [
        {"algorithm": name, "servers": 4, "seconds": [seconds.get(name.split()[0], 1.0)], "formula_s": 1.0}
        for name in FORMULAS
    ]


def test_a_time_that_is_not_the_formulas_fails() -> None:
    assert all(claim.is_met for claim in EXHIBIT.claims(rows()))
    failed = [claim.text for claim in EXHIBIT.claims(rows(ring=1.2, tree=1.1)) if not claim.is_met]
    assert failed == ["ring: measured time over the formula's"]
    assert not any(claim.is_met for claim in EXHIBIT.claims([]))


def test_exchanges_are_timed_beside_their_formula() -> None:
    found = perform(EXHIBIT.experiment, Options((2,), 100_000, 1), quiet=True)
    # 2 x 2 x (0.1 MB / 10 MB/s + 2 ms); 2 x 12 ms; twice 50 kB and 2 ms.
    assert [round(row["formula_s"], 6) for row in found] == [0.048, 0.024, 0.014, 0.014]
    assert all(len(row["seconds"]) == 1 and row["seconds"][0] >= 0.9 * row["formula_s"] for row in found)
