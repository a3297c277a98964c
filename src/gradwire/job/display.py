"""Progress while a job runs: bars on a terminal, one line an epoch elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from gradwire.job.events import Epoch, EpochDone, Progress, RunDone, RunStarted, StepDone


class Display(ABC):
    """Shows events; a context manager, since a live display must give the terminal back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    @abstractmethod
    def show(self, event: Progress) -> None:
        """Take note of an event."""


class Lines(Display):
    """One line for every epoch: for log files and pipes."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(soft_wrap=True, highlight=False)
        self._epochs = 0

    def show(self, event: Progress) -> None:
        """Print a line when an epoch is done."""
        if isinstance(event, RunStarted):
            self._epochs = event.epochs
        elif isinstance(event, EpochDone):
            epoch = event.epoch
            place = f"{event.run.label}: epoch {epoch.epoch}/{self._epochs}"
            self._console.print(f"{place}, {_state(epoch)}, {epoch.train_s:.2f} s", markup=False)


class Bars(Display):
    """A live bar for every run."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def show(self, event: Progress) -> None:
        """Move the bar of the run at work."""
        if isinstance(event, RunStarted):
            self._task = self._bars.add_task(event.run.label, total=event.steps, state="")
        elif isinstance(event, StepDone):
            self._bars.update(self._task, completed=event.step)
        elif isinstance(event, EpochDone):
            self._bars.update(self._task, state=_state(event.epoch))
        elif isinstance(event, RunDone):
            self._bars.update(self._task, completed=event.result.steps)
            self._bars.stop_task(self._task)


def make_display() -> Display:
    """Return bars where standard output is a terminal, else lines."""
    from rich.console import Console

    return Bars() if Console().is_terminal else Lines()


def _state(epoch: Epoch) -> str:
    return f"top-1 {100 * epoch.accuracy:.2f} %, loss {epoch.loss:.4f}"
