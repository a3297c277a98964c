"""The options of a job as frozen data, and every check that is possible before a process starts."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from gradwire import _native
from gradwire.autotune import Auto
from gradwire.autotune.settings import DEFAULT
from gradwire.autotune.settings import NAME as AUTO
from gradwire.codecs import parse
from gradwire.codecs.spec import is_whole
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

# The runs that a job compares: a training method and a codec each, written ``pipe:quantize:8``.
#
# A server with bounded staleness is written ``server@2:quantize:8``: workers may be two steps ahead.

METHODS = MappingProxyType(
    {
        "ddp": "DDP",
        "bf16-hook": "DDP + bf16 hook",
        "attach": "attach",
        "sharded": "Sharded",
        "pipe": "Pipe-SGD",
        "sync": "D-Sync",
        "server": "PS-Sync",
    }
)
"""The methods and their names in tables; the last three methods are from section 4 of Pipe-SGD's paper."""

ON_DDP = ("ddp", "bf16-hook", "attach")
"""The methods that train a ``DistributedDataParallel``, whose connections ``--rate`` can't throttle."""

TORCHS = ("ddp", "bf16-hook")
"""The methods that use PyTorch's own gradient exchange, without a plan."""

CHOOSE = ("attach", "sync", "pipe")
"""The methods that accept ``auto`` in place of a codec and then choose their own plan."""

UNCOMPRESSED = "identity"
_SHORT_NUMBER = re.compile("[0-9]{1,9}")
LARGEST_STALENESS = 1000
"""The largest staleness of a job, in steps; runs with fewer steps never wait for a slow worker."""


@dataclass(frozen=True)
class Run:
    """One training run from scratch: ``method`` is a key of ``METHODS``, ``codec`` a spec or ``auto``.

    ``staleness`` is the number of steps that a worker of ``server`` may be ahead, or None for PS-Sync.
    """

    method: str
    codec: str = UNCOMPRESSED
    staleness: int | None = None

    @property
    def label(self) -> str:
        """The name in tables and plots: ``Pipe-SGD + quantize:8``, ``SSP 2``."""
        name = METHODS[self.method] if self.staleness is None else f"SSP {self.staleness}"
        return name if self.codec == UNCOMPRESSED else f"{name} + {self.codec}"

    def __str__(self) -> str:
        staleness = "" if self.staleness is None else f"@{self.staleness}"
        return f"{self.method}{staleness}:{self.codec}"


DDP = Run("ddp")
PS_SYNC = Run("server")
D_SYNC = Run("sync")
"""The baselines with which speed-ups are computed."""

COMPARISONS = ("paper", "ddp")
"""The values of ``--compare``, with the default first."""


def make_run(method: str, codec: str = UNCOMPRESSED, staleness: int | None = None) -> Run:
    """Return a run with the codec's canonical spec or ``auto``. Raises ``SpecError``."""
    if method not in METHODS:
        raise SpecError(f"expected one of the methods {', '.join(METHODS)}, got {method!r}; choose one")
    if staleness is not None:
        _check_staleness(method, staleness)
    if method in TORCHS and codec != UNCOMPRESSED:
        raise SpecError(
            f"{method}: expected no codec, because PyTorch exchanges the gradients, got {codec}; use "
            f"attach:{codec}"
        )
    if codec == AUTO and method not in CHOOSE:
        raise SpecError(
            f"{method}: expected a codec, got auto, which only {', '.join(CHOOSE)} can choose; pass a codec"
        )
    return Run(method, codec if codec == AUTO else str(parse(codec)), staleness)


def comparison(codec: str, what: str = COMPARISONS[0]) -> tuple[Run, ...]:
    """Return the runs of ``--compare``: the baselines, the codec alone, and the codec with the pipeline.

    ``what`` selects the baselines of Pipe-SGD's ``paper``, or PyTorch's (``ddp``). Raises ``SpecError``.
    """
    if what == "ddp":
        return DDP, Run("bf16-hook"), make_run("attach", codec), make_run("pipe", codec)
    return tuple(dict.fromkeys((PS_SYNC, D_SYNC, make_run("sync", codec), make_run("pipe", codec))))


def parse_runs(text: str) -> tuple[Run, ...]:
    """Parse runs such as ``server,sync:quantize:8,block=256,pipe``. Raises ``SpecError``.

    Codec specs may contain commas: a part that doesn't begin with a method belongs to the previous spec.
    """
    specs: list[str] = []
    for part in text.split(","):
        if part.partition(":")[0].partition("@")[0] in METHODS or not specs:
            specs.append(part)
        else:
            specs[-1] += f",{part}"
    runs = tuple(_parse_one(spec) for spec in specs)
    for number, run in enumerate(runs):
        if run in runs[:number]:
            raise SpecError(f"expected each run once, got {run} twice in {text!r}; remove one")
    return runs


def _parse_one(spec: str) -> Run:
    head, _, codec = spec.partition(":")
    method, bounded, staleness = head.partition("@")
    if method not in METHODS:
        raise SpecError(
            f"expected METHOD:CODEC, as in 'pipe:quantize:8', with one of the methods {', '.join(METHODS)}, "
            f"got {spec!r}; begin with one of these methods"
        )
    if bounded and not _SHORT_NUMBER.fullmatch(staleness):
        raise SpecError(f"expected a staleness such as server@2, got {head!r}; write a number after '@'")
    return make_run(method, codec or UNCOMPRESSED, int(staleness) if bounded else None)


def _check_staleness(method: str, staleness: int) -> None:
    if method != "server":
        raise SpecError(f"expected the method server with a staleness, got {method}; omit the staleness")
    if not is_whole(staleness, 0, LARGEST_STALENESS):
        raise SpecError(f"expected a staleness from 0 to {LARGEST_STALENESS}, got {staleness}; pass e.g. 2")


# The options.

CORRECTIONS = ("eager", "none")
"""Pipe-SGD's corrections, with the default first, repeated here because their module imports torch."""

EPOCHS = MappingProxyType({"digits": 8, "mnist": 5, "fashion": 10})
"""The default number of epochs for each data set, enough for this job's models to converge."""

SCHEDULES = ("cosine", "constant")
"""The learning-rate schedules after the warm-up, with the default first."""

_MOST = 1e30
"""The upper limit of the learning rate, which is far above any useful rate and within float32."""

FILES = (RECORD, "training.png")
"""The files that a job writes to its folder, in addition to the page of its record."""

PIPELINE, LONGEST_PIPELINE = 2, 16
"""The default and the largest pipeline depth of Pipe-SGD, in steps in flight."""

DELTAS = ("delta:bf16", "delta:fp32")
"""The specs that send weights as deltas, either rounded to bfloat16 or exact."""


@dataclass(frozen=True)
class JobOptions:
    """The options of a job, the same on every rank except for folders and ``overwrite``.

    ``exchange`` is the plan of all runs; each run sets its own codec and pipeline. ``weights`` is the
    encoding of weights from a server (a codec or one of ``DELTAS``; exact by default) and between sharded
    ranks (one of ``DELTAS``, the first by default). ``scale`` applies to runs with a codec or ``offload``.
    ``data_folder`` holds the files of the data set (None for digits). ``link`` is a rate such as ``100mbit``
    to which every rank's sending is throttled (None: unthrottled). ``batch`` is the global batch.
    ``evaluate_every`` is in steps (None: once per epoch). ``overwrite`` replaces an older result in ``out``.
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
        """Whether a run needs a server process, whose rank follows the workers' ranks."""
        return any(run.method == "server" for run in self.runs)

    @property
    def world(self) -> int:
        """The number of processes: the workers, and the server if a run has one."""
        return self.workers + self.has_server

    @property
    def exact_weights(self) -> bool:
        """Whether a server's weights reach its workers bit for bit."""
        if self.weights in DELTAS:
            return self.weights == "delta:fp32"
        return self.weights is None or parse(self.weights).EXACT

    def plan_or_auto(self, run: Run) -> Plan | Auto:
        """Return the run's plan, or ``Auto`` if the run chooses its plan. Raises ``SpecError``."""
        return auto_within(self.max_steps) if run.codec == AUTO else self.plan(run)

    def plan(self, run: Run) -> Plan:
        """Return the run's plan, or with ``auto`` its first plan. Raises ``SpecError``."""
        base = self.exchange
        if run.codec == AUTO:
            _check_unsaid(self)
            return replace(Auto().first_plan, pipeline=base.pipeline if run.method == "pipe" else 1)
        codec = parse(run.codec)
        scales = run.codec != UNCOMPRESSED or base.offload is not None
        base = replace(base, codec=codec, scale=base.scale or (self.scale if scales else None))
        if run.method == "server":  # a server's gradient has one bucket
            return replace(base, algorithm="star", pipeline=1, bucket_nbytes=None)
        pipeline = base.pipeline if run.method == "pipe" else 1
        exchange = "sharded" if run.method == "sharded" else "all_reduce"
        return replace(base, pipeline=pipeline, exchange=exchange)

    def steps_per_epoch(self, dataset: Dataset) -> int:
        """Return the number of complete global batches in an epoch."""
        return len(dataset.train_labels) // self.batch

    def steps(self, dataset: Dataset) -> int:
        """Return the number of steps of a run."""
        steps = self.epochs * self.steps_per_epoch(dataset)
        return steps if self.max_steps is None else min(steps, self.max_steps)


PART = 4
"""The divisor of a run's steps: a plan is chosen within a quarter of the run, after the warm-up."""


def auto_within(most_steps: int | None) -> Auto:
    """Return settings with which even a short run on a busy machine chooses a plan before it ends."""
    most = DEFAULT.most_paced_steps
    if most_steps is not None:
        most = min(most, max(most_steps // PART, DEFAULT.meeting_steps))
    return Auto(config=replace(DEFAULT, most_paced_steps=most))


def _check_unsaid(options: JobOptions) -> None:
    """Raise ``SpecError`` if exchange options are set for a run with ``auto``, which chooses them."""
    if options.exchange != Plan(pipeline=PIPELINE) or options.scale is not None:
        raise SpecError(
            f"expected no exchange options with auto, which chooses a plan (with {PIPELINE} steps in "
            "flight for pipe); omit --algorithm, --segment, --bucket, --offload, --scale, and --pipeline, "
            "or pass a codec"
        )


def check(options: JobOptions) -> None:
    """Raise ``JobError`` or ``SpecError`` for options that cannot work, before any process starts."""
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
    if not 0 < options.lr <= _MOST:
        raise JobError(f"expected --lr above 0 and at most {_MOST:g}, got {options.lr:g}; pass e.g. 0.03")
    _one_of("--schedule", options.schedule, SCHEDULES)
    _within("--timeout", options.timeout_s, 1, 86_400)
    _check_link(options)
    if options.data not in SOURCES and options.data_folder is not None:
        raise JobError(
            f"expected --data {' or '.join(SOURCES)} with --data-dir, got {options.data}, which needs no "
            "files; omit one"
        )
    for run in options.runs:
        options.plan(run)
    _check_weights(options)
    _check_batch(options)
    _check_extras(options)
    check_folder_writable("--out", options.out)
    for name in FILES:
        if (options.out / name).is_dir():
            raise JobError(
                f"expected no folder named {name} in --out {options.out}, got one; pass another --out"
            )
    writes = not is_launched() or launched_rank()[0] == 0
    check_folder_new("--out", options.out, (*FILES, PAGE), options.overwrite or not writes)
    rates_in_words()
    _native.target()  # raises an error if GRADWIRE_TARGET is invalid
    _native.threads()  # also checks GRADWIRE_THREADS; last, because this may import torch


def check_data(options: JobOptions, dataset: Dataset) -> None:
    """Raise ``JobError`` if the training set is smaller than one global batch."""
    images = len(dataset.train_labels)
    if images < options.batch:
        raise JobError(
            f"expected --batch of at most the {images} training images of {options.data}, got "
            f"{options.batch}; pass at most {images - images % options.workers}"
        )


def _check_weights(options: JobOptions) -> None:
    methods = {run.method for run in options.runs} & {"server", "sharded"}
    if options.weights is None or (options.weights in DELTAS and methods):
        return
    if not methods:
        raise JobError(
            "expected the method server or sharded with --weights, got neither; omit --weights, or add "
            "one of these methods"
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
            "expected --rate or --offload, got both; omit one, or use a testbed with NICs: gradwire "
            "testbed run --rate RATE --nic SPEC -- gradwire train ..."
        )
    on_ddp = [str(run) for run in options.runs if run.method in ON_DDP]
    if rate is not None and on_ddp:
        raise JobError(
            f"--rate cannot throttle {on_ddp[0]}, which uses PyTorch's own connections; omit --rate, and run "
            "in a testbed with that rate: gradwire testbed run --rate RATE -- gradwire train ..."
        )


def _check_batch(options: JobOptions) -> None:
    batch, workers = options.batch, options.workers
    if batch % workers:
        below, above = batch - batch % workers, batch - batch % workers + workers
        nearest = above if above - batch <= batch - below or below == 0 else below
        raise JobError(
            f"expected --batch to be a multiple of the {workers} workers, got {batch}; pass {nearest}, the "
            "nearest multiple"
        )


def _check_extras(options: JobOptions) -> None:
    wanted = {"rich": "rich", "matplotlib": "matplotlib"}
    if options.data == "digits":
        wanted["sklearn"] = "scikit-learn"
    missing = [title for module, title in wanted.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise JobError(
            f"gradwire train needs packages that aren't installed: {', '.join(missing)}; "
            f"{how_to_install('train')}"
        )


def _one_of(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise JobError(f"expected one of {', '.join(choices)} for {option}, got {value!r}; choose one")


def _within(option: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise JobError(f"expected {option} from {low} to {high}, got {value}; pass a number in this range")
