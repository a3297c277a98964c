"""The results of runs: events from rank 0, times to equal loss, and the record of a job in JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

from gradwire._native import target
from gradwire.autotune.settings import DEFAULT
from gradwire.autotune.settings import NAME as AUTO
from gradwire.fields import Source, line, of, real, rows, text, to_values, whole
from gradwire.machine import described
from gradwire.records import make_record
from gradwire.units import counted
from gradwire_lab.job.options import D_SYNC, DDP, PS_SYNC, TORCHS, JobOptions, Run, parse_runs


@dataclass(frozen=True)
class Epoch:
    """One evaluation, by default per epoch: rank 0's mean loss since the last one, and test results.

    ``accuracy`` is from 0 to 1, and ``train_s`` the training time so far in seconds, without evaluation.
    """

    epoch: int
    accuracy: float
    loss: float
    train_s: float
    step: int
    held_out_loss: float

    @property
    def diverged(self) -> bool:
        """Whether the training or held-out loss isn't finite."""
        return not (math.isfinite(self.loss) and math.isfinite(self.held_out_loss))


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Times are seconds per step, averaged over steps and workers. ``wire_nbytes`` counts the bytes that all
    ranks, including the server, sent in the whole run, with frame headers. ``raw_nbytes`` counts the bytes of
    the floats that these frames carried. ``decided`` has the number of each step before which a run with
    ``auto`` changed its plan, and the reason.
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
        """Whether the training or held-out loss wasn't finite at any evaluation."""
        return any(epoch.diverged for epoch in self.epochs)

    @property
    def accuracy(self) -> float:
        """The top-1 accuracy at the end, from 0 to 1."""
        return self.epochs[-1].accuracy

    @property
    def train_s(self) -> float:
        """The wall-clock seconds of training, without evaluation."""
        return self.epochs[-1].train_s

    @property
    def step_s(self) -> float:
        """The wall-clock seconds per step."""
        return self.train_s / self.steps

    @property
    def ratio(self) -> float:
        """The compression ratio: bytes of floats per byte on the wire."""
        return self.raw_nbytes / self.wire_nbytes if self.wire_nbytes else 1.0


@dataclass(frozen=True)
class RunStarted:
    """The event that a run of ``steps`` steps has started."""

    run: Run
    steps: int
    epochs: int


@dataclass(frozen=True)
class StepDone:
    """The event that rank 0 has finished ``step`` steps, sent at most every ``REPORT_EVERY_S``."""

    run: Run
    step: int


@dataclass(frozen=True)
class EpochDone:
    """The event that rank 0 has evaluated the weights."""

    run: Run
    epoch: Epoch


@dataclass(frozen=True)
class RunDone:
    """The event that a run has finished. All compared ranks have bit-identical weights."""

    result: RunResult


Progress = RunStarted | StepDone | EpochDone | RunDone


# Time to equal loss: each run's training time until it reaches the baseline's final loss.
#
# The target loss is the median of the baseline's last held-out losses. A run reaches the target when its
# held-out loss, interpolated linearly, first falls to the target. The same criterion applies to the baseline.

LAST = 3
"""The number of the baseline's last evaluations whose median is the target loss."""
BASELINES = (DDP, D_SYNC)
"""The candidate baselines in order of preference: the first candidate among the runs is used."""
HALVED = (Run("bf16-hook"), Run("sync", "bf16"))
"""The baselines that send half of the bytes: with a testbed, and without."""
TIE = DEFAULT.most_equal_share
"""The relative difference of two speeds that counts as a tie; a different seed changes speeds as much."""
LEARNED = 0.5
"""The minimum top-1 accuracy of a baseline that has learned. Guessing reaches an accuracy of a tenth."""
MODEL = "25.6M"
"""The example model size in the suggested command, ResNet-50's number of parameters."""


@dataclass(frozen=True)
class EqualLoss:
    """The target loss, and each run's steps and training seconds until it reaches that loss, or None."""

    baseline: RunResult
    target: float
    reached: dict[Run, tuple[float, float] | None]

    def seconds(self, run: Run) -> float | None:
        """Return the training time to the target loss in seconds, or None if the run didn't reach it."""
        point = self.reached[run]
        return None if point is None else point[1]

    def gain(self, run: Run, over: Run | None = None) -> float | None:
        """Return a run's speed-up over the baseline, or ``over``, in time to the target, if reached."""
        own, others = self.seconds(run), self.seconds(self.baseline.run if over is None else over)
        return others / own if own and others else None


def equal_loss(results: Sequence[RunResult]) -> EqualLoss | None:
    """Return the times to the final loss of a baseline with ``LAST`` evaluations, or None without one."""
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
    """Return the baseline among the runs, or None."""
    runs = [result.run for result in results]
    return next((run for run in BASELINES if run in runs), None)


def too_short(results: Sequence[RunResult]) -> list[str]:
    """Return a sentence for each comparison or choice of plan for which the runs were too short."""
    base = baseline_of(results)
    evaluations = min((len(each.epochs) for each in results if each.run == base), default=LAST)
    said = []
    if base is not None and len(results) > 1 and evaluations < LAST:
        said.append(
            f"{base.label} was evaluated {counted(evaluations, 'time')}, and times to equal loss need "
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
    """Return the (interpolated) steps and seconds at which a loss first falls to ``target``, or None."""
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
    """Return a comparison of ``attach``, or else gradwire's fastest run that reached the loss, in words."""
    base = equal.baseline
    if base.accuracy < LEARNED:
        return (
            f"{base.run.label} did not learn: its top-1 accuracy at the end is {100 * base.accuracy:.1f} "
            "%, so speeds don't count; train for more --epochs"
        )
    own = [run for run in equal.reached if _is_own(run) and equal.reached[run] is not None]
    missed = [run.label for run in equal.reached if _is_own(run) and equal.reached[run] is None]
    if not own:
        return f"No run of gradwire reached the loss at which {base.run.label} ends, {equal.target:.4f}"
    best = min(own, key=lambda run: (run.method != "attach", equal.seconds(run) or 0.0))
    others = [base.run, *(run for run in HALVED if run in equal.reached and run != best)]
    gains = [(run.label, equal.gain(best, run)) for run in others]
    compared = [in_times(gain, label) for label, gain in gains if gain is not None]
    missed += [run.label for run in others if equal.reached[run] is None]
    never = f"; {' and '.join(missed)} did not reach it" if missed else ""
    return f"{best.label} is {' and '.join(compared)}, to the same held-out loss ({equal.target:.4f}){never}"


def in_times(gain: float, other: str) -> str:
    """Return a comparison of a run with ``other`` in words, by the run's speed-up.

    Examples
    --------
    >>> in_times(2.21, "DDP"), in_times(1.04, "DDP"), in_times(0.5, "DDP")
    ('2.2 times as fast as DDP', 'as fast as DDP (a tie: 1.04x)', '2.0 times slower than DDP')
    """
    if max(gain, 1 / gain) < 1 + TIE:
        return f"as fast as {other} (a tie: {gain:.2f}x)"
    return f"{gain:.1f} times as fast as {other}" if gain > 1 else f"{1 / gain:.1f} times slower than {other}"


def step_verdict(results: Sequence[RunResult]) -> str | None:
    """Return a sentence that compares gradwire's fastest step with DDP's, or None without both."""
    ddp = next((each for each in results if each.run == DDP), None)
    own = [each for each in results if _is_own(each.run)]
    if ddp is None or not own:
        return None
    best = min(own, key=lambda each: each.step_s)
    compared = in_times(ddp.step_s / best.step_s, "DDP")
    return f"A step of {best.run.label} is {compared}; the losses were not compared"


def _is_own(run: Run) -> bool:
    return run.method in ("attach", "sharded", "pipe") or (run.method == "sync" and run not in BASELINES)


# The record of a job.

SCHEMA = "gradwire.train/2"


def job_record(options: JobOptions, results: tuple[RunResult, ...]) -> dict[str, object]:
    """Return a job's record, with times in seconds, sizes in bytes, and options as given."""
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
    """Read the results in a job's record. Null times and losses become NaN."""
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


_SOURCE = Source("a record of training", "repeat 'gradwire train'")
_EPOCH = of(Epoch, **{each.name: _number for each in fields(Epoch) if each.type == "float"})


def speed_up(result: RunResult, results: tuple[RunResult, ...], baseline: Run) -> float | None:
    """Return the speed-up in training time over the run ``baseline``, or None without such a run."""
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
    """Return the target loss and each run's steps and seconds to it, or None without a comparison."""
    equal = equal_loss(results)
    if equal is None:
        return None
    reached = {
        str(run): None if point is None else dict(zip(("steps", "train_s"), point, strict=True))
        for run, point in equal.reached.items()
    }
    return {"baseline": str(equal.baseline.run), "held_out_loss": equal.target, "reached": reached}
