from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.elastic import EXAMPLE, straight
from support.forks import Ended, torchrun

RunProcesses = Callable[..., list[Any]]
STEPS, DIES_AT, RESUMES_AFTER = 9, 5, 3


def elastic(folder: Path, method: str) -> Ended:
    """Run the example under torchrun, which may start the ranks again twice."""
    options = ("--nproc-per-node=2", "--max-restarts=2", "--monitor-interval=0.1")
    words = [f"--folder={folder}", f"--method={method}", f"--steps={STEPS}", f"--die-at={DIES_AT}"]
    return torchrun(EXAMPLE, *words, options=options, log=folder.parent / "log", cwd=folder.parent)


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["ddp", "pipe", "fsdp"])
def test_after_a_rank_was_killed_training_resumes_and_ends_with_the_bits_of_a_straight_run(
    method: str, run_processes: RunProcesses, tmp_path: Path
) -> None:
    done = elastic(tmp_path / "elastic", method)
    assert done.returncode == 0, done.stderr
    begins = sorted(re.findall(r"rank (\d) begins after step (\d+)", done.stdout))
    assert begins == [(rank, step) for rank in "01" for step in ("0", str(RESUMES_AFTER))], done.stdout
    ends = dict(re.findall(r"rank (\d) ends with weights (\w{64})", done.stdout))
    (tmp_path / "straight").mkdir()
    wanted = run_processes(2, straight, tmp_path / "straight", method, STEPS)
    assert ends == {"0": wanted[0], "1": wanted[1]}
    assert wanted[0] == wanted[1]
