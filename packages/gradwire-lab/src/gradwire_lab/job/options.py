"""The options of a job as frozen data, and every check that can be made before a process is started."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from gradwire import _native
from gradwire.autotune import Auto
from gradwire.autotune.settings import NAME as AUTO
from gradwire.codecs import parse
from gradwire.errors import JobError, SpecError
from gradwire.files import check_folder_new, check_folder_writable
from gradwire.launch.launched import is_launched, launched_rank
from gradwire.machine import rates_in_words
from gradwire.page import PAGE, RECORD
from gradwire.plan import Plan
from gradwire.units import check_link_rate
from gradwire.version import how_to_install
from gradwire_lab.job.batches import MODELS
from gradwire_lab.job.data import DATASETS, SOURCES, Dataset
from gradwire_lab.job.runs import ON_DDP, UNCOMPRESSED, Run

CORRECTIONS = ("eager", "none")
"""Pipe-SGD's corrections, whose module can't be imported without torch; the default first."""

EPOCHS = MappingProxyType({"digits": 8, "mnist": 5, "fashion": 10})
"""Epochs after which the models of this job have learnt the data set."""

SCHEDULES = ("cosine", "constant")
"""Courses of the learning rate once it has risen; the default first."""

_MOST = 1e30
"""Far above any rate that learns, and within float32."""

FILES = (RECORD, "training.png")
"""The files that a job leaves in its folder, besides the page of its record."""

PIPELINE, LONGEST_PIPELINE = 2, 16
"""Steps of Pipe-SGD that are under way by default, and at most."""

DELTAS = ("delta:bf16", "delta:fp32")
"""Specs of weights that travel as their changes: rounded to bfloat16, or exactly."""


@dataclass(frozen=True)
class JobOptions:
    """Everything that decides what a job computes; the same on every rank.

    ``exchange`` is the plan of all runs but for the codec and the pipeline, which are a run's own.
    ``weights`` says how weights travel: from a server (a codec or one of ``DELTAS``; exact by default), and
    between sharded ranks (one of ``DELTAS``, the first by default). ``scale`` is that of the plans of all
    runs with a codec or ``offload``. ``data_folder`` holds the files of the
    data set (None for digits), ``link`` is a rate such as ``100mbit`` to which every rank's sending is
    throttled (None: as fast as the machine goes), ``batch`` is the global batch, ``evaluate_every`` counts
    steps (None: an epoch's), ``overwrite`` says that an older result in ``out`` may go.
    """

    runs: tuple[Run, ...]
    out: Path
    data: str = "digits"
    data_folder: Path | None = None
    model: str = "mlp"
    exchange: Plan = field(default_factory=lambda: Plan(pipeline=PIPELINE))
    weights: str | None = None
    scale: str | None = None
    workers: int = 4
    link: str | None = None
    correction: str = CORRECTIONS[0]
    warmup_epochs: int = 0
    epochs: int = 8
    max_steps: int | None = None
    evaluate_every: int | None = None
    batch: int = 100
    lr: float = 0.03
    schedule: str = SCHEDULES[0]
    momentum: float = 0.9
    seed: int = 0
    timeout_s: float = 60.0
    overwrite: bool = False

    @property
    def has_server(self) -> bool:
        """Return whether one process more is needed, after the workers."""
        return any(run.method == "server" for run in self.runs)

    @property
    def world(self) -> int:
        """Processes in all: workers, and the server if a run has one."""
        return self.workers + self.has_server

    @property
    def exact_weights(self) -> bool:
        """Return whether the workers of a server get its weights bit for bit."""
        if self.weights in DELTAS:
            return self.weights == "delta:fp32"
        return self.weights is None or parse(self.weights).EXACT

    def plan_or_auto(self, run: Run) -> Plan | Auto:
        """Return the plan that a run follows, or how it chooses its own. Raises ``SpecError``."""
        return Auto() if run.codec == AUTO else self.plan(run)

    def plan(self, run: Run) -> Plan:
        """Return the plan that a run follows, or begins with. Raises ``SpecError``."""
        base = self.exchange
        if run.codec == AUTO:
            _check_unsaid(self)
            return replace(Auto().first_plan, pipeline=base.pipeline if run.method == "pipe" else 1)
        codec = parse(run.codec)
        scales = run.codec != UNCOMPRESSED or base.offload is not None
        base = replace(base, codec=codec, scale=base.scale or (self.scale if scales else None))
        if run.method == "server":  # its gradient stays whole
            return replace(base, algorithm="star", pipeline=1, bucket_nbytes=None)
        pipeline = base.pipeline if run.method == "pipe" else 1
        return replace(
            base, pipeline=pipeline, exchange="sharded" if run.method == "sharded" else "all_reduce"
        )

    def steps_per_epoch(self, dataset: Dataset) -> int:
        """Return the global batches in an epoch; an incomplete one at the end is left out."""
        return len(dataset.train_labels) // self.batch

    def steps(self, dataset: Dataset) -> int:
        """Return the steps of a run."""
        steps = self.epochs * self.steps_per_epoch(dataset)
        return steps if self.max_steps is None else min(steps, self.max_steps)


def _check_unsaid(options: JobOptions) -> None:
    """Refuse to say what a run chooses."""
    if options.exchange != Plan(pipeline=PIPELINE) or options.scale is not None:
        raise SpecError(
            f"a run with auto chooses how it exchanges, with {PIPELINE} steps under way by pipe; leave "
            "--algorithm, --segment, --bucket, --offload, --scale, and --pipeline out, or name a codec"
        )


def check(options: JobOptions) -> None:
    """Raise ``JobError`` or ``SpecError`` for options that cannot work, before anything is started."""
    _one_of("--data", options.data, DATASETS)
    _one_of("--model", options.model, tuple(MODELS))
    _within("--workers", options.workers, 1, 64)
    _within("--pipeline", options.exchange.pipeline, 1, LONGEST_PIPELINE)
    _one_of("--correction", options.correction, CORRECTIONS)
    _within("--epochs", options.epochs, 1, 10_000)
    _within("--warmup-epochs", options.warmup_epochs, 0, options.epochs)
    _within("--batch", options.batch, 1, 1 << 20)
    _within("--seed", options.seed, 0, (1 << 63) - 1)
    for option, steps in (("--max-steps", options.max_steps), ("--evaluate-every", options.evaluate_every)):
        if steps is not None:
            _within(option, steps, 1, 10_000_000)
    _above_zero("--lr", options.lr)
    _one_of("--schedule", options.schedule, SCHEDULES)
    _within("--timeout", options.timeout_s, 1, 86_400)
    _check_link(options)
    _check_data_folder(options)
    for run in options.runs:
        options.plan(run)
    _check_weights(options)
    _check_batch(options)
    _check_extras(options)
    check_writable(options.out)
    writes = not is_launched() or launched_rank()[0] == 0
    check_folder_new("--out", options.out, (*FILES, PAGE), options.overwrite or not writes)
    rates_in_words()
    _native.target()  # what GRADWIRE_TARGET and GRADWIRE_THREADS ask for
    _native.threads()  # the last, since it may ask torch, whose import takes seconds


def check_data(options: JobOptions, dataset: Dataset) -> None:
    """Raise ``JobError`` if the data set does not fill one batch."""
    images = len(dataset.train_labels)
    if images < options.batch:
        raise JobError(
            f"--batch {options.batch} is more than the {images} training images of {options.data}; "
            f"ask for at most {images - images % options.workers}"
        )


def check_writable(out: Path) -> None:
    """Raise ``JobError`` unless the folder ``out`` and ``FILES`` in it can be written; leave no trace."""
    check_folder_writable("--out", out)
    for name in FILES:
        if (out / name).is_dir():
            raise JobError(f"--out {out} cannot be written: {name} in it is a folder; name another folder")


def _check_weights(options: JobOptions) -> None:
    methods = {run.method for run in options.runs} & {"server", "sharded"}
    if options.weights is None or (options.weights in DELTAS and methods):
        return
    if not methods:
        raise JobError(
            "--weights is for the methods server and sharded, whose weights travel; leave it out, or add one "
            "of them"
        )
    if "sharded" in methods:
        _one_of("--weights of the method sharded", options.weights, DELTAS)
    if options.weights.startswith("delta"):
        _one_of("--weights as deltas", options.weights, DELTAS)
    parse(options.weights)


def _check_link(options: JobOptions) -> None:
    rate = check_link_rate(options.link)
    if rate is not None and options.exchange.offload is not None:
        raise JobError(
            "--link paces whole frames, which no NIC compresses; leave out --link or --offload, or run in a "
            "network with NICs: gradwire testbed run --rate RATE --nic CODEC -- gradwire train ..."
        )
    on_ddp = [str(run) for run in options.runs if run.method in ON_DDP]
    if rate is not None and on_ddp:
        raise JobError(
            f"--link cannot pace {on_ddp[0]}, which has connections of its own; leave out --link, and run in "
            "a network with that rate: gradwire testbed run --rate RATE -- gradwire train ..."
        )


def _check_data_folder(options: JobOptions) -> None:
    if options.data not in SOURCES and options.data_folder is not None:
        raise JobError(
            f"--data-dir is for {' and '.join(SOURCES)}, but --data is {options.data}, which needs no files; "
            "leave one of them out"
        )


def _check_batch(options: JobOptions) -> None:
    batch, workers = options.batch, options.workers
    if batch % workers:
        below, above = batch - batch % workers, batch - batch % workers + workers
        nearest = above if above - batch <= batch - below or below == 0 else below
        raise JobError(
            f"--batch {batch} cannot be shared equally by {workers} workers; the nearest that can is "
            f"{nearest}"
        )


def _check_extras(options: JobOptions) -> None:
    wanted = {"rich": "rich", "matplotlib": "matplotlib"}
    if options.data == "digits":
        wanted["sklearn"] = "scikit-learn"
    missing = [title for module, title in wanted.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise JobError(
            f"gradwire train needs {' and '.join(missing)}, not installed here; {how_to_install('train')}"
        )


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise JobError(f"expected {option} among {', '.join(choices)}, got {value!r}")


def _within(option: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise JobError(f"{option} must be {low} to {high}, but is {value}")


def _above_zero(option: str, value: float) -> None:
    if not 0 < value <= _MOST:
        raise JobError(f"{option} must be a number above 0 and at most {_MOST:g}, but is {value:g}")
