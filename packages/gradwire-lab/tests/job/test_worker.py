"""A rank's whole part in a job: the runs in their order, in a group that is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire.errors import JobError
from gradwire.launch.local import RankContext
from gradwire_lab.job import launch as worker
from gradwire_lab.job.data import Dataset
from gradwire_lab.job.options import JobOptions, Run, parse_runs
from gradwire_lab.job.train_loop import Job

RUNS = parse_runs("sync,pipe:fp8,sync:bf16")


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def context() -> RankContext[Any]:
    return RankContext(0, 1, lambda _: None, HashStore)


def options(tmp_path: Path) -> JobOptions:
    return JobOptions(RUNS, tmp_path, workers=1)


def test_every_run_is_performed_in_order_within_the_group(
    context: RankContext[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[Run] = []

    def perform(run: Run, job: Job) -> None:
        assert dist.is_initialized()
        assert (job.team.rank, job.team.workers, job.context) == (0, 1, context)
        done.append(run)

    monkeypatch.setattr(worker, "perform", perform)
    monkeypatch.setattr(worker, "cores", lambda: 3)
    monkeypatch.setattr(worker, "load", lambda name, folder: (name, folder))
    worker.load_and_perform(context, options(tmp_path))
    assert done == list(RUNS)
    assert not dist.is_initialized()
    assert torch.get_num_threads() == 3, "all cores, for one rank"


def test_a_run_that_fails_ends_the_rest_and_leaves_the_group(
    context: RankContext[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def perform(run: Run, job: Job) -> None:
        job.context.doing = f"{run}, step 3"
        raise JobError("no more")

    monkeypatch.setattr(worker, "perform", perform)
    data: Any = Dataset
    with pytest.raises(JobError, match="no more"):
        worker.perform_all(context, options(tmp_path), data)
    assert context.doing == "sync:identity, step 3"
    assert not dist.is_initialized()
