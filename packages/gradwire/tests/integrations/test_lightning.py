from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.framework_ranks import STEPS, lightning_trainer
from support.resumed import check_resumed
from support.scaled_frameworks import with_lightning

pytestmark = pytest.mark.processes
RunProcesses = Callable[..., list[Any]]


def test_a_resumed_trainer_goes_on_bit_for_bit(run_processes: RunProcesses, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    seen = run_processes(2, lightning_trainer, folder, timeout_s=110)
    check_resumed(seen)
    files = [f"middle-epoch={epoch}.ckpt" for epoch in range(2)]
    residuals = [f"{name}.gradwire-rank{rank}-of-2.pt" for name in files for rank in range(2)]
    assert seen[0]["files"] == sorted(files + residuals)
    assert seen[0]["removed"] == [files[0]]
    for rank in seen:
        assert rank["counted"]["steps"] == rank["callback"]["steps"] == rank["named"]["steps"] == 2 * STEPS
        assert 0 < rank["callback"]["wire"] < rank["callback"]["raw"]
        assert 0 < rank["named"]["wire"] < rank["named"]["raw"]
        assert rank["without"] != rank["whole"], "residuals matter here, or the test shows nothing"
        assert "Lightning's callbacks cannot save for each rank, got topk:0.1" in rank["callback keeps"]
        assert (
            "expected no communication hook besides gradwire's, got ddp_comm_hook; omit ddp_comm_hook"
            in rank["second hook"]
        )
        assert "the residuals of rank" in rank["missing"]
        assert "cannot be read" in rank["missing"]


def test_residuals_follow_the_scale_of_the_loss(run_processes: RunProcesses, tmp_path: Path) -> None:
    for found in run_processes(2, with_lightning, tmp_path, timeout_s=110):
        assert found["scaled"] == found["plain"]
        assert found["resumed"] == found["plain"]
