"""Step time and time to equal loss on a testbed: plain DDP, the hooks that PyTorch ships, and gradwire.

Each seed has weights and batches of its own, which all methods share. The other methods train until they
reach the held-out loss of plain DDP at its end; evaluations aren't timed. ``alone`` exchanges nothing and
shows how long a step's computation takes if all hosts compute at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gradwire.cli.parser import between_commas
from gradwire.errors import SpecError
from gradwire_lab.experiments.experiment import Cell, Experiment, Report, Row, check_known, turned
from gradwire_lab.experiments.hosts import check_networks, measure_cells
from gradwire_lab.experiments.learning import LEAST_SEEDS
from gradwire_lab.experiments.speeds import (
    ALONE,
    ATTACHED,
    FIXED,
    HOOK,
    JUDGE,
    PIPELINED,
    place_of,
    table,
    target_of,
)
from gradwire_lab.job.data import data_folder, find, find_cifar10
from gradwire_lab.testbed.registry import KEPT_MEMORY

RUNS = "gradwire_lab.experiments.methods"
"""The module that trains on the hosts, by name: it imports torch."""
TASKS = ("mnist-mlp", "cifar-cnn", "wide-mlp", "gpt")
ALWAYS = (ALONE, JUDGE)
"""What the table compares the others with."""
USUAL = (*ALWAYS, HOOK, "PowerSGD 1", ATTACHED, *FIXED[:2], PIPELINED)
"""Methods of the tables in the documentation: what people have, gradwire as it comes, and two plans."""
METHODS = (
    *USUAL,
    "fp16 hook",
    "PowerSGD 4",
    *FIXED[2:],
    "planned, PipeSGD",
    "fp8 PipeSGD",
    "ecsq:0.5 PipeSGD",
    "quantize:4 PipeSGD",
    "fp8 PipeSGD, stale",
    "DDP again",
)
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class TrainingSpeedOptions:
    """What is trained, where, and with which methods.

    ``data_dir`` has the four files of MNIST, and ``images`` a version of CIFAR as ``a2dtwp`` reads it, in
    whose place scikit-learn's digits are used by default; ``text`` is a text for the GPT, by default Python's
    language reference. All hosts share the machine's ``device``. Each method trains ``seeds`` times.
    """

    hosts: int = 4
    rates: tuple[str, ...] = ("1gbit",)
    tasks: tuple[str, ...] = TASKS
    methods: tuple[str, ...] = USUAL
    data_dir: Path | None = None
    images: Path | None = None
    text: Path | None = None
    device: str = "cpu"
    seeds: int = LEAST_SEEDS

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
        if self.seeds < 1:
            raise SpecError(f"--seeds must be 1 or more, but {self.seeds} came")
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
        "--methods", metavar="LIST", help="DDP and methods with one of these words in their names (some)"
    )
    parser.add_argument("--seeds", type=int, metavar="N", default=LEAST_SEEDS, help="trainings of each (3)")
    parser.add_argument("--data-dir", metavar="DIR", help="MNIST's four files ($GRADWIRE_DATA, or digits)")
    parser.add_argument(
        "--images", metavar="DIR", help="CIFAR-10 or -100 (cifar10 in $GRADWIRE_DATA, or digits)"
    )
    parser.add_argument("--text", metavar="FILE", help="for the GPT (Python's language reference)")
    parser.add_argument("--device", metavar="NAME", default="cpu", help="cpu, or cuda: one GPU for all (cpu)")


def read(words: argparse.Namespace) -> TrainingSpeedOptions:
    """Return the options. Raises ``GradwireError``."""
    methods: tuple[str, ...] = USUAL
    if words.methods is not None:
        parts = between_commas(words.methods)
        for part in parts:
            if not any(part in name for name in METHODS):
                raise SpecError(f"no method has {part!r} in its name; the methods are {'; '.join(METHODS)}")
        methods = tuple(name for name in METHODS if name in ALWAYS or any(part in name for part in parts))
    return TrainingSpeedOptions(
        words.hosts,
        tuple(dict.fromkeys(between_commas(words.rates))),
        tuple(dict.fromkeys(between_commas(words.tasks))),
        methods,
        mnist(words.data_dir),
        find_cifar10(Path(words.images) if words.images else None),
        None if words.text is None else Path(words.text).absolute(),
        words.device,
        words.seeds,
    )


def mnist(named: str | None) -> Path | None:
    """Return the folder of MNIST: the named one, else ``$GRADWIRE_DATA``; None for digits, without either."""
    folder = Path(named).absolute() if named else data_folder()
    return None if folder is None else find("mnist", folder)


def cells(options: TrainingSpeedOptions) -> list[Cell]:
    """Return a cell for each rate, task, seed, and method.

    DDP, whose loss the others need, comes before them. They begin with another one in each seed, so that a
    machine that becomes slower favours none.
    """
    others = [name for name in METHODS if name in options.methods and name not in ALWAYS]
    return [
        {"hosts": options.hosts, "rate": rate, "task": task, "seed": seed, "method": method}
        for rate in options.rates
        for task in options.tasks
        for seed in range(options.seeds)
        for method in (*ALWAYS, *turned(others, seed, LEAST_SEEDS))
    ]


def run(options: TrainingSpeedOptions, cells: Sequence[Cell], before: Sequence[Row], report: Report) -> None:
    """Train in a testbed for each rate, task, and seed: DDP never gives up the memory of its models."""
    files = {"data_dir": options.data_dir, "images": options.images, "text": options.text}
    given = {name: str(path) for name, path in files.items() if path is not None}
    given["device"] = options.device
    for place, group in groupby(cells, key=_testbed_of):
        judged = [row for row in before if _testbed_of(row) == place and row["method"] == JUDGE]
        target = {"target": target_of(judged[0])} if judged else {}
        measure_cells(RUNS, list(group), report, {**given, **target}, KEPT_MEMORY)


def _testbed_of(row: Row) -> tuple[tuple[str, str], int]:
    return place_of(row), row["seed"]


EXPERIMENT = Experiment(
    name="training-speed",
    question="how much faster does gradwire reach the loss of plain DDP?",
    add_arguments=add_arguments,
    read=read,
    cells=cells,
    run=run,
    table=table,
    version=3,
)
