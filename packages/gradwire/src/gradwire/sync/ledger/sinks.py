"""The sinks of a ledger's steps: JSON lines, TensorBoard, and trackers; and named ranges in a profile."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, Protocol

from torch.autograd import profiler
from torch.profiler import record_function

from gradwire.errors import MissingPackageError, SpecError
from gradwire.sync.ledger.counts import BucketCounts, Decided, Tally
from gradwire.sync.ledger.lost import StepShares
from gradwire.version import how_to_install

_OPEN = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK  # a pipe without a reader must not block
PLAN_TAG = "gradwire/plan"
_TAGS = ("ratio", "raw_nbytes", "wire_nbytes", "codec_s", "wait_s", "exposed_s", "lost")


@dataclass(frozen=True, slots=True)
class StepCounts:
    """The counts of one step, for sinks.

    Attributes
    ----------
    rank, step
        The rank, and the step's number from 1; the numbers continue after a resume.
    complete
        Whether the step ended; False for the counts at ``close``, such as exchanges of a drained pipeline.
    wall_s
        Seconds since the end of the previous step, or since the creation of the ledger.
    tally
        The counts by bucket and by reason.
    lost
        The relative errors of encoding, if they were measured.
    decided
        The plans that the run chose before this step and after the previous one, if it chooses its plans.
    """

    rank: int
    step: int
    complete: bool
    wall_s: float
    tally: Tally
    lost: StepShares = field(default_factory=StepShares)
    decided: tuple[Decided, ...] = ()


class Sink(Protocol):
    """A receiver of a ledger's steps.

    A sink that raises an error is reported once and dropped; training continues.
    """

    def write(self, step: StepCounts) -> None:
        """Write one step. The calls are sequential, in the order of the steps."""

    def close(self) -> None:
        """Close the sink, after the last ``write``."""


class JsonLines:
    """A sink that appends one JSON object per step to a file, with one write per line.

    Readers see only whole lines. A resumed run appends to the same file. Several ranks may share it, because
    every line contains its rank. ``docs/accounting.md`` has the keys.

    Parameters
    ----------
    path
        The file; its folder must exist. Raises ``SpecError`` if it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._file: int | None = None
        try:
            self._file = os.open(self.path, _OPEN, 0o666)
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise SpecError(
                f"the ledger cannot be written to {self.path}: {reason}; pass a file that can be written"
            ) from error

    def write(self, step: StepCounts) -> None:
        """Append the step's line. Raises ``OSError``; a full disk keeps no part of the line."""
        if self._file is None:
            raise ValueError(f"{self.path} is closed")
        line = json.dumps(_object(step), allow_nan=False).encode() + b"\n"
        written = os.write(self._file, line)
        if written < len(line):  # the disk is full, and half a line would corrupt the file
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def close(self) -> None:
        """Close the file. Repeated calls are allowed."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __repr__(self) -> str:
        return f"JsonLines({self.path!r})"


class TensorBoard:
    """A sink that writes every step's metrics to a TensorBoard writer, or any object with ``add_scalar``.

    Tags are ``gradwire/<metric>`` for the sum over the buckets, and ``gradwire/<bucket>/<metric>`` for each
    bucket. The metrics are ``ratio``, ``raw_nbytes``, ``wire_nbytes``, ``codec_s``, ``wait_s``, ``exposed_s``
    and, if measured, ``lost``; also ``gradwire/wall_s`` and ``gradwire/bypassed_nbytes``. If a run chooses
    its plan, the steps that begin with a new plan also have ``gradwire/expected_step_s`` and
    ``gradwire/expected_uncompressed_s``. If the writer has ``add_text``, these steps have the plan and its
    reason as ``gradwire/plan``, too. Invalid characters in tags become ``_``.

    Parameters
    ----------
    writer
        The writer, which the caller owns and closes. Raises ``SpecError`` if it has no ``add_scalar``.
    buckets
        Whether each bucket has its own tags, in addition to the sum.
    """

    def __init__(self, writer: Any, buckets: bool = True) -> None:
        if not callable(getattr(writer, "add_scalar", None)):
            raise SpecError(
                f"TensorBoard: expected a writer with add_scalar, got {writer!r}; pass a "
                "torch.utils.tensorboard.SummaryWriter"
            )
        self._writer = writer
        self._buckets = buckets

    def write(self, step: StepCounts) -> None:
        """Add the step's scalars. Raises the writer's errors."""
        for text in plan_texts(step):
            if callable(getattr(self._writer, "add_text", None)):
                self._writer.add_text(PLAN_TAG, text, step.step)
        for tag, figure in scalars(step, self._buckets).items():
            self._writer.add_scalar(tag, figure, step.step)

    def close(self) -> None:
        """Do nothing: the caller owns the writer."""

    def __repr__(self) -> str:
        return f"TensorBoard({self._writer!r})"


def scalars(step: StepCounts, buckets: bool) -> dict[str, float]:
    """Return a step's metrics by tag, including the metrics of each bucket if ``buckets``."""
    figures = {"wall_s": step.wall_s, "bypassed_nbytes": step.tally.bypassed.nbytes}
    figures |= _tags("", step.tally.total, step.lost.total)
    for bucket, counts in step.tally.buckets.items() if buckets else ():
        figures |= _tags(re.sub(r"[^-\w.]", "_", bucket) + "/", counts, step.lost.buckets.get(bucket))
    for each in step.decided:
        figures |= {"expected_step_s": each.step_s, "expected_uncompressed_s": each.uncompressed_s}
    return {f"gradwire/{name}": figure for name, figure in figures.items()}


def plan_texts(step: StepCounts) -> list[str]:
    """Return each plan that the run has chosen before the step, with its reason, as Markdown."""
    return [f"{each.reason}\n\n    {each.plan}" for each in step.decided]


def profiled(name: str) -> AbstractContextManager[object]:
    """Return a context manager that records a range ``gradwire: <name>`` in ``torch.profiler``'s trace.

    Without a running profiler, the context manager does nothing, because ``record_function`` takes 30 us. A
    profiler records only the thread that started it. To record the communication thread, too, pass
    ``experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True)`` to the profiler.
    """
    is_recording = getattr(profiler, "_is_profiler_enabled", True)  # of any thread; private in PyTorch
    return record_function(f"gradwire: {name}") if is_recording else nullcontext()


def _object(step: StepCounts) -> dict[str, Any]:
    tally, lost = step.tally, step.lost
    by_parameter = {"lost": lost.parameters} if lost.is_sampled else {}
    decided = [asdict(each) | {"plan": json.loads(each.plan)} for each in step.decided]
    return {
        "rank": step.rank,
        "step": step.step,
        "complete": step.complete,
        "wall_s": step.wall_s,
        "total": tally.total.figures() | ({"lost": lost.total} if lost else {}),
        "buckets": {
            bucket: counts.figures() | ({"lost": lost.buckets[bucket]} if bucket in lost.buckets else {})
            for bucket, counts in tally.buckets.items()
        },
        "bypasses": {reason: asdict(bypass) for reason, bypass in tally.bypasses.items()},
        **by_parameter,
        **({"decided": decided} if decided else {}),
    }


def _tags(prefix: str, counts: BucketCounts, lost: float | None) -> dict[str, float]:
    figures = counts.figures() | {"lost": lost}
    return {prefix + name: figure for name in _TAGS if (figure := figures[name]) is not None}


# Weights & Biases and MLflow send data to a server, so their sinks make one call for each step.

EXTRA = "trackers"
STEP_TAG = "gradwire/step"
"""The x-axis in Weights & Biases."""


class WandB:
    """A sink that logs every step's metrics to a run of Weights & Biases, with TensorBoard's tags.

    The run's own step increases with each call of its ``log``, including the program's calls, so the metrics
    have a separate step as their x-axis, ``gradwire/step``.

    Parameters
    ----------
    run
        The result of ``wandb.init``; by default the active run. The caller owns and finishes it.
    buckets
        Whether each bucket has its own tags, in addition to the sum.

    Raises
    ------
    MissingPackageError
        Without ``run``, if wandb isn't installed.
    SpecError
        If no run is active, and for a run without ``log`` and ``define_metric``.
    """

    def __init__(self, run: Any = None, buckets: bool = True) -> None:
        self._run = _needed("wandb", "WandB").run if run is None else run
        if self._run is None:
            raise SpecError("WandB: expected an active run, got none; call wandb.init() first, or pass a run")
        if not all(callable(getattr(self._run, name, None)) for name in ("log", "define_metric")):
            raise SpecError(
                f"WandB: expected a run of wandb.init(), got {run!r}; omit run for the active run"
            )
        self._buckets = buckets
        self._run.define_metric(STEP_TAG)
        self._run.define_metric("gradwire/*", step_metric=STEP_TAG)

    def write(self, step: StepCounts) -> None:
        """Log the step's metrics and plans in one call. Raises the run's errors."""
        values: dict[str, Any] = {STEP_TAG: step.step, **scalars(step, self._buckets)}
        texts = plan_texts(step)
        if texts:
            values[PLAN_TAG] = "\n\n".join(texts)
        self._run.log(values)

    def close(self) -> None:
        """Do nothing: the caller owns the run."""

    def __repr__(self) -> str:
        return f"WandB({getattr(self._run, 'name', None) or 'run'!r})"


class MLflow:
    """A sink that logs every step's metrics to an MLflow run, and plans as artifacts.

    Metrics have TensorBoard's tags. The artifacts are named ``gradwire/plan-STEP.md``.

    Parameters
    ----------
    run_id
        The run; by default the active run. The caller owns and ends it.
    buckets
        Whether each bucket has its own metrics, in addition to the sum.

    Raises
    ------
    MissingPackageError
        If neither mlflow nor mlflow-skinny is installed.
    SpecError
        Without ``run_id``, if no run is active.
    """

    def __init__(self, run_id: str | None = None, buckets: bool = True) -> None:
        self._mlflow = _needed("mlflow", "MLflow")
        active: Any = self._mlflow.active_run() if run_id is None else None
        if run_id is None and active is None:
            raise SpecError(
                "MLflow: expected an active run, got none; call mlflow.start_run() first, or pass a run_id"
            )
        self.run_id: str = active.info.run_id if run_id is None else run_id
        self._buckets = buckets

    def write(self, step: StepCounts) -> None:
        """Log the step's metrics in one call, and its plans. Raises MLflow's errors."""
        self._mlflow.log_metrics(scalars(step, self._buckets), step=step.step, run_id=self.run_id)
        texts = plan_texts(step)
        if texts:
            self._mlflow.log_text("\n\n".join(texts), f"{PLAN_TAG}-{step.step}.md", run_id=self.run_id)

    def close(self) -> None:
        """Do nothing: the caller owns the run."""

    def __repr__(self) -> str:
        return f"MLflow({self.run_id!r})"


def _needed(package: str, called: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackageError(
            f"{called} needs the package {package}, which cannot be imported ({error}); "
            f"{how_to_install(EXTRA)}",
            name=package,
        ) from error
