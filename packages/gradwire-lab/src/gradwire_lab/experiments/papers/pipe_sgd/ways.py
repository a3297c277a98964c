"""PS-Sync, D-Sync, and Pipe-SGD on the hosts of testbeds, whose rates are computed from a plain step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

from gradwire_lab.experiments.claim import RATIO, Bound, Claim, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Reporter, Row, cells_of, grouped, select
from gradwire_lab.experiments.hosts import measure_cells
from gradwire_lab.experiments.learning import Goal, Trainings
from gradwire_lab.experiments.papers.exhibit import Run, row_of
from gradwire_lab.testbed.registry import KEPT_MEMORY

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TRAINER = "gradwire_lab.experiments.papers.pipe_sgd.trainer"
"""The name of the module that trains on the hosts; importing the module here would import torch."""
PLAIN, LINE, MODEL, TIME, TRAIN = "plain", "line", "model", "time", "train"
"""The kinds of cells: steps without exchanges, exchanges, alpha to S, timed steps, and training runs."""
EXACT, TRUNCATED, QUANTIZED = "identity", "truncate:16", "quantize:8"
UNLIMITED = "unlimited"
IN_SEGMENTS = "K = 2 in segments"
"""The name of a pipeline whose segments leave during backward."""
BUCKET_NBYTES = 1 << 16
"""The size of segments that leave during backward: each of MNIST-MLP's two largest weights fills one."""


class TrainingMethod(NamedTuple):
    """A training method; with buckets, segments of a gradient leave during backward."""

    codec: str = EXACT
    pipeline: int = 1
    correction: str = "none"
    has_server: bool = False
    bucket_nbytes: int | None = None


CODECS = {"": EXACT, "+T": TRUNCATED, "+Q": QUANTIZED}
"""The suffixes of methods in the paper, and their codecs."""
WAYS = {
    "PS-Sync": TrainingMethod(has_server=True),
    **{f"D-Sync{suffix}": TrainingMethod(codec) for suffix, codec in CODECS.items()},
    **{f"Pipe-SGD{suffix}": TrainingMethod(codec, 2) for suffix, codec in CODECS.items()},
    **{f"eager Pipe-SGD{suffix}": TrainingMethod(codec, 2, "eager") for suffix, codec in CODECS.items()},
    **{f"K = {pipeline}": TrainingMethod(pipeline=pipeline) for pipeline in (1, 2, 3, 4)},
    IN_SEGMENTS: TrainingMethod(pipeline=2, bucket_nbytes=BUCKET_NBYTES),
}
"""The methods by the paper's names. Pipe-SGD has no correction, as published; eager is the default here."""


def cells_on_lines(
    data: str,
    runs: Collection[str],
    seeds: Sequence[int],
    ratios: Sequence[float],
    codecs: Sequence[str],
    *,
    with_model: bool = False,
    timed: Collection[str] = (),
    **more: Sequence[object],
) -> list[Cell]:
    """Return cells grouped by network: a plain step, training runs, and each link's timed steps.

    Each of the ``ratios`` of communication to computation defines a link, on which exchanges with the
    ``codecs`` are measured and, with ``with_model``, alpha, beta, gamma, and S. The methods in ``timed`` have
    no training runs. ``more`` are further fields of runs, with their values.
    """
    groups = [[run for run in runs if WAYS[run].has_server == has_server] for has_server in (False, True)]
    found: list[Cell] = [{"kind": PLAIN, "data": data}]
    for group in groups:
        found += cells_of({"kind": TRAIN, "data": data}, **more, seed=seeds, run=group)
    for ratio in ratios:
        line = {"data": data, "ratio": ratio}
        found += cells_of({"kind": LINE, **line}, codec=codecs)
        found += [{"kind": MODEL, **line}] if with_model else []
        for group in (*groups, [*timed]):
            found += cells_of({"kind": TIME, **line}, **more, run=group)
    return found


def on_hosts(task: str, workers: int) -> Run[DataclassInstance]:
    """Return the run of an exhibit that trains one task on ``workers`` hosts, plus a host for a server.

    On a link with a ``ratio``, a ring's bytes take this multiple of a plain step. Other cells run first, on
    unlimited links.
    """

    def run(
        options: DataclassInstance, cells: Sequence[Cell], before: Sequence[Row], report: Reporter
    ) -> None:
        known = [*before]

        def take(row: Row) -> None:
            known.append(row)
            report(row)

        more = {"task": task, "options": asdict(options)}
        for on_lines in (False, True):
            placed = [_placed(cell, workers, known) for cell in cells if ("ratio" in cell) == on_lines]
            measure_cells(TRAINER, placed, take, more, KEPT_MEMORY)

    return run


def _placed(cell: Cell, workers: int, known: Sequence[Row]) -> Cell:
    """Return a cell with the added fields ``hosts`` and ``rate``."""
    hosts = workers + (WAYS[cell["run"]].has_server if "run" in cell else 0)
    if "ratio" not in cell:
        return {**cell, "hosts": hosts, "rate": UNLIMITED}
    plain = row_of(known, kind=PLAIN)
    sent_nbytes = 2 * (workers - 1) / workers * plain["nbytes"]
    bits_per_s = 8 * sent_nbytes / (cell["ratio"] * median(plain["steps_s"]))
    return {**cell, "hosts": hosts, "rate": f"{bits_per_s / 1e6:.6g}mbit"}


@dataclass(frozen=True)
class MeasuredWays:
    """The rows of an exhibit that ran with ``on_hosts``, by kind."""

    rows: Sequence[Row]
    goal: Goal

    @property
    def ratios(self) -> list[float]:
        """The ratios of communication to computation that links were configured for."""
        return [*grouped(select(self.rows, kind=LINE), "ratio")]

    @property
    def plain_s(self) -> float:
        """The step time without an exchange, in seconds."""
        return float(median(row_of(self.rows, kind=PLAIN)["steps_s"]))

    def exchange_s(self, ratio: float, codec: str = EXACT) -> float:
        """Return the seconds of a separate exchange on a link."""
        return float(median(row_of(self.rows, kind=LINE, ratio=ratio, codec=codec)["exchange_s"]))

    def step_s(self, run: str, ratio: float, **names: object) -> float:
        """Return the step time on a link, in seconds."""
        return float(median(row_of(self.rows, kind=TIME, run=run, ratio=ratio, **names)["steps_s"]))

    def overlapped_s(self, ratio: float, codec: str = EXACT) -> float:
        """Return the time that a pipeline can overlap: the shorter of computation and communication."""
        return min(self.plain_s, self.exchange_s(ratio, codec))

    def measured_ratio(self, ratio: float) -> float:
        """Return the measured ratio of communication to computation on a link configured for a ratio."""
        return self.exchange_s(ratio) / self.plain_s

    def lines(self, within: float) -> Iterator[Claim]:
        """Yield, for each link, the claim that it has its configured ratio but for the share ``within``."""
        for ratio in self.ratios:
            text = f"communication over computation on the link set for {ratio:g}"
            yield Claim(text, only(self.measured_ratio(ratio)), near(ratio, within), unit=RATIO)

    def accuracies(self, run: str, **names: object) -> list[float]:
        """Return the final accuracies of training runs, one per seed."""
        return [row["accuracy"] for row in select(self.rows, kind=TRAIN, run=run, **names)]

    def trainings(
        self, exact: str, *runs: str, expected_failure: str = "", **names: object
    ) -> list[Trainings]:
        """Return the training runs of some methods, compared with the ``exact`` method."""
        compared = self.accuracies(exact, **names)
        return [
            Trainings(run, self.accuracies(run, **names), compared, self.goal, expected_failure)
            for run in runs
        ]

    def lost(
        self, published: Mapping[str, float], wanted: Bound, place: str, text: str = "", **names: str
    ) -> Iterator[Claim]:
        """Yield the claims that each method in ``published`` has D-Sync's accuracy, within ``wanted``."""
        exact, learned = self.accuracies("D-Sync", **names), self.trainings("D-Sync", "D-Sync", **names)
        for run, accuracy in published.items():
            if run != "D-Sync":
                yield Claim(
                    f"{text}accuracy of {run}, below D-Sync's",
                    only(fmean(exact) - fmean(self.accuracies(run, **names))),
                    wanted,
                    published=Published(place, published["D-Sync"] - accuracy),
                    rests_on=learned,
                )
