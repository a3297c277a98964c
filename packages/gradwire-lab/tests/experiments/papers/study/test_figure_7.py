from __future__ import annotations

from typing import Any

import pytest

from gradwire_lab.experiments.claim import Verdict
from gradwire_lab.experiments.hosts import measure_cells
from gradwire_lab.experiments.papers.study import figure_7
from gradwire_lab.experiments.papers.study.figure_7 import EXHIBIT
from support.beds import needs_namespaces

GOOD, BETTER, EXPLAINED, FAILED = (
    Verdict.REPRODUCED,
    Verdict.EXCEEDED,
    Verdict.EXPLAINED,
    Verdict.NOT_REPRODUCED,
)
MORE = {"powers": [0, 16], "time_s": 0.02}
PLATEAU, LARGE, LATENCY, SOCKETS, MODEL = range(5)


def verdicts(
    latency_s: float = 2.5e-6,
    plateau: float = 0.85 * 125e6,
    large: float = 1.0,
    small: float = 1.0,
    socket_s: float = 2e-6,
    rate: str = "1gbit",
) -> list[Verdict]:
    """Return the verdicts of a line where a message of 64 KiB takes ``small`` times the model's time."""
    sizes = {1: 1.0, 1 << 16: small, 1 << 20: 1.0, 1 << 24: 1.0}
    points = [
        {"nbytes": n, "time_s": factor * (latency_s + (n > 1) * n / plateau), "nbytes_per_s": plateau}
        for n, factor in sizes.items()
    ]
    points[2]["nbytes_per_s"] *= large
    row: dict[str, Any] = {"hosts": 2, "rate": rate, "points": points, "socket_s": socket_s}
    return [claim.verdict for claim in EXHIBIT.claims([row])]


def test_the_published_line_is_reproduced() -> None:
    assert verdicts() == [GOOD] * 5
    assert verdicts(rate="unlimited") == [GOOD] * 4, "no vendor claims a rate"


def test_a_plateau_is_compared_from_both_sides() -> None:
    assert verdicts(plateau=0.95 * 125e6)[PLATEAU] is BETTER
    assert verdicts(plateau=0.99 * 125e6)[PLATEAU] is FAILED, "more than frames have room for"
    assert verdicts(plateau=0.80 * 125e6)[PLATEAU] is FAILED
    assert verdicts(large=0.9)[LARGE] is FAILED


def test_only_a_measured_latency_of_tcp_explains_that_of_a_link() -> None:
    assert verdicts(latency_s=60e-6, socket_s=50e-6)[LATENCY : SOCKETS + 1] == [EXPLAINED, GOOD]
    assert verdicts(latency_s=60e-6, socket_s=5e-6)[LATENCY : SOCKETS + 1] == [FAILED, FAILED]
    assert verdicts(latency_s=60e-6, socket_s=61e-6)[LATENCY] is FAILED, "faster than its own connection"


def test_a_burst_explains_what_is_faster_than_the_model_where_there_is_one() -> None:
    assert verdicts(small=0.55)[MODEL] is EXPLAINED
    assert verdicts(small=0.3)[MODEL] is FAILED
    assert verdicts(small=1.3)[MODEL] is FAILED
    assert verdicts(small=0.55, rate="unlimited")[-1] is FAILED


@pytest.mark.processes
@needs_namespaces
def test_a_line_between_hosts_is_measured_by_message_size() -> None:
    rows: list[Any] = []
    measure_cells(figure_7.__name__, EXHIBIT.experiment.cells(EXHIBIT.quick)[:1], rows.append, MORE)
    (row,) = rows
    assert row["rate"] == "1gbit"
    assert [point["nbytes"] for point in row["points"]] == [1, 1 << 16]
    assert 0 < row["socket_s"] < row["points"][0]["time_s"]
