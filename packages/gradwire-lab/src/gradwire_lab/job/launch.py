"""Run a job, as processes on this machine or as one rank of a launcher, and show its progress."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from typing import Self

import torch

from gradwire.launch.local import RankContext, Task, run_joined, run_local
from gradwire.launch.rendezvous import joined_group
from gradwire.machine import cores
from gradwire_lab.job.data import Dataset, load
from gradwire_lab.job.options import JobOptions, Run
from gradwire_lab.job.record import Epoch, EpochDone, Progress, RunDone, RunResult, RunStarted, StepDone
from gradwire_lab.job.train_loop import Job, Team, perform

# The work of one rank: join the other ranks, and perform the runs in order.


def load_and_perform(context: RankContext[Progress], options: JobOptions) -> None:
    """Load the data set and run the job in a new process. Raises ``GradwireError``."""
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
"""Modules that the fork server imports before it forks ranks; ``torch.optim`` needs the second."""


def perform_local(options: JobOptions, show: Callable[[Progress], None]) -> tuple[RunResult, ...]:
    """Run a job in processes on this machine, all ended on return. Raises ``JobError``."""
    results = list[RunResult]()
    run_local(_task(options, load_and_perform), _keeping(results, show))
    return tuple(results)


def perform_joined(
    options: JobOptions, dataset: Dataset, show: Callable[[Progress], None]
) -> tuple[RunResult, ...]:
    """Run the job as one rank of a launcher; only rank 0 returns results. Raises ``JobError``."""

    def work(context: RankContext[Progress], options: JobOptions) -> None:
        perform_all(context, options, dataset)

    results = list[RunResult]()
    run_joined(_task(options, work), _keeping(results, show))
    return tuple(results)


def _keeping(results: list[RunResult], show: Callable[[Progress], None]) -> Callable[[Progress], None]:
    """Return a function that shows an event and appends its result, if it has one, to ``results``."""

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
    """Return the options that must be equal on all ranks; folders may differ."""
    own = ("out", "overwrite", "data_folder")
    return {key: value for key, value in asdict(options).items() if key not in own}


# Progress while a job runs: bars on a terminal, else one line per epoch.


class Display(ABC):
    """A display of a job's events; a context manager, because a live display must restore the terminal."""

    def __init__(self) -> None:
        self._diverged: set[Run] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, event: Progress) -> None:
        """Show an event, and warn once per run if its loss is no longer finite."""
        self._show(event)
        if isinstance(event, EpochDone) and event.epoch.diverged and event.run not in self._diverged:
            self._diverged.add(event.run)
            self._say(
                f"{event.run.label}: the loss is no longer finite in epoch {event.epoch.epoch}, so this run "
                "has diverged; try a lower --lr"
            )

    @abstractmethod
    def _show(self, event: Progress) -> None:
        """Show an event."""

    @abstractmethod
    def _say(self, sentence: str) -> None:
        """Print a line that later updates don't overwrite."""


class EpochLines(Display):
    """A display with one line per evaluation, for log files and pipes."""

    def __init__(self) -> None:
        from rich.console import Console

        super().__init__()
        self._console = Console(soft_wrap=True, highlight=False)
        self._epochs = 0

    def _show(self, event: Progress) -> None:
        if isinstance(event, RunStarted):
            self._epochs = event.epochs
        elif isinstance(event, EpochDone):
            epoch = event.epoch
            place = f"{event.run.label}: epoch {epoch.epoch}/{self._epochs}, step {epoch.step}"
            self._say(f"{place}, {_state(epoch)}, {epoch.train_s:.2f} s")

    def _say(self, sentence: str) -> None:
        self._console.print(sentence, markup=False)


class Bars(Display):
    """A display with a live progress bar for every run."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__()
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
        )
        self._task = self._bars.add_task("", visible=False, start=False, state="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def _show(self, event: Progress) -> None:
        if isinstance(event, RunStarted):
            self._task = self._bars.add_task(event.run.label, total=event.steps, state="")
        elif isinstance(event, StepDone):
            self._bars.update(self._task, completed=event.step)
        elif isinstance(event, EpochDone):
            self._bars.update(self._task, state=_state(event.epoch))
        elif isinstance(event, RunDone):
            self._bars.update(self._task, completed=event.result.steps)
            self._bars.stop_task(self._task)

    def _say(self, sentence: str) -> None:
        self._bars.console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def make_display() -> Display:
    """Return ``Bars`` if standard output is a terminal, else ``EpochLines``."""
    from rich.console import Console

    return Bars() if Console().is_terminal else EpochLines()


def _state(epoch: Epoch) -> str:
    return (
        f"top-1 {100 * epoch.accuracy:.2f} %, loss {epoch.loss:.4f}, held-out loss {epoch.held_out_loss:.4f}"
    )
