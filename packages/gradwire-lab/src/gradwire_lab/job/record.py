"""Results of runs: what workers report, times to equal loss, and the record of a job in JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from gradwire._native import target
from gradwire.autotune.settings import NAME as AUTO
from gradwire.fields import Source, line, of, real, rows, text, to_values, whole
from gradwire.machine import described
from gradwire.records import make_record
from gradwire.units import counted
from gradwire_lab.job.options import JobOptions
from gradwire_lab.job.runs import D_SYNC, DDP, PS_SYNC, TORCHS, Run, parse_runs


@dataclass(frozen=True)
class Epoch:
    """The state at an evaluation, by default at the end of an epoch.

    ``accuracy`` (top-1, 0 to 1) and ``held_out_loss`` are those on the test set, ``loss`` is rank 0's mean
    since the evaluation before, and ``train_s`` the seconds of training up to here, without evaluation.
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
    """The result of a run. Times are seconds per step, averaged over steps and workers.

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


# Time to equal loss: how long each run trains until its loss is the one at which the baseline ends.
#
# The loss to reach is the median of the baseline's last evaluations on held-out data. A run reaches it where
# its own held-out losses, joined by straight lines, first come down to it. The baseline is judged alike.

LAST = 3
"""The number of the baseline's last evaluations that say where it ends."""
BASELINES = (DDP, D_SYNC)
"""The runs that others are compared with: the first of these that is among them."""
_ALIKE = 0.05
"""Times that differ by a smaller share print as 1.0x."""
MODEL = "25.6M"
"""A size of a model to put one's own in its place: ResNet-50's."""


@dataclass(frozen=True)
class EqualLoss:
    """The loss to reach, and for each run the steps and seconds of training to it; None: not reached."""

    baseline: RunResult
    target: float
    reached: dict[Run, tuple[float, float] | None]

    def seconds(self, run: Run) -> float | None:
        """Return the seconds of training to the loss."""
        point = self.reached[run]
        return None if point is None else point[1]

    def gain(self, run: Run) -> float | None:
        """Return how many times less time than the baseline a run needs to the loss."""
        own, others = self.seconds(run), self.seconds(self.baseline.run)
        return others / own if own and others else None


def equal_loss(results: Sequence[RunResult]) -> EqualLoss | None:
    """Return who reaches the baseline's loss when; None without a baseline or with too few evaluations."""
    by_run = {result.run: result for result in results}
    base = baseline_of(results)
    baseline = None if base is None else by_run[base]
    if baseline is None or len(results) < 2 or len(baseline.epochs) < LAST or baseline.diverged:
        return None
    target = median(epoch.held_out_loss for epoch in baseline.epochs[-LAST:])
    curves = {
        run: [(e.step, e.train_s, e.held_out_loss) for e in each.epochs] for run, each in by_run.items()
    }
    return EqualLoss(baseline, target, {run: reach(curve, target) for run, curve in curves.items()})


def baseline_of(results: Sequence[RunResult]) -> Run | None:
    """Return the run that the others are compared with; None without one."""
    runs = [result.run for result in results]
    return next((run for run in BASELINES if run in runs), None)


def too_short(results: Sequence[RunResult]) -> list[str]:
    """Return sentences about what these runs were too short for: times to equal loss, and plans to choose."""
    base = baseline_of(results)
    evaluations = min((len(each.epochs) for each in results if each.run == base), default=LAST)
    said = []
    if base is not None and len(results) > 1 and evaluations < LAST:
        said.append(
            f"{base.label} was evaluated {counted(evaluations, 'time')}, but times to the same loss need "
            f"{LAST}; train for more --epochs, or lower --evaluate-every"
        )
    said += [
        f"{each.run.label} was too short, with {counted(each.steps, 'step')}, to choose a plan; "
        "train for more --epochs"
        for each in results
        if each.run.codec == AUTO and not each.decided
    ]
    return said


def reach(curve: Sequence[tuple[float, float, float]], target: float) -> tuple[float, float] | None:
    """Return where a curve first comes down to a loss, between two evaluations on a straight line.

    ``curve`` has the steps, seconds and loss of each evaluation. None is returned for one that stays above.
    """
    before = (0.0, 0.0, float("inf"))
    for point in curve:
        if point[2] <= target:
            above = before[2] - target
            share = above / (before[2] - point[2]) if above < float("inf") else 1.0
            return before[0] + share * (point[0] - before[0]), before[1] + share * (point[1] - before[1])
        before = point
    return None


def prediction(hosts: int, rate: str) -> str:
    """Return the command that predicts the comparison for another model."""
    return f"gradwire plan --model {MODEL} --hosts {hosts} --rate {rate}"


def verdict(equal: EqualLoss) -> str:
    """Return the comparison in words."""
    own = [(gain, run) for run in equal.reached if _is_own(run) and (gain := equal.gain(run)) is not None]
    base = equal.baseline.run.label
    if not own:
        return f"No run of gradwire reached the loss at which {base} ends"
    gain, best = max(own, key=lambda each: each[0])
    times = f"{gain:.1f}x less time" if gain >= 1 else f"{1 / gain:.1f}x more time"
    times = f"{times} to the same loss than" if abs(gain - 1) >= _ALIKE else "as long to the same loss as"
    return f"gradwire ({best.label}) takes {times} {base}"


def _is_own(run: Run) -> bool:
    return run.method in ("attach", "sharded", "pipe") or (run.method == "sync" and run not in BASELINES)


# The record of a job.

SCHEMA = "gradwire.train/2"


def job_record(options: JobOptions, results: tuple[RunResult, ...]) -> dict[str, object]:
    """Return the record: times in seconds, sizes in bytes, accuracy 0 to 1; the options as given.

    ``topology`` is that of the testbed that the job runs in, None outside of one.
    """
    given = asdict(options)
    del given["exchange"]
    given |= to_values(options.exchange) | {
        "scale": options.scale or options.exchange.scale,
        "runs": [str(run) for run in options.runs],
        "out": str(options.out),
        "data_folder": None if options.data_folder is None else options.data_folder.name,
    }
    content = {
        "options": given,
        "topology": described(),
        "runs": [_describe_run(result, results, options) for result in results],
        "equal_loss": _describe_equal_loss(results),
    }
    return make_record(SCHEMA, content, target=target())


def read_results(record: Mapping[str, Any]) -> tuple[RunResult, ...]:
    """Return the results of a job whose record this is; times and losses that are null become NaN."""
    return _SOURCE.fields(record).get("runs", rows(_read_run))


def _read_run(row: object) -> RunResult:
    given = _SOURCE.fields(row)
    return RunResult(
        run=given.get("run", _run),
        steps=given.get("steps", whole()),
        epochs=given.get("epochs", rows(_EPOCH)),
        compute_s=given.get("compute_s_per_step", _number),
        codec_s=given.get("codec_s_per_step", _number),
        exposed_s=given.get("exposed_s_per_step", _number),
        raw_nbytes=given.get("raw_nbytes", whole()),
        wire_nbytes=given.get("wire_nbytes", whole()),
        weights_sha256=given.get("weights_sha256", line),
        decided=given.get("decided", rows(_decided), ()),
    )


def _number(value: object) -> float:
    return math.nan if value is None else real(finite=False)(value)


def _run(words: object) -> Run:
    (run,) = parse_runs(line(words))
    return run


def _decided(row: object) -> tuple[int, str]:
    given = _SOURCE.fields(row)
    return given.get("step", whole()), given.get("reason", text)


_SOURCE = Source("a record of training", "write it anew with 'gradwire train'")
_EPOCH = of(Epoch, **{each.name: _number for each in fields(Epoch) if each.type == "float"})


def speed_up(result: RunResult, results: tuple[RunResult, ...], baseline: Run) -> float | None:
    """Return how often ``result`` trains while the run ``baseline`` does once; None where it is not there."""
    times = [other.train_s for other in results if other.run == baseline]
    return times[0] / result.train_s if times else None


def _describe_run(
    result: RunResult, results: tuple[RunResult, ...], options: JobOptions
) -> dict[str, object]:
    return {
        "run": str(result.run),
        "label": result.run.label,
        "plan": None if result.run.method in TORCHS else to_values(options.plan(result.run)),
        "decided": [{"step": step, "reason": reason} for step, reason in result.decided],
        "diverged": result.diverged,
        "accuracy": result.accuracy,
        "steps": result.steps,
        "train_s": result.train_s,
        "step_s": result.step_s,
        "compute_s_per_step": result.compute_s,
        "codec_s_per_step": result.codec_s,
        "exposed_s_per_step": result.exposed_s,
        "raw_nbytes": result.raw_nbytes,
        "wire_nbytes": result.wire_nbytes,
        "ratio": result.ratio,
        "speed_up_over_ps_sync": speed_up(result, results, PS_SYNC),
        "speed_up_over_d_sync": speed_up(result, results, D_SYNC),
        "weights_sha256": result.weights_sha256,
        "epochs": [asdict(epoch) for epoch in result.epochs],
    }


def _describe_equal_loss(results: tuple[RunResult, ...]) -> dict[str, object] | None:
    """Return the loss to reach and, for each run, steps and seconds to it; None where nothing is compared."""
    equal = equal_loss(results)
    if equal is None:
        return None
    reached = {
        str(run): None if point is None else dict(zip(("steps", "train_s"), point, strict=True))
        for run, point in equal.reached.items()
    }
    return {"baseline": str(equal.baseline.run), "held_out_loss": equal.target, "reached": reached}
