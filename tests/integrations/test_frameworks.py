"""Two processes train in other people's loops: compressed, equal, and resumed bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import scaled_frameworks
from support.framework_ranks import (
    STEPS,
    accelerate_loop,
    lightning_trainer,
    pytorch_lightning_trainer,
    transformers_trainer,
)

pytestmark = pytest.mark.processes
RunProcesses = Callable[..., list[Any]]


def check_resumed(seen: list[dict[str, Any]]) -> None:
    """All ranks have equal weights, a resumed run has the uninterrupted one's, and top-k was on the wire."""
    assert seen[0]["whole"] == seen[1]["whole"]
    assert all(rank["resumed"] == rank["whole"] for rank in seen)
    for rank in seen:
        assert 0 < 2 * rank["counted"]["wire"] < rank["counted"]["raw"], "a tenth of the values, with indices"
        assert "AttachError: " in rank["refused"]
        assert (
            "no DistributedDataParallel around its Sequential, so gradwire would not run" in rank["refused"]
        )
        assert "StateError: rank" in rank["swapped"]
        assert "StateError: replicas must agree bit for bit, but the weights of rank 1" in rank["apart"]
        assert "wants its own residuals" in rank["swapped"]


def test_accelerate(run_processes: RunProcesses, tmp_path: Path) -> None:
    seen = run_processes(2, accelerate_loop, tmp_path, timeout_s=110)
    check_resumed(seen)
    assert seen[0]["files"] == ["gradwire-rank0-of-2.pt", "gradwire-rank1-of-2.pt"]
    assert seen[0]["counted"]["steps"] == STEPS


def test_the_trainer_of_transformers(run_processes: RunProcesses, tmp_path: Path) -> None:
    seen = run_processes(2, transformers_trainer, tmp_path, timeout_s=110)
    check_resumed(seen)
    assert seen[0]["files"] == ["gradwire-rank0-of-2.pt", "gradwire-rank1-of-2.pt"]
    for rank in seen:
        assert rank["counted"]["steps"] == rank["again"]["steps"] == STEPS
        assert rank["again"]["wire"] > 0
        assert rank["named"] == rank["whole"]
        assert rank["without"] != rank["whole"], "residuals matter here, or the test shows nothing"
        assert "elsewhere/checkpoint-4, a folder below output_dir, does not exist; give" in rank["lost"]
        assert "as resume_from what train was given as resume_from_checkpoint" in rank["lost"]


def test_pytorch_lightning(run_processes: RunProcesses) -> None:
    seen = run_processes(2, pytorch_lightning_trainer, timeout_s=110)
    assert seen[0]["weights"] == seen[1]["weights"]
    for rank in seen:
        for way in ("named", "callback"):
            assert rank[way]["steps"] == 2 * STEPS
            assert 0 < rank[way]["wire"] < rank[way]["raw"]


def test_lightning(run_processes: RunProcesses, tmp_path: Path) -> None:
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
        assert "topk:0.1 keeps residuals, which a callback of Lightning cannot save" in rank["callback keeps"]
        assert (
            "SpecError: gradwire is the model's communication hook; leave out ddp_comm_hook"
            in rank["second hook"]
        )
        assert "the residuals that rank" in rank["missing"]
        assert "cannot be read" in rank["missing"]


@pytest.mark.parametrize(
    "train",
    [
        scaled_frameworks.with_accelerate,
        scaled_frameworks.with_lightning,
        scaled_frameworks.with_transformers,
    ],
)
def test_residuals_follow_the_scale_of_the_loss(
    train: Callable[[Path], dict[str, list[float]]], run_processes: RunProcesses, tmp_path: Path
) -> None:
    for found in run_processes(2, train, tmp_path, timeout_s=110):
        assert found["scaled"] == found["plain"]
        assert found["resumed"] == found["plain"]
