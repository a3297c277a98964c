"""The loss after equal steps with automatic plans, compared with plain DDP, and the bytes sent.

DDP and its bf16 hook train over unlimited links, because their losses don't depend on the rate. Fixed plans
show how fast the best choice would have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, median

from gradwire.cli.lists import algorithm_specs, codec_specs
from gradwire.tables import Column, Table, figure
from gradwire_lab.experiments.answer import Answer
from gradwire_lab.experiments.experiment import (
    FILE,
    FOLDER,
    Cell,
    CheckedOptions,
    Experiment,
    Row,
    cells_of,
    option,
)
from gradwire_lab.experiments.hosts import check_networks, measured_by
from gradwire_lab.experiments.learning import loss_of
from gradwire_lab.testbed.registry import KEPT_MEMORY

RUNS = "gradwire_lab.experiments.auto.runs"
"""The name of the module that trains on the hosts; importing the module here would import torch."""
TASKS = ("mlp", "cnn", "batch-norm", "gpt", "lstm", "table")
DDP, AUTO = "DDP", "auto"
UNLIMITED = (DDP, "bf16 hook")
METHODS = (*UNLIMITED, AUTO)
FIXED = " over "
"""The separator between a fixed plan's codec and its algorithm."""
COLUMNS = (
    *map(Column.of_text, ("task", "method")),
    Column("loss"),
    Column("to DDP's", "%"),
    Column("ratio"),
    *(Column(name, "ms") for name in ("step", "later")),
    Column.of_text("plan"),
)
NOTE = (
    "Loss: held-out loss, mean over the seeds. To DDP's: mean, minimum, and maximum of the seeds' "
    "differences. Ratio: bytes of float32 per byte sent, including the first steps; in parentheses, for "
    "the second half only, when plans have been chosen. Step: mean of all steps. Later: median of the "
    "second half."
)


@dataclass(frozen=True)
class AutoOptions(CheckedOptions):
    """The options. Every combination of ``codecs`` and ``algorithms`` is a fixed plan."""

    hosts: int = option(4, "number of hosts")
    rate: str = option("100mbit", "rate of each host's link", value="RATE")
    tasks: tuple[str, ...] = option(TASKS, "tasks to train", known=TASKS)
    methods: tuple[str, ...] = option(METHODS, "methods besides DDP", known=METHODS)
    codecs: tuple[str, ...] = option((), "codecs, for fixed plans", shown="none", read=codec_specs)
    algorithms: tuple[str, ...] = option(("ring",), "algorithms, for fixed plans", read=algorithm_specs)
    seeds: int = option(3, "seeds, with one training run of each method per seed", least=1)
    data_dir: Path | None = option(None, "folder of the data set (CIFAR)", shown="digits", value=FOLDER)
    text: Path | None = option(
        None, "training text, for gpt and lstm", shown="Python's language reference", value=FILE
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_networks([(self.hosts, self.rate)])


def cells(options: AutoOptions) -> list[Cell]:
    """Return a cell for each method, task, and seed. DDP, the baseline, is always included."""
    methods = [name for name in METHODS if name == DDP or name in options.methods]
    methods += [FIXED.join(pair) for pair in product(options.codecs, options.algorithms)]
    seeds = range(1, options.seeds + 1)
    found = cells_of({"hosts": options.hosts}, method=methods, task=options.tasks, seed=seeds)
    return [{**cell, "rate": "unlimited" if cell["method"] in UNLIMITED else options.rate} for cell in found]


def _given(options: AutoOptions) -> dict[str, str]:
    files = {"data_dir": options.data_dir, "text": options.text}
    return {name: str(path) for name, path in files.items() if path is not None}


def table(rows: Sequence[Row]) -> list[str | Table]:
    """Return a table of all tasks and methods, and a summary of the automatic choices."""
    by_place = {(row["task"], row["method"], row["seed"]): row for row in rows}
    tasks, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "method"))
    seeds = sorted({row["seed"] for row in rows})
    lines, means, slower = list[tuple[str, ...]](), list[float](), list[float]()
    ratios, later_ratios, sent = list[float](), list[float](), list[Row]()
    for task in tasks:
        for method in methods:
            own = [by_place[task, method, seed] for seed in seeds]
            changes = [*_changes(by_place, task, method, seeds)]
            lines.append((task, method, *_figures(own, changes)))
            if method == AUTO:
                means.append(fmean(changes))
                ratios.append(fmean(row["ratio"] for row in own))
                later_ratios.append(fmean(row["later_ratio"] for row in own))
                sent += own
        if fixed := [method for method in methods if FIXED in method and AUTO in methods]:
            fastest_s = min(_later_s(by_place, task, method, seeds) for method in fixed)
            slower.append(fastest_s / _later_s(by_place, task, AUTO, seeds))
    parts: list[str | Table] = [Table(COLUMNS, lines), ""]
    if means:
        of_all = sum(row["raw_nbytes"] for row in sent) / sum(row["wire_nbytes"] for row in sent)
        most = max(map(abs, means))
        parts += [
            f"Automatic choices send {of_all:.1f} times fewer bytes over all tasks together, "
            f"{fmean(ratios):.1f} times on average over the tasks, and {fmean(later_ratios):.1f} times in "
            f"the second half. Their final loss differs from DDP's by at most {100 * most:.2f} %, "
            f"and by {100 * fmean(means):+.2f} % on average.",
            "",
        ]
    if slower:
        parts += [
            f"After the choice, steps are {fmean(slower):.2f} times as fast as with each task's fastest "
            f"fixed plan on average, and {min(slower):.2f} times in the worst case.",
            "",
        ]
    return [*parts, NOTE]


def _changes(
    rows: Mapping[tuple[str, str, int], Row], task: str, method: str, seeds: Sequence[int]
) -> Iterator[float]:
    """Yield, for each seed, the share by which a method's loss exceeds DDP's."""
    for seed in seeds:
        yield loss_of(rows[task, method, seed]["loss"]) / loss_of(rows[task, DDP, seed]["loss"]) - 1


def _later_s(rows: Mapping[tuple[str, str, int], Row], task: str, method: str, seeds: Sequence[int]) -> float:
    return median(float(rows[task, method, seed]["later_s"]) for seed in seeds)


def _figures(rows: Sequence[Row], changes: Sequence[float]) -> tuple[str, ...]:
    mean, least, most = (100 * each for each in (fmean(changes), min(changes), max(changes)))
    ratios, later_ratios = ([row[name] for row in rows if name in row] for name in ("ratio", "later_ratio"))
    return (
        f"{fmean(row['loss'] for row in rows):.4f}",
        "" if rows[0]["method"] == DDP else f"{mean:+.2f} ({least:+.2f} to {most:+.2f})",
        f"{fmean(ratios):.1f}x ({fmean(later_ratios):.1f}x)" if ratios else "",
        figure(1e3 * fmean(row["step_s"] for row in rows)),
        figure(1e3 * median(row["later_s"] for row in rows)),
        rows[0].get("plan", ""),
    )


EXPERIMENT = Experiment(
    name="auto",
    question="what do automatic choices cost the loss, and save in bytes?",
    answer=Answer("ratio", ("method", "task")),
    options=AutoOptions,
    cells=cells,
    run=measured_by(RUNS, _given, KEPT_MEMORY),
    table=table,
    version=3,
)
