from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.papers.study.formulas import EXHIBIT, SMALL_NBYTES, own_best_s

HOSTS = EXHIBIT.full.hosts
LARGE = "ring of 2 MB on 2, 4, 8 and 16 hosts"


def rows(*, processor_s: float = 0.0, **times: float) -> list[dict[str, Any]]:
    """Return rows that take so many times what their formulas say, by algorithm and size: 1 by default."""
    found = []
    for cell in EXHIBIT.experiment.cells(EXHIBIT.full):
        row = {**cell, "line_latency_s": 1e-4, "line_nbytes_per_s": 12e6}
        size = "small" if cell["nbytes"] == SMALL_NBYTES else "large"
        seconds = times.get(f"{cell['algorithm']}_{size}", 1.0) * own_best_s(row)
        found.append(row | {"seconds": [seconds], "processor_s": processor_s, "cores": 2})
    return found


def verdicts(found: list[dict[str, Any]]) -> dict[str, Verdict]:
    return {claim.title.partition(":")[0]: claim.verdict for claim in EXHIBIT.claims(found)}


def test_times_of_the_formulas_are_reproduced() -> None:
    found = verdicts(rows(ring_large=1.1))
    assert set(found.values()) == {Verdict.REPRODUCED}
    assert {LARGE, "star of 64 bytes on 2 hosts", "star of 64 bytes on 16 hosts"} <= found.keys()


@pytest.mark.parametrize("times", [1.2, 0.8])
def test_a_time_that_is_not_the_formulas_fails(times: float) -> None:
    found = verdicts(rows(ring_large=times))
    assert [name for name, verdict in found.items() if verdict is not Verdict.REPRODUCED] == [LARGE]
    assert found[LARGE] is Verdict.NOT_REPRODUCED


def test_only_the_processors_own_seconds_explain_a_latency() -> None:
    """The ring's 30 messages of 100 us take 3 ms by the formula, and the cores work for 3 ms as well."""
    name = f"ring of 64 bytes on {HOSTS[-1]} hosts"
    assert verdicts(rows(ring_small=1.9, processor_s=6e-3))[name] is Verdict.EXPLAINED
    assert verdicts(rows(ring_small=1.9, processor_s=1e-3))[name] is Verdict.NOT_REPRODUCED
    assert verdicts(rows(ring_small=0.5, processor_s=6e-3))[name] is Verdict.NOT_REPRODUCED


def test_a_server_whose_workers_send_at_once_exceeds_its_formula() -> None:
    name = f"star of 64 bytes on {HOSTS[-1]} hosts"
    assert verdicts(rows(star_small=0.2))[name] is Verdict.EXCEEDED
    assert verdicts(rows(star_small=0.01))[name] is Verdict.NOT_REPRODUCED


def test_a_removed_row_fails() -> None:
    left = [row for row in rows() if (row["hosts"], row["algorithm"]) != (4, "tree")]
    assert verdicts(left)[LARGE.replace("ring", "tree")] is Verdict.NOT_REPRODUCED
    assert set(verdicts([]).values()) == {Verdict.NOT_REPRODUCED}
