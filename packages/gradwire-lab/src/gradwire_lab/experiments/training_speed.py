"""Step time and time to equal loss on a testbed: plain DDP, PyTorch's own hooks, and gradwire.

With the same seed, all methods share initial weights and batches. ``alone`` exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from gradwire.cli.lists import between_commas
from gradwire.deferred import torch
from gradwire.errors import SpecError
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    FILE,
    FOLDER,
    Cell,
    CheckedOptions,
    Experiment,
    Report,
    Row,
    option,
    turned,
)
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
"""The name of the module that trains on the hosts; importing the module here would import torch."""
TASKS = ("mnist-mlp", "cifar-cnn", "wide-mlp", "gpt")
ALWAYS = (ALONE, JUDGE)
"""The methods with which the table compares all other methods."""
USUAL = (*ALWAYS, HOOK, "PowerSGD 1", ATTACHED, *FIXED[:2], PIPELINED)
"""The methods in the documentation's tables: common baselines, gradwire's defaults, and two plans."""
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
    """Return the methods that always run, and the methods whose names contain an entry of the list."""
    parts = between_commas(text)
    for part in parts:
        if not any(part in name for name in METHODS):
            raise SpecError(
                f"expected a part of a method's name, got {part!r}; choose from {'; '.join(METHODS)}"
            )
    return tuple(name for name in METHODS if name in ALWAYS or any(part in name for part in parts))


def mnist(named: str | None) -> Path | None:
    """Return MNIST's folder: ``named``, else the folder in ``$GRADWIRE_DATA``, else None for digits."""
    folder = Path(named).absolute() if named else data_folder()
    return None if folder is None else find("mnist", folder)


@dataclass(frozen=True)
class TrainingSpeedOptions(CheckedOptions):
    """The options; all hosts share the machine's ``device``, and each method trains once per seed."""

    hosts: int = option(4, "number of hosts")
    rates: tuple[str, ...] = option(("1gbit",), "link rates to compare")
    tasks: tuple[str, ...] = option(TASKS, "tasks to train", known=TASKS)
    methods: tuple[str, ...] = option(
        USUAL, "methods besides DDP, as parts of their names", shown="some", read=_methods, known=METHODS
    )
    data_dir: Path | None = option(
        None,
        "folder of the data set (MNIST)",
        shown="$GRADWIRE_DATA, or digits",
        value="DIR",
        read=mnist,
        always=True,
    )
    images: Path | None = option(
        None,
        "folder of CIFAR-10 or CIFAR-100",
        name="--cifar-dir",
        shown="cifar10 in $GRADWIRE_DATA, or digits",
        value=FOLDER,
        read=lambda named: find_cifar10(Path(named) if named else None),
        always=True,
    )
    text: Path | None = option(
        None, "training text, for the GPT", shown="Python's language reference", value=FILE
    )
    device: str = option("cpu", "cpu, or cuda: one GPU shared by all hosts", value="NAME", known=DEVICES)
    seeds: int = option(LEAST_SEEDS, "seeds, with one training run of each method per seed", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(self.hosts, rate) for rate in self.rates])
        if self.data_dir is not None:
            find("mnist", self.data_dir)
        if self.device != "cpu" and not torch.cuda.is_available():
            raise SpecError("expected a GPU that PyTorch sees for --device cuda, got none; omit --device")


def cells(options: TrainingSpeedOptions) -> list[Cell]:
    """Return a cell for each rate, task, seed, and method.

    DDP, whose loss other methods need, precedes them. Their order is rotated for each seed, against drift.
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
    """Train in a testbed per rate, task, and seed, because DDP never frees the memory of its models."""
    files = {"data_dir": options.data_dir, "images": options.images, "text": options.text}
    given: dict[str, object] = {name: str(path) for name, path in files.items() if path is not None}
    for place, group in groupby(cells, key=_testbed_of):
        judged = [row for row in before if _testbed_of(row) == place and row["method"] == JUDGE]
        target = {"target": target_of(judged[0])} if judged else {}
        measure_cells(RUNS, list(group), report, {**given, "device": options.device, **target}, KEPT_MEMORY)


def _testbed_of(row: Row) -> tuple[object, ...]:
    return place_of(row), row["seed"]


EXPERIMENT = Experiment(
    name="training-speed",
    question="how much faster does gradwire reach the loss of plain DDP?",
    answer=Answer("time", ("method",)),
    options=TrainingSpeedOptions,
    cells=cells,
    run=run,
    table=table,
    version=3,
)
