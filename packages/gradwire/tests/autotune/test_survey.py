from __future__ import annotations

import pytest
import torch

from gradwire import Auto
from gradwire.autotune import survey as survey_module
from gradwire.autotune.contract import Contract
from gradwire.autotune.settings import BUCKETS
from gradwire.autotune.steps import StepTime
from gradwire.autotune.survey import Survey
from gradwire.timing.pairs import HostMap

ROWS = [(1.0, 0.5, 0.4), (3.0, 1.5, 0.2), (2.0, 1.0, 0.1), (2.5, 1.5, 0.3)]
"""Computation, backward, and waiting of four ranks, two on each machine."""


def surveyed(machines: tuple[bytes, ...]) -> Survey:
    survey = Survey(Auto(), BUCKETS, Contract(0.2, 4), 0, 4, 1.0)
    vars(survey)["_hosts"] = HostMap(machines, machines, (b"p",) * 4)
    return survey


@pytest.mark.parametrize(
    ("cores", "threads", "wanted"),
    [
        (1, 1, StepTime(2.25, 1.25, 0.2)),  # both machines take turns: means of 2 and 2.25 s
        (2, 2, StepTime(2.25, 1.25, 0.2)),
        (2, 1, StepTime(3.0, 1.5, 0.1)),  # every rank has a core
    ],
)
def test_ranks_that_share_cores_have_one_time_of_computation(
    cores: int, threads: int, wanted: StepTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_module, "cores", lambda: cores)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    survey = surveyed((b"a", b"a", b"b", b"b"))
    assert survey.sharing == 2 * threads / cores
    found = survey._slowest(ROWS)
    for name in ("compute_s", "backward_s", "exposed_s"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name))


def test_before_the_hosts_are_known_the_slowest_rank_counts() -> None:
    survey = Survey(Auto(), BUCKETS, Contract(0.2, 4), 0, 4, 1.0)
    assert survey.sharing is None
    assert survey._slowest(ROWS) == StepTime(3.0, 1.5, 0.1)
