"""The progress of a running job: bars on a terminal, else a line every few seconds, or events as lines."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict
from threading import Event as ThreadingEvent
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from gradwire_lab.job.options import Run, parse_runs
from gradwire_lab.job.record import Epoch, EpochDone, Progress, RunDone, RunStarted, StepDone

if TYPE_CHECKING:
    from typing_extensions import Self

LINE_EVERY_S = 4.0
"""The time between two lines of progress. The time is short enough to show that a job is alive."""


class Display(ABC):
    """A display of a job's events; ``place``, such as the network, precedes the names of runs."""

    def __init__(self) -> None:
        self.place = ""
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
            self.say(
                f"{event.run.label}: the loss is no longer finite in epoch {event.epoch.epoch}, so this run "
                "has diverged; try a lower --lr"
            )

    @abstractmethod
    def _show(self, event: Progress) -> None:
        """Show an event."""

    def say(self, sentence: str) -> None:
        """Print a line that later updates don't overwrite."""
        sys.stdout.write(f"{sentence}\n")
        sys.stdout.flush()


class ProgressLines(Display):
    """A display for log files and pipes: a line at the end of each run, and every few seconds in between."""

    def __init__(self, every_s: float = LINE_EVERY_S) -> None:
        super().__init__()
        self._every_s = every_s
        self._began = self._said = monotonic()
        self._run, self._steps, self._step, self._state = "", 0, 0, ""
        self._failed: OSError | None = None  # set once the reader of standard output is gone
        self._saying, self._ended = Lock(), ThreadingEvent()
        self._ticker = Thread(target=self._tick, name="gradwire progress", daemon=True)

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._ticker.join()

    def _show(self, event: Progress) -> None:
        with self._saying:
            if self._failed is not None:
                raise self._failed
            if isinstance(event, RunStarted):
                self._run, self._steps, self._step, self._state = event.run.label, event.steps, 0, ""
            elif isinstance(event, StepDone):
                self._step = event.step
            elif isinstance(event, EpochDone):
                self._step, self._state = event.epoch.step, f", {_state(event.epoch)}"
                if self._step == self._steps:
                    self._say_state()

    def say(self, sentence: str) -> None:
        """Write a line to standard output."""
        self._said = monotonic()
        super().say(sentence)

    def _say_state(self) -> None:
        at = f"{self._run}: step {self._step}/{self._steps}{self._state}" if self._run else "starting"
        self.say(f"{self.place}{at}, {monotonic() - self._began:.0f} s")

    def _tick(self) -> None:
        while not self._ended.wait(max(0.05, self._said + self._every_s - monotonic())):
            with self._saying:
                if monotonic() - self._said < self._every_s:
                    continue
                try:
                    self._say_state()
                except OSError as error:
                    self._failed = error
                    return


class Bars(Display):
    """A display with a live progress bar for every run."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__()
        self._bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[state]}"),
        )
        self._task = self._bars.add_task("starting", total=None, state="")
        self._is_starting = True

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_start()
        self._bars.stop()

    def _show(self, event: Progress) -> None:
        if isinstance(event, RunStarted):
            self._end_start()
            description = f"{self.place}{event.run.label}"
            self._task = self._bars.add_task(description, total=event.steps, state="")
        elif isinstance(event, StepDone):
            self._bars.update(self._task, completed=event.step)
        elif isinstance(event, EpochDone):
            self._bars.update(self._task, completed=event.epoch.step, state=_state(event.epoch))
        elif isinstance(event, RunDone):
            self._bars.update(self._task, completed=event.result.steps)

    def _end_start(self) -> None:
        if self._is_starting:
            self._bars.remove_task(self._task)
            self._is_starting = False

    def say(self, sentence: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(sentence, markup=False, highlight=False, soft_wrap=True)


class EventLines(Display):
    """A display that prints each event as a line for the process that shows it."""

    def _show(self, event: Progress) -> None:
        self.say(line_of(event).removesuffix("\n"))


class Quiet(Display):
    """A display of warnings only."""

    def _show(self, event: Progress) -> None:
        pass

    def say(self, sentence: str) -> None:
        """Print a line to standard error."""
        sys.stderr.write(f"{sentence}\n")


def make_display(quiet: bool = False) -> Display:
    """Return the display: events for another process, warnings only, bars on a terminal, or log lines."""
    from rich.console import Console

    if is_watched():
        return EventLines()
    if quiet:
        return Quiet()
    return Bars() if Console().is_terminal else ProgressLines()


def _state(epoch: Epoch) -> str:
    return f"loss {epoch.held_out_loss:.4f}, top-1 {100 * epoch.accuracy:.1f} %"


# Events as lines, with which a rank's process reports its progress to another process.

VARIABLE = "GRADWIRE_EVENTS"
"""The environment variable that makes a job print its events as lines, and no report."""
MARK = "gradwire-event "
"""The prefix of each event on standard output, where libraries may also write."""


def is_watched() -> bool:
    """Return whether another process shows this job's progress and results."""
    return bool(os.environ.get(VARIABLE))


def line_of(event: Progress) -> str:
    """Return an event as a line; a run's end is its last step, because its result is in the record."""
    if isinstance(event, RunDone):
        event = StepDone(event.result.run, event.result.steps)
    values: dict[str, Any] = {"kind": type(event).__name__, "run": str(event.run)}
    match event:
        case RunStarted():
            values |= {"steps": event.steps, "epochs": event.epochs}
        case StepDone():
            values["step"] = event.step
        case EpochDone():
            values["epoch"] = asdict(event.epoch)
    return f"{MARK}{json.dumps(values)}\n"


def event_of(line: str) -> Progress | None:
    """Return the event of a line, or None if the line has no event."""
    if not line.startswith(MARK):
        return None
    values = json.loads(line.removeprefix(MARK))
    (run,) = parse_runs(values["run"])
    match values["kind"]:
        case "RunStarted":
            return RunStarted(run, values["steps"], values["epochs"])
        case "StepDone":
            return StepDone(run, values["step"])
    return EpochDone(run, Epoch(**values["epoch"]))
