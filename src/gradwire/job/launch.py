"""Perform a job: as processes that are started here, or as one rank of those that a launcher has started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from gradwire.job import worker
from gradwire.job.data import Dataset
from gradwire.job.events import Progress, RunDone, RunResult
from gradwire.job.options import JobOptions
from gradwire.launch.context import RankContext, Task
from gradwire.launch.joined import run_joined
from gradwire.launch.local import run_local

_PRELOAD = ("gradwire.job.worker", "torch._dynamo")
"""The second is for torch.optim."""


def perform_local(options: JobOptions, show: Callable[[Progress], None]) -> tuple[RunResult, ...]:
    """Perform a job in processes of this machine, all ended on return. Raises ``JobError``."""
    results = _Results(show)
    run_local(_task(options, worker.load_and_perform), results.show)
    return results.kept()


def perform_joined(
    options: JobOptions, dataset: Dataset, show: Callable[[Progress], None]
) -> tuple[RunResult, ...]:
    """Perform the job as one rank of many; only rank 0 has results. Raises ``JobError``."""

    def work(context: RankContext[Progress], options: JobOptions) -> None:
        worker.perform_all(context, options, dataset)

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
