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

# The work of one rank: join the other ranks, and perform the runs in order.


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
"""The modules that the fork server imports before it forks ranks.

``torch.optim`` needs the second module.
"""


def perform_local(options: JobOptions, show: Callable[[Progress], None]) -> tuple[RunResult, ...]:
    """Run a job in processes on this machine, all ended on return. Raises ``JobError``."""
    results = list[RunResult]()
    run_local(_task(options, load_and_perform), _keeping(results, show))
    return tuple(results)


def perform_joined(
    options: JobOptions, dataset: Dataset, show: Callable[[Progress], None]
) -> tuple[RunResult, ...]:
    """Run the job as one rank of a launcher. Only rank 0 returns results. Raises ``JobError``."""

    def work(context: RankContext[Progress], options: JobOptions) -> None:
        perform_all(context, options, dataset)

    results = list[RunResult]()
    run_joined(_task(options, work), _keeping(results, show))
    return tuple(results)


def _keeping(results: list[RunResult], show: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return a function that shows an event and appends the event's result, if any, to ``results``."""

    def take(event: Progress) -> None:
        show(event)
        if isinstance(event, RunDone):
            results.append(event.result)

    return take


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
    """Return the options that must be equal on all ranks. Folders may differ."""
    own = ("out", "overwrite", "data_folder")
    return {key: value for key, value in asdict(options).items() if key not in own}
