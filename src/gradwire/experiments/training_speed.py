"""Step time and time to equal loss on a testbed: plain DDP, the hooks that PyTorch ships, and gradwire.

Every method starts from the same weights and sees the same batches. The other methods train until they reach
the held-out loss of plain DDP at its end; evaluations aren't timed. ``alone`` exchanges nothing and
shows how long a step's computation takes if all hosts compute at once.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gradwire.benchmark.lists import between_commas
from gradwire.errors import SpecError
from gradwire.experiments.experiment import Cell, Experiment, Report, Row, check_known
from gradwire.experiments.hosts.network import check_networks, measure_cells
from gradwire.job.data import find
from gradwire.job.equal_loss import reach
from gradwire.tables import Column, Table, figure
from gradwire.testbed.run.variables import KEPT_MEMORY

RUNS = "gradwire.experiments.training.runs"
"""The module that trains on the hosts, by name: it imports torch."""
TASKS = ("mnist-mlp", "cifar-cnn", "wide-mlp", "gpt")
JUDGE = "DDP"
"""The method whose last loss the others have to reach."""
UNJUDGED = ("alone", "DDP again")
METHODS = (
    "alone",
    JUDGE,
    "fp16 hook",
    "bf16 hook",
    "PowerSGD 1",
    "PowerSGD 4",
    "planned, on DDP",
    "planned, PipeSGD",
    "fp8 on DDP",
    "fp8 PipeSGD",
    "quantize:4 on DDP",
    "quantize:4 PipeSGD",
    "fp8 PipeSGD, stale",
    "auto on DDP",
    "auto, PipeSGD",
    "DDP again",
)
DEVICES = ("cpu", "cuda")
ALWAYS = ("alone", JUDGE)
"""What the table compares the others with."""
EQUAL = 1.01
"""Losses are equal that differ by less: another order of summation makes as much of a difference."""
COLUMNS = (
    Column.of_text("method"),
    Column("step", "ms"),
    Column("speed-up"),
    Column("local", "ms"),
    Column("steps", "to loss"),
    Column("time", "s"),
    Column("speed-up"),
)
NOTE = (
    "Speed-ups are over DDP. Local: the part of a step in which a pipeline applies the rank's own gradient. "
    "Steps and time are those to DDP's last loss; '-' means that a method did not reach it."
)


@dataclass(frozen=True)
class Options:
    """What is trained, where, and with which methods.

    ``data_dir`` has the four files of MNIST, and ``images`` a version of CIFAR as ``a2dtwp`` reads it, in
    whose place scikit-learn's digits are used by default; ``text`` is a text for the GPT, by default Python's
    language reference. All hosts share the machine's ``device``.
    """

    hosts: int = 4
    rates: tuple[str, ...] = ("1gbit",)
    tasks: tuple[str, ...] = TASKS
    methods: tuple[str, ...] = METHODS
    data_dir: Path | None = None
    images: Path | None = None
    text: Path | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        check_networks([(self.hosts, rate) for rate in self.rates])
        check_known("--tasks", self.tasks, TASKS)
        check_known("methods", self.methods, METHODS)
        if self.data_dir is not None:
            find("mnist", self.data_dir)
        if self.images is not None and not self.images.is_dir():
            raise SpecError(f"--images must name a folder, but {self.images} is none; name one with CIFAR")
        if self.text is not None and not self.text.is_file():
            raise SpecError(f"--text must name a file, but {self.text} is none; name a text")
        check_known("--device", [self.device], DEVICES)
        if self.device != "cpu" and not _has_gpu():
            raise SpecError("--device cuda needs a GPU that PyTorch sees, but there is none; leave it out")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the experiment's options."""
    tasks = ",".join(TASKS)
    parser.add_argument("--hosts", type=int, metavar="N", default=4, help="number of hosts (4)")
    parser.add_argument("--rates", metavar="LIST", default="1gbit", help="of every host (1gbit)")
    parser.add_argument("--tasks", metavar="LIST", default=tasks, help=f"what to train ({tasks})")
    parser.add_argument(
        "--methods", metavar="LIST", help="only DDP and methods with one of these words in their names"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="the four files of MNIST (digits)")
    parser.add_argument("--images", metavar="DIR", help="CIFAR-10 or -100, for cifar-cnn (digits)")
    parser.add_argument("--text", metavar="FILE", help="for the GPT (Python's language reference)")
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, or cuda: one GPU for all (cpu)")


def read(words: argparse.Namespace) -> Options:
    """Return the options. Raises ``GradwireError``."""
    methods: tuple[str, ...] = METHODS
    if words.methods is not None:
        parts = between_commas(words.methods)
        for part in parts:
            if not any(part in name for name in METHODS):
                raise SpecError(f"no method has {part!r} in its name; the methods are {'; '.join(METHODS)}")
        methods = tuple(name for name in METHODS if name in ALWAYS or any(part in name for part in parts))
    return Options(
        words.hosts,
        tuple(dict.fromkeys(between_commas(words.rates))),
        tuple(dict.fromkeys(between_commas(words.tasks))),
        methods,
        None if words.data_dir is None else Path(words.data_dir).absolute(),
        None if words.images is None else Path(words.images).absolute(),
        None if words.text is None else Path(words.text).absolute(),
        words.device,
    )


def cells(options: Options) -> list[Cell]:
    """Return a cell for each rate, task, and method; DDP, whose loss the others need, comes before them."""
    names = [name for name in METHODS if name in options.methods or name in ALWAYS]
    return [
        {"hosts": options.hosts, "rate": rate, "task": task, "method": method}
        for rate in options.rates
        for task in options.tasks
        for method in names
    ]


def run(options: Options, cells: Sequence[Cell], before: Sequence[Row], report: Report) -> None:
    """Train in a testbed for each rate and task."""
    files = {"data_dir": options.data_dir, "images": options.images, "text": options.text}
    given = {name: str(path) for name, path in files.items() if path is not None}
    given["device"] = options.device
    for place, group in groupby(cells, key=_place):
        judged = [row for row in before if _place(row) == place and row["method"] == JUDGE]
        target = {"target": target_of(judged[0])} if judged else {}
        measure_cells(RUNS, list(group), report, {**given, **target}, KEPT_MEMORY)


def target_of(judge: Row) -> float:
    """Return the loss to reach."""
    return EQUAL * curve_of(judge)[-1][2]


def curve_of(row: Row) -> list[tuple[float, float, float]]:
    """Return steps, seconds, and loss of every evaluation; a loss that isn't finite is null in a record."""
    return [(step, seconds, math.inf if loss is None else loss) for step, seconds, loss in row["curve"]]


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a table for each rate and task."""
    parts: list[str | Table] = []
    for (rate, task), group in groupby(rows, key=_place):
        by_name = {row["method"]: row for row in group}
        ddp, alone = by_name[JUDGE], by_name["alone"]
        share = 1 - alone["step_s"] / ddp["step_s"]
        title = (
            f"{task}, {ddp['hosts']} hosts at {rate}: communication takes {share:.0%} of DDP's step; the "
            f"loss to reach is {target_of(ddp):.4f}"
        )
        parts += [title, "", Table(COLUMNS, [_cells(row, ddp) for row in by_name.values()]), ""]
    return [*parts, NOTE]


def _cells(row: Row, ddp: Row) -> tuple[str, ...]:
    """Return the entries of one method."""
    judged = row["method"] not in UNJUDGED
    found = reach(curve_of(row), target_of(ddp)) if judged else None
    first = reach(curve_of(ddp), target_of(ddp))
    steps = ("-" if judged else "", "", "")
    if found is not None and first is not None:
        steps = (f"{found[0]:.0f}", figure(found[1]), f"{first[1] / found[1]:.2f}x")
    return (
        f"{row['method']}: {row['plan']}" if row["plan"] else row["method"],
        figure(1e3 * row["step_s"]),
        f"{ddp['step_s'] / row['step_s']:.2f}x",
        figure(1e3 * row["local_s"]) if row["local_s"] else "",
        *steps,
    )


def _place(row: Row) -> tuple[str, str]:
    return row["rate"], row["task"]


EXPERIMENT = Experiment(
    name="training-speed",
    question="how much faster does gradwire reach the loss of plain DDP?",
    add_arguments=add_arguments,
    read=read,
    cells=cells,
    run=run,
    table=table,
)
