from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.framework_ranks import STEPS, transformers_trainer
from support.resumed import check_resumed
from support.scaled_frameworks import with_transformers

pytestmark = pytest.mark.processes
RunProcesses = Callable[..., list[Any]]


def test_a_resumed_trainer_goes_on_bit_for_bit(run_processes: RunProcesses, tmp_path: Path) -> None:
    seen = run_processes(2, transformers_trainer, tmp_path, timeout_s=110)
    check_resumed(seen)
    assert seen[0]["files"] == ["gradwire-rank0-of-2.pt", "gradwire-rank1-of-2.pt"]
    for rank in seen:
        assert rank["counted"]["steps"] == rank["again"]["steps"] == STEPS
        assert rank["again"]["wire"] > 0
        assert rank["named"] == rank["whole"]
        assert rank["without"] != rank["whole"], "residuals matter here, or the test shows nothing"
        assert "elsewhere/checkpoint-4 (a folder below output_dir), got no such folder; pass" in rank["lost"]
        assert "pass train's resume_from_checkpoint to GradwireCallback(resume_from=)" in rank["lost"]


def test_residuals_follow_the_scale_of_the_loss(run_processes: RunProcesses, tmp_path: Path) -> None:
    for found in run_processes(2, with_transformers, tmp_path, timeout_s=110):
        assert found["scaled"] == found["plain"]
        assert found["resumed"] == found["plain"]
