"""Run a job, either in processes on this machine, or as one rank of a launcher."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict

import torch

from gradwire.launch.local import RankContext, Task, run_joined, run_local
from gradwire.launch.rendezvous import joined_group
from gradwire.log import VARIABLE
from gradwire.machine import cores
from gradwire_lab.job.data import Dataset, load
from gradwire_lab.job.options import JobOptions
from gradwire_lab.job.record import Progress, RunDone, RunResult
from gradwire_lab.job.train_loop import Job, Team, perform


def load_and_perform(context: RankContext[Progress], options: JobOptions) -> None:
    """Load the data set and run the job in a new process. Raises ``GradwireError``."""
    perform_all(context, options, load(options.data, options.data_folder))


def perform_all(context: RankContext[Progress], options: JobOptions, dataset: Dataset) -> None:
    """Perform every run of the job. Raises ``GradwireError``."""
    torch.set_num_threads(max(1, cores() // context.ranks_here))
    os.environ.setdefault(VARIABLE, "quiet")  # no log of choices: the progress and the report show them
    store = context.join_store()
    with joined_group(store, context.rank, context.world, options.timeout_s):
        job = Job(options, dataset, Team(store, context.rank, options), context)
        for run in options.runs:
            perform(run, job)


_PRELOAD = ("gradwire_lab.job.launch", "torch._dynamo")
"""The modules that the fork server imports before it forks ranks. ``torch.optim`` needs the second module."""


def perform_local(options: JobOptions, show: Callable[[Progress], None]) -> tuple[RunResult, ...]:
    """Run a job in processes on this machine, all ended on return. Raises ``JobError``."""
    return _perform(run_local, load_and_perform, options, show)


def perform_joined(
    options: JobOptions, dataset: Dataset, show: Callable[[Progress], None]
) -> tuple[RunResult, ...]:
    """Run the job as one rank of a launcher. Only rank 0 returns results. Raises ``JobError``."""

    def work(context: RankContext[Progress], options: JobOptions) -> None:
        perform_all(context, options, dataset)

    return _perform(run_joined, work, options, show)


def _perform(
    run: Callable[[Task[JobOptions, Progress], Callable[[Progress], None]], object],
    work: Callable[[RankContext[Progress], JobOptions], None],
    options: JobOptions,
    show: Callable[[Progress], None],
) -> tuple[RunResult, ...]:
    """Run a job as a task of ``run``, show its events, and return the results among them."""
    results = list[RunResult]()

    def take(event: Progress) -> None:
        show(event)
        if isinstance(event, RunDone):
            results.append(event.result)

    own = ("out", "overwrite", "data_folder")  # may differ between ranks
    task = Task(
        work=work,
        options=options,
        world=options.world,
        timeout_s=options.timeout_s,
        shared={key: value for key, value in asdict(options).items() if key not in own},
        preload=_PRELOAD,
        title=lambda rank: f"rank {rank} ({'the server' if rank == options.workers else 'a worker'})",
        when=_when,
    )
    run(task, take)
    return tuple(results)


def _when(event: Progress | None) -> str:
    if event is None:
        return "before the first run"
    return f"during {event.result.run.label if isinstance(event, RunDone) else event.run.label}"
