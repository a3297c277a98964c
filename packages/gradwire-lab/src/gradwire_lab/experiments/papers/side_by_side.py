"""Cells without times, measured side by side: one process and one thread of torch per core.

A cell's row has the same bits in any order and process, because one thread fixes the order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

from gradwire.machine import cores
from gradwire_lab.experiments.experiment import Cell, HeardWarnings, Options, Reporter, Row, in_words
from gradwire_lab.experiments.papers.exhibit import Run

if TYPE_CHECKING:  # torch's import takes seconds
    from gradwire.launch.local import RankContext

TIMEOUT_S = 60.0
"""The longest wait for a reply of the store through which processes share the groups."""
Measure = Callable[[Options, Cell], Mapping[str, Any]]
MeasureGroup = Callable[[Options, Sequence[Cell]], Iterable[Row]]


def side_by_side(measure: Measure[Options]) -> Run[Options]:
    """Return a run that measures as many cells at once as there are cores.

    ``measure``, a module-level function, returns a cell's figures, which must not include times.
    """
    return groups_side_by_side(partial(_row, measure), ())


def groups_side_by_side(measure: MeasureGroup[Options], alike: Sequence[str]) -> Run[Options]:
    """Return a run that measures groups of cells side by side, such as cells that share a training run.

    ``measure``, a module-level function, returns or yields the rows of one group. Cells of a group have equal
    values of the names in ``alike``; without names, each cell is a group.
    """

    def run(options: Options, cells: Sequence[Cell], _before: Sequence[Row], report: Reporter) -> None:
        from gradwire.launch.local import Task, run_local

        groups: dict[str, list[Cell]] = {}
        for cell in cells:
            groups.setdefault(repr([cell[name] for name in alike or cell]), []).append(cell)
        work = _Work(measure, options, (*groups.values(),))
        task: Task[_Work[Options], Row] = Task(
            work=_take_groups,
            options=work,
            world=min(cores(), len(groups)),
            timeout_s=TIMEOUT_S,
            preload=("gradwire.sync.method", "torch._dynamo"),
            title="process {}".format,
            when=lambda row: "at its first cell" if row is None else f"after {in_words(row, ())}",
        )
        run_local(task, report)

    return run


@dataclass(frozen=True)
class _Work(Generic[Options]):
    """The work of every process."""

    measure: MeasureGroup[Options]
    options: Options
    groups: tuple[list[Cell], ...]


def _row(measure: Measure[Options], options: Options, cells: Sequence[Cell]) -> list[Row]:
    return [{**cell, **measure(options, cell)} for cell in cells]


def _take_groups(context: RankContext[Row], work: _Work[Any]) -> None:
    """Measure the groups that no other process has taken, until none is left."""
    import torch

    torch.set_num_threads(1)
    store = context.join_store()
    with HeardWarnings() as heard:
        while (number := store.add("groups taken", 1) - 1) < len(work.groups):
            group = work.groups[number]
            context.doing = f"measuring {in_words(group[0], ())}"
            for row in work.measure(work.options, group):
                context.report(heard.joined(row))
