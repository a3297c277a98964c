"""Perform a job: as processes that are started here, or as one rank of those that a launcher has started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import torch

from gradwire.launch.local import RankContext, Task, run_joined, run_local
from gradwire.launch.rendezvous import joined_group
from gradwire.machine import cores
from gradwire_lab.job.data import Dataset, load
from gradwire_lab.job.events import Progress, RunDone, RunResult
from gradwire_lab.job.options import JobOptions
from gradwire_lab.job.train_loop import Job, Team, perform

# What one rank does: meet the others, perform the runs one after the other.


def load_and_perform(context: RankContext[Progress], options: JobOptions) -> None:
    """Perform the job in a process that has nothing yet. Raises ``GradwireError``."""
    perform_all(context, options, load(options.data, options.data_folder))


def perform_all(context: RankContext[Progress], options: JobOptions, dataset: Dataset) -> None:
    """Perform every run of the job. Raises ``GradwireError``."""
    torch.set_num_threads(max(1, cores() // context.ranks_here))
    store = context.join_store()
    with joined_group(store, context.rank, context.world, options.timeout_s):
        job = Job(options, dataset, Team(store, context.rank, options), context)
        for run in options.runs:
            perform(run, job)


_PRELOAD = ("gradwire_lab.job.launch", "torch._dynamo")
"""The second is for torch.optim."""


def perform_local(options: JobOptions, show: Callable[[Progress], None]) -> tuple[RunResult, ...]:
    """Perform a job in processes of this machine, all ended on return. Raises ``JobError``."""
    results = _Results(show)
    run_local(_task(options, load_and_perform), results.show)
    return results.kept()


def perform_joined(
    options: JobOptions, dataset: Dataset, show: Callable[[Progress], None]
) -> tuple[RunResult, ...]:
    """Perform the job as one rank of many; only rank 0 has results. Raises ``JobError``."""

    def work(context: RankContext[Progress], options: JobOptions) -> None:
        perform_all(context, options, dataset)

    results = _Results(show)
    run_joined(_task(options, work), results.show)
    return results.kept()


class _Results:
    """Keeps the results among the events that it shows."""

    def __init__(self, show: Callable[[Progress], None]) -> None:
        self._show = show
        self._results: list[RunResult] = []

    def show(self, event: Progress) -> None:
        self._show(event)
        if isinstance(event, RunDone):
            self._results.append(event.result)

    def kept(self) -> tuple[RunResult, ...]:
        return tuple(self._results)


def _task(
    options: JobOptions, work: Callable[[RankContext[Progress], JobOptions], None]
) -> Task[JobOptions, Progress]:
    def title(rank: int) -> str:
        return f"rank {rank} ({'the server' if rank == options.workers else 'a worker'})"

    return Task(
        work=work,
        options=options,
        world=options.world,
        timeout_s=options.timeout_s,
        shared=_shared(options),
        preload=_PRELOAD,
        title=title,
        when=_when,
    )


def _when(event: Progress | None) -> str:
    if event is None:
        return "before the first run"
    return f"during {event.result.run.label if isinstance(event, RunDone) else event.run.label}"


def _shared(options: JobOptions) -> dict[str, object]:
    """Return the options that all ranks must agree on; folders are each machine's own."""
    own = ("out", "overwrite", "data_folder")
    return {key: value for key, value in asdict(options).items() if key not in own}
