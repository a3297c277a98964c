"""One run of the matrix: which fault strikes whom and when, drawn by a seed; and what its ranks report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from faults.rows import PATIENT, Row

WORLD = 3
STEPS = 8
TRIED = range(6, 10)
"""The steps, from 0 up, of the first turn in a trial of plans; the choice comes in the step before."""
CHANGED = 26
"""From this step on, a run that chooses its plan is told of steps that take longer, and chooses once more."""
CHOOSING_STEPS = 38
"""Of a run that chooses its plan: enough for two choices, and for errors to be noticed after them."""
TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Case:
    """Everything a rank needs to know; ``row`` None is the undisturbed run.

    ``step`` is early enough that what fails in it is noticed in a later step, also by a pipeline of two.
    """

    method: str
    row: Row | None
    seed: str
    victim: int = 0
    step: int = 0
    frame: int = 0
    line: int = 0
    number: int = 0
    plan: str = ""

    @classmethod
    def drawn(cls, method: str, row: Row, seed: str) -> Case:
        """Return a case whose victim, step, frame and details depend on ``seed`` alone."""
        draw = Random(f"{seed}/{row.name}/{method}")
        # Nobody waits for a last frame that is repeated, and step 0 has a peer's only frames: those of an
        # agreement on the plan.
        first = 1 if row.act == "duplicate" else 0
        return cls(
            method,
            row,
            seed,
            victim=draw.randrange(WORLD),
            step=max(first, draw.randrange(STEPS - 4)) + (TRIED.start if row.part == "trial" else 0),
            frame=draw.randrange(4),
            line=draw.randrange(2),
            number=draw.randrange(200),
            plan=row.plan,
        )

    @property
    def timeout_s(self) -> float:
        """The timeout of every rank, longer where no error may come."""
        return TIMEOUT_S * (PATIENT if self.row is None else self.row.patience)

    @property
    def steps(self) -> int:
        """How many steps an undisturbed rank takes."""
        return CHOOSING_STEPS if self.plan == "auto" else STEPS


@dataclass
class Report:
    """What one rank saw.

    Attributes
    ----------
    history
        Hashes of weights and optimizer state: at first, and after each update.
    final
        Their hash at the end, after any error.
    error, text
        The class and the message, with its notes, of the error that ended the run; None where there was none.
    named
        Whether that is one of gradwire's own.
    seconds
        How long the call took that raised.
    again
        The class and the seconds of the error of another step after it.
    nan
        How many weights of this rank are not finite at the end.
    struck
        Whether a frame of this rank has met its fault.
    kept
        Whether what wrapped the model was still alive when the script had let it go.
    alone
        What was wrong when this rank trained on without the others after an error; empty where nothing was.
    chosen
        The steps before which plans were chosen.
    """

    rank: int
    history: list[str] = field(default_factory=list)
    final: str = ""
    error: str | None = None
    text: str = ""
    named: bool = False
    seconds: float = 0.0
    again: tuple[str, float] | None = None
    nan: int = 0
    struck: bool = False
    kept: bool = False
    alone: str = ""
    chosen: list[int] = field(default_factory=list)


def report_file(folder: Path, rank: int) -> Path:
    """Return where a rank leaves its report."""
    return folder / f"report-{rank}"


def errors_file(folder: Path, rank: int) -> Path:
    """Return where a rank's standard error goes."""
    return folder / f"errors-{rank}"
