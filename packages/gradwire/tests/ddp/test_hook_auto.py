"""``gradwire.attach`` with ``"auto"``, between processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support import auto_ranks
from support.sums import bits
from support.told_line import WARM_UP

RunProcesses = Callable[..., list[Any]]

pytestmark = pytest.mark.processes


def test_all_ranks_choose_alike_and_the_next_run_starts_with_it(
    tmp_path: Path, run_processes: RunProcesses
) -> None:
    results = run_processes(3, auto_ranks.chosen, str(tmp_path / "auto.json"))
    for result in results:
        for name in ("weights", "again"):
            assert torch.equal(bits(result[name]), bits(results[0][name]))
        assert result["decisions"] == results[0]["decisions"]
        assert result["plans"] == results[0]["plans"]
        assert result["plans"][0] == result["plans"][1]
        assert str(result["plans"][0].codec) in result["repr"]
    assert [step for step, _ in results[0]["decisions"]] == [WARM_UP + 1]
    assert (tmp_path / "auto.json").exists()


def test_one_rank_alone_cannot_choose(run_processes: RunProcesses) -> None:
    found = run_processes(2, auto_ranks.differing, 1)
    assert all("auto" in sentence for sentence in found), found


def test_a_run_that_is_resumed_in_the_middle_ends_with_the_same_bits(run_processes: RunProcesses) -> None:
    results = run_processes(2, auto_ranks.halved)
    for result in results:
        assert torch.equal(bits(result["whole"]), bits(result["resumed"]))
        assert torch.equal(bits(result["whole"]), bits(results[0]["whole"]))
        assert not torch.equal(result["whole"], result["middle"])
        assert result["decisions"][0] == result["decisions"][1] == results[0]["decisions"][0]
        assert str(result["plan"].codec) == "quantize:8"
        assert [sentence.partition(":")[0] for sentence in result["told"]] == [
            f"from step {auto_ranks.STEPS + 1} on, as before the checkpoint"
        ]
    assert [step for step, _ in results[0]["decisions"][0]] == [WARM_UP + 1]
