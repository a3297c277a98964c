"""What workers tell the process that watches them, and the result of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire_lab.job.runs import Run


@dataclass(frozen=True)
class Epoch:
    """The state at an evaluation, by default at the end of an epoch: what the test set says, and when.

    Attributes
    ----------
    epoch, step
        Which epoch it was, and after how many steps of the run.
    accuracy, held_out_loss
        Top-1 accuracy (0 to 1) and mean loss on the test set.
    loss
        The mean training loss of rank 0 since the evaluation before.
    train_s
        Wall-clock seconds of training up to here; evaluation is not in it.
    """

    epoch: int
    accuracy: float
    loss: float
    train_s: float
    step: int
    held_out_loss: float

    @property
    def diverged(self) -> bool:
        """Whether a loss was no finite number."""
        return not (math.isfinite(self.loss) and math.isfinite(self.held_out_loss))


@dataclass(frozen=True)
class RunResult:
    """What a run came to. Times are seconds per step, averaged over steps and workers.

    ``wire_nbytes`` are the bytes that all ranks together (the server too) sent in the whole run, frame
    headers included; ``raw_nbytes`` are the bytes of the floats that they carried. ``decided`` are the steps
    before which a run with ``auto`` took a plan, and why.
    """

    run: Run
    steps: int
    epochs: tuple[Epoch, ...]
    compute_s: float
    codec_s: float
    exposed_s: float
    raw_nbytes: int
    wire_nbytes: int
    weights_sha256: str
    decided: tuple[tuple[int, str], ...] = ()

    @property
    def diverged(self) -> bool:
        """Whether a loss was no finite number at any time."""
        return any(epoch.diverged for epoch in self.epochs)

    @property
    def accuracy(self) -> float:
        """Top-1 accuracy at the end, 0 to 1."""
        return self.epochs[-1].accuracy

    @property
    def train_s(self) -> float:
        """Wall-clock seconds of training, without evaluation."""
        return self.epochs[-1].train_s

    @property
    def step_s(self) -> float:
        """Wall-clock seconds per step."""
        return self.train_s / self.steps

    @property
    def ratio(self) -> float:
        """Bytes of floats per byte on the wire."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0


@dataclass(frozen=True)
class RunStarted:
    """The ranks have begun a run of ``steps`` steps."""

    run: Run
    steps: int
    epochs: int


@dataclass(frozen=True)
class StepDone:
    """Rank 0 has done ``step`` steps of the run; sent a few times a second at most."""

    run: Run
    step: int


@dataclass(frozen=True)
class EpochDone:
    """Rank 0 has evaluated the weights after an epoch."""

    run: Run
    epoch: Epoch


@dataclass(frozen=True)
class RunDone:
    """A run has ended well: the weights of all ranks are the same, bit for bit."""

    result: RunResult


Progress = RunStarted | StepDone | EpochDone | RunDone
