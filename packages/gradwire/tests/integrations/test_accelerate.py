from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.framework_ranks import STEPS, accelerate_loop
from support.resumed import check_resumed
from support.scaled_frameworks import with_accelerate

pytestmark = pytest.mark.processes
RunProcesses = Callable[..., list[Any]]


def test_a_resumed_loop_goes_on_bit_for_bit(run_processes: RunProcesses, tmp_path: Path) -> None:
    seen = run_processes(2, accelerate_loop, tmp_path, timeout_s=110)
    check_resumed(seen)
    assert seen[0]["files"] == ["gradwire-rank0-of-2.pt", "gradwire-rank1-of-2.pt"]
    assert seen[0]["counted"]["steps"] == STEPS


def test_residuals_follow_the_scale_of_the_loss(run_processes: RunProcesses, tmp_path: Path) -> None:
    for found in run_processes(2, with_accelerate, tmp_path, timeout_s=110):
        assert found["scaled"] == found["plain"]
        assert found["resumed"] == found["plain"]
