from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.study.figure_8 import EXHIBIT
from gradwire_lab.experiments.papers.study.formulas import own_best_s

BUTTERFLY = "butterfly of 53 MB on 16 hosts, over the best"


def rows(hosts: tuple[int, ...] = (2, 4, 16), **times: float) -> list[dict[str, Any]]:
    """Return rows that take so many times what their formulas say: 1.1 by default."""
    found = []
    for cell in EXHIBIT.experiment.cells(EXHIBIT.full):
        if cell["hosts"] in hosts:
            row = {**cell, "line_latency_s": 1e-4, "line_nbytes_per_s": 12e6}
            best_s = own_best_s(row)
            found.append(
                row
                | {"seconds": [factor * best_s for factor in (9.0, times.get(cell["algorithm"], 1.1), 0.1)]}
            )
    return found


def verdicts(found: list[dict[str, Any]]) -> dict[str, Verdict]:
    return {claim.title: claim.verdict for claim in EXHIBIT.claims(found)}


def failed(found: list[dict[str, Any]]) -> list[str]:
    return [title for title, verdict in verdicts(found).items() if verdict is Verdict.NOT_REPRODUCED]


def test_all_four_algorithms_are_measured_on_2_to_16_hosts_with_the_whole_gradient() -> None:
    cells = EXHIBIT.experiment.cells(EXHIBIT.full)
    assert {cell["nbytes"] for cell in cells} == {53_000_000}
    assert sorted({(cell["hosts"], cell["algorithm"]) for cell in cells}) == sorted(
        (hosts, name) for hosts in (2, 4, 8, 16) for name in ("ring", "tree", "butterfly", "star")
    )


def test_times_near_their_formulas_are_reproduced() -> None:
    assert set(verdicts(rows()).values()) == {Verdict.REPRODUCED}


@pytest.mark.parametrize("times", [2.1, 0.9])
def test_a_butterfly_past_twice_the_best_or_faster_than_possible_fails(times: float) -> None:
    assert {BUTTERFLY, "butterfly on 2, 4 and 16 hosts: time over its own best"} <= {
        *failed(rows(butterfly=times))
    }


def test_a_faster_ring_refutes_the_butterfly() -> None:
    assert failed(rows(butterfly=1.3, ring=1.1)) == ["butterfly on 2, 4 and 16 hosts: time over the ring's"]


def test_a_star_whose_segments_overlap_exceeds_its_formula_but_nothing_exceeds_the_line() -> None:
    own = "star on 2, 4 and 16 hosts: time over its own best"
    assert verdicts(rows(star=0.8))[own] is Verdict.EXCEEDED
    assert verdicts(rows(star=0.45))[own] is Verdict.NOT_REPRODUCED
    assert failed(rows(ring=0.9))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "butterfly", "star"])
def test_a_removed_comparator_fails(algorithm: str) -> None:
    """All of its rows, or that of one number of hosts."""
    for missing in ((2, 4, 16), (4,)):
        left = [row for row in rows() if row["algorithm"] != algorithm or row["hosts"] not in missing]
        assert f"{algorithm} on 2, 4 and 16 hosts: time over its own best" in failed(left)


def test_fewer_hosts_are_no_verdict_on_16() -> None:
    assert verdicts(rows((2, 4)))[BUTTERFLY] is Verdict.NOT_RUN
    assert failed([]), "nothing measured is nothing reproduced"
