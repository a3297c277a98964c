"""Step time and time to equal loss on a testbed: plain DDP, the hooks that PyTorch ships, and gradwire.

Each seed has weights and batches of its own, which all methods share. The other methods train until they
reach the held-out loss of plain DDP at its end; evaluations aren't timed. ``alone`` exchanges nothing and
shows how long a step's computation takes if all hosts compute at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gradwire.cli.parser import between_commas
from gradwire.errors import SpecError
from gradwire_lab.experiments.experiment import Cell, Experiment, Report, Row, turned
from gradwire_lab.experiments.hosts import check_networks, measure_cells
from gradwire_lab.experiments.learning import LEAST_SEEDS
from gradwire_lab.experiments.options import FILE, FOLDER, CheckedOptions, option
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
"""The methods that the table compares the others with."""
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


def _methods(text: str) -> tuple[str, ...]:
    """Return the methods that are always there, and those with one of the words of a list in their names."""
    parts = between_commas(text)
    for part in parts:
        if not any(part in name for name in METHODS):
            raise SpecError(f"no method has {part!r} in its name; the methods are {'; '.join(METHODS)}")
    return tuple(name for name in METHODS if name in ALWAYS or any(part in name for part in parts))


def mnist(named: str | None) -> Path | None:
    """Return the folder of MNIST: the named one, else ``$GRADWIRE_DATA``; None for digits, without either."""
    folder = Path(named).absolute() if named else data_folder()
    return None if folder is None else find("mnist", folder)


def _cifar(named: str | None) -> Path | None:
    return find_cifar10(Path(named) if named else None)


@dataclass(frozen=True)
class TrainingSpeedOptions(CheckedOptions):
    """The networks, tasks, and methods, the files of images and texts, the device, and the seeds.

    ``images`` has a version of CIFAR as ``a2dtwp`` reads it. All hosts share the machine's ``device``. Each
    method trains ``seeds`` times.
    """

    hosts: int = option(4, "number of hosts")
    rates: tuple[str, ...] = option(("1gbit",), "of every host")
    tasks: tuple[str, ...] = option(TASKS, "what to train", known=TASKS)
    methods: tuple[str, ...] = option(
        USUAL,
        "DDP and methods with one of these words in their names",
        shown="some",
        read=_methods,
        known=METHODS,
    )
    data_dir: Path | None = option(
        None, "MNIST's four files", shown="$GRADWIRE_DATA, or digits", value="PATH", read=mnist, always=True
    )
    images: Path | None = option(
        None,
        "CIFAR-10 or -100",
        shown="cifar10 in $GRADWIRE_DATA, or digits",
        value=FOLDER,
        read=_cifar,
        always=True,
    )
    text: Path | None = option(None, "for the GPT", shown="Python's language reference", value=FILE)
    device: str = option("cpu", "cpu, or cuda: one GPU for all", value="NAME", known=DEVICES)
    seeds: int = option(LEAST_SEEDS, "trainings of each", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(self.hosts, rate) for rate in self.rates])
        if self.data_dir is not None:
            find("mnist", self.data_dir)
        if self.device != "cpu" and not _has_gpu():
            raise SpecError("--device cuda needs a GPU that PyTorch sees, but there is none; leave it out")


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


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
    options=TrainingSpeedOptions,
    cells=cells,
    run=run,
    table=table,
    version=3,
)
