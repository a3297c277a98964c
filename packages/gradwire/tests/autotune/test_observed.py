from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.autotune import steps as module
from gradwire.autotune.steps import Observed, RecordedSteps, StepTime, StepTimes, longest, observe
from gradwire.errors import DataError
from gradwire.timing.line import Line
from support.observations import observed
from support.ranks import run_ranks


def test_what_was_observed_survives_a_file(tmp_path: Path) -> None:
    for seen in (observed(), observed(line=None, gradients=(), gathers=(3, 4))):
        seen.save(tmp_path / "seen.pt")
        found = Observed.load(tmp_path / "seen.pt")
        assert found.values() == seen.values()
        assert len(found.gradients) == len(seen.gradients)
        assert all(map(torch.equal, found.gradients, seen.gradients))
        assert list(tmp_path.iterdir()) == [tmp_path / "seen.pt"]


@pytest.mark.parametrize("content", [b"", b"nothing", None])
def test_a_file_with_something_else_is_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "seen.pt"
    if content is None:
        torch.save({"line": None, "gradients": []}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"expected a readable file .*seen\.pt: |for the observation .*seen\.pt, got no field 'kind'",
    ):
        Observed.load(path)


def test_values_are_json_without_the_gradients() -> None:
    found = json.loads(json.dumps(observed().values()))
    assert "gradients" not in found
    assert found["step_s"] == pytest.approx(0.055)
    assert found["line"]["nbytes_per_s"] == 1.25e9


def test_the_slowest_rank_counts_and_the_rest_of_the_longest_step_is_waiting() -> None:
    assert longest([(3.0, 1.0, 0.5), (2.0, 2.5, 2.0)]) == StepTime(3.0, 2.5, 1.0)


@pytest.mark.parametrize("line", [None, Line(1e-4, 1e6)])
def test_all_ranks_find_the_same(line: Line | None) -> None:
    def run(link: Link) -> Observed:
        now = 0.0
        times = StepTimes(lambda: now)
        for _ in range(3):
            times.handed_over(1)
            now += 0.5
            times.handed_over(1)
            now += 0.25
            times.end()
            now += 0.5 + link.rank
        steps = RecordedSteps("DDP", torch.device("cpu"), times, (2, 3), (4,), ())
        return observe(Exchange(link, Plan()), steps, 20.0, line, attached="fp8")

    rows = iter([[1.0, 2.0], [1.0, 2.0], [1.0, 3.0]])  # two ranks on one machine, one on another
    with patch.object(module, "_machine", lambda: next(rows)):
        found = run_ranks(3, run)
    assert found[0] == found[1] == found[2]
    assert (found[0].compute_s, found[0].backward_s, found[0].exposed_s) == (3.0, 1.0, 0.25)
    assert (found[0].world, found[0].steps, found[0].attached, found[0].scatter) == (3, 2, "fp8", 0.0)
    assert (found[0].kind, found[0].device) == ("DDP", "cpu")
    assert (found[0].counts, found[0].gathers) == ((2, 3), (4,))
    assert found[0].ranks_per_machine in (1, 2)
    assert found[0].line == line or line is None
    assert isinstance(found[0].line, Line)


def test_a_machine_is_told_exactly() -> None:
    found = module._machine()
    assert len(found) == 4
    assert torch.tensor(found, dtype=torch.float32).tolist() == found
