"""All-reduces on a small testbed, and how far they are from the formulas' seconds."""

from __future__ import annotations

from typing import Any

import pytest

from gradwire.experiments.hosts.network import measure_cells
from gradwire.experiments.papers.study import on_hosts
from gradwire.experiments.papers.study.on_hosts import FORMULAS, best_s, over_best, over_own, own_best_s, rate
from support.beds import needs_namespaces

LINE = {"line_latency_s": 0.5, "line_nbytes_per_s": 10.0}


def row(algorithm: str, *seconds: float) -> dict[str, Any]:
    return {"algorithm": algorithm, "hosts": 4, "nbytes": 40, "seconds": [*seconds], **LINE}


def test_times_are_compared_with_the_formulas_of_the_measured_line() -> None:
    # 6 x (4 + 0.5); 4 x (4 + 0.5); 6 x (1 + 0.5); 2 x (2 + 1) + 2 x 2 x 0.5
    assert [own_best_s(row(name)) for name in FORMULAS] == pytest.approx([27, 18, 9, 8])
    assert [best_s(row(name)) for name in FORMULAS] == pytest.approx([8] * 4)
    assert over_own(row("tree", 100.0, 36.0, 1.0)) == pytest.approx(2)
    assert over_best(row("tree", 36.0)) == pytest.approx(4.5)


def test_all_hosts_share_a_rate() -> None:
    assert [rate(hosts, 1600) for hosts in (2, 16)] == ["800mbit", "100mbit"]


@pytest.mark.processes
@needs_namespaces
def test_hosts_exchange_and_tell_what_it_took() -> None:
    found: list[Any] = []
    cells = [
        {"hosts": 2, "rate": "1gbit", "nbytes": 400_000, "algorithm": name} for name in ("star", "butterfly")
    ]
    measure_cells(on_hosts.__name__, cells, found.append, {"most": 2, "budget_s": 0.5})
    assert [each["algorithm"] for each in found] == ["star", "butterfly"]
    for each in found:
        assert 1 <= len(each["seconds"]) <= 2
        assert min(each["seconds"]) >= 0.5 * own_best_s(each)
        assert each["processor_s"] > 0
        assert 1e7 < each["line_nbytes_per_s"] < 1.5e8
        assert each["cores"] >= 1
