from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from gradwire import Exchange, Link, Plan
from gradwire.autotune import observed as module
from gradwire.autotune.observed import Observed, Together, compare, slowest
from gradwire.autotune.step_times import StepTime
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
        match=r"cannot be read from .*seen\.pt: |for the observation .*seen\.pt, got no field 'kind'",
    ):
        Observed.load(path)


def test_values_are_json_without_the_gradients() -> None:
    found = json.loads(json.dumps(observed().values()))
    assert "gradients" not in found
    assert found["step_s"] == pytest.approx(0.055)
    assert found["line"]["nbytes_per_s"] == 1.25e9


def test_the_slowest_rank_counts_and_the_rest_of_the_longest_step_is_waiting() -> None:
    assert slowest([(3.0, 1.0, 0.5), (2.0, 2.5, 2.0)]) == StepTime(3.0, 2.5, 1.0)


@pytest.mark.parametrize("with_line", [True, False])
def test_all_ranks_find_the_same(with_line: bool) -> None:
    def run(link: Link) -> Together:
        times = StepTime(1.0 + link.rank, 0.5, 0.25)
        return compare(Exchange(link, Plan()), times, 20.0, with_line=with_line)

    rows = iter([[1.0, 2.0], [1.0, 2.0], [1.0, 3.0]])  # two ranks on one machine, one on another
    with patch.object(module, "_machine", lambda: next(rows)):
        found = run_ranks(3, run)
    assert found[0] == found[1] == found[2]
    assert found[0].times == StepTime(3.0, 0.5, 0.25)
    assert found[0].ranks_per_machine in (1, 2)
    assert isinstance(found[0].line, Line) == with_line


def test_a_machine_is_told_exactly() -> None:
    found = module._machine()
    assert len(found) == 4
    assert torch.tensor(found, dtype=torch.float32).tolist() == found
