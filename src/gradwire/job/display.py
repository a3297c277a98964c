"""Progress while a job runs: bars on a terminal, one line an epoch elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from gradwire.job.events import Epoch, EpochDone, Progress, RunDone, RunStarted, StepDone
from gradwire.job.runs import Run


class Display(ABC):
    """Shows events; a context manager, since a live display must give the terminal back."""

    def __init__(self) -> None:
        self._diverged: set[Run] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def show(self, event: Progress) -> None:
        """Take note of an event; say once of every run whose loss is no longer finite that it is so."""
        self._show(event)
        if isinstance(event, EpochDone) and event.epoch.diverged and event.run not in self._diverged:
            self._diverged.add(event.run)
            self._say(
                f"{event.run.label}: the loss is no longer finite in epoch {event.epoch.epoch}, so this run "
                "learns nothing any more; try a lower --lr"
            )

    @abstractmethod
    def _show(self, event: Progress) -> None:
        """Take note of an event."""

    @abstractmethod
    def _say(self, sentence: str) -> None:
        """Print a line that stays."""


class Lines(Display):
    """One line for every epoch: for log files and pipes."""

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
    """A live bar for every run."""

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
    """Return bars where standard output is a terminal, else lines."""
    from rich.console import Console

    return Bars() if Console().is_terminal else Lines()


def _state(epoch: Epoch) -> str:
    return (
        f"top-1 {100 * epoch.accuracy:.2f} %, loss {epoch.loss:.4f}, held-out loss {epoch.held_out_loss:.4f}"
    )
