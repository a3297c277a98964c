"""How far measured exchanges are from the formulas' seconds."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.papers.study.formulas import (
    FORMULAS,
    best_s,
    in_words,
    over_best,
    over_own,
    own_best_s,
)

LINE = {"line_latency_s": 0.5, "line_nbytes_per_s": 10.0}


def row(algorithm: str, *seconds: float) -> dict[str, Any]:
    return {"algorithm": algorithm, "hosts": 4, "nbytes": 40, "seconds": [*seconds], **LINE}


def test_times_are_compared_with_the_formulas_of_the_measured_line() -> None:
    # 6 x (4 + 0.5); 4 x (4 + 0.5); 6 x (1 + 0.5); 2 x (2 + 1) + 2 x 2 x 0.5
    assert [own_best_s(row(name)) for name in FORMULAS] == pytest.approx([27, 18, 9, 8])
    assert [best_s(row(name)) for name in FORMULAS] == pytest.approx([8] * 4)
    assert over_own(row("tree", 100.0, 36.0, 1.0)) == pytest.approx(2)
    assert over_best(row("tree", 36.0)) == pytest.approx(4.5)


def test_numbers_of_hosts_are_a_list() -> None:
    assert in_words([2, 4, 16]) == "2, 4 and 16"
    assert in_words([]) == ""
