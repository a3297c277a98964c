"""All-reduces between the hosts of a testbed: their times, and the link between two hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gradwire.deferred import torch
from gradwire.plan import FLOAT_NBYTES
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.experiments.experiment import Cell, Report, Row
from gradwire_lab.experiments.hosts import measure_cells

if TYPE_CHECKING:  # these modules import torch, which only the hosts need
    from gradwire.links import Link
    from gradwire_lab.experiments.hosts.ranks import Ranks

SHORT_NBYTES = 1 << 20
"""The largest message when a link is measured: at 200 Mbit/s, the measurement takes 3 s; with 16 MB, 15 s."""
FIRST_COUNT = 1 << 16
"""The number of values in the untimed first exchange: enough to connect, and few enough for slow links."""


def rate(hosts: int, total_mbit: int) -> str:
    """Return the rate of each host if all hosts together have ``total_mbit`` Mbit/s in each direction.

    Examples
    --------
    >>> rate(2, 1600), rate(16, 1600)
    ('800mbit', '100mbit')
    """
    return f"{total_mbit // hosts}mbit"


@dataclass(frozen=True)
class ExchangeOptions:
    """The options: numbers of workers, the hosts' total rate, gradient bytes, and exchanges per cell."""

    workers: tuple[int, ...]
    total_mbit: int
    nbytes: int
    repeats: int


def exchanging(
    budget_s: float | None,
    line_nbytes: int | None = None,
    also: Callable[[Row], Mapping[str, Any]] = lambda _row: {},
    most: str = "repeats",
) -> Callable[[Any, Sequence[Cell], Sequence[Row], Report], None]:
    """Return the ``run`` of an exhibit that times exchanges in one testbed per network of the cells.

    ``most`` is the option that limits the exchanges of a cell, and ``budget_s`` their seconds (by default,
    the option's). ``also`` adds figures to a row. ``measure`` describes cells.
    """

    def run(options: Any, cells: Sequence[Cell], _before: Sequence[Row], report: Report) -> None:
        limits = {
            "most": getattr(options, most),
            "budget_s": options.budget_s if budget_s is None else budget_s,
            "line_nbytes": line_nbytes,
        }
        measure_cells(__name__, cells, lambda row: report({**row, **also(row)}), limits)

    return run


def measure(
    ranks: Ranks, cells: Sequence[Cell], most: int, budget_s: float, line_nbytes: int | None = None
) -> None:
    """Measure the cells of one network as one of its ranks.

    A cell has the ``algorithm``, the ``nbytes`` of a gradient, and optionally the ``codec``; ``ranks``, if
    only the first hosts exchange; and ``down``, if a different algorithm broadcasts the sum. The link is
    measured with messages of at most ``line_nbytes``.
    """
    from gradwire.machine import cores

    line = ranks.line(line_nbytes)
    for cell in cells:
        with ranks.first(cell.get("ranks", ranks.world)) as link:
            count = cell["nbytes"] // FLOAT_NBYTES
            timed = ranks.timed(exchange_of(cell, link), count, budget_s, 1, most, FIRST_COUNT)
        figures = {
            "seconds": timed.seconds,
            "processor_s": sum(ranks.gather(median(timed.processor_s))),
            "line_latency_s": line.latency_s,
            "line_nbytes_per_s": line.nbytes_per_s,
            "cores": cores(),
        }
        ranks.report(cell, figures)


def exchange_of(cell: Cell, link: Link | None) -> Callable[[torch.Tensor], object]:
    """Return the exchange of a cell over a link. On a rank without a link, the exchange does nothing."""
    from gradwire.codecs import parse
    from gradwire.exchange import Exchange
    from gradwire.plan import Plan

    if link is None:
        return lambda _bucket: None
    up = Exchange(link, Plan(parse(cell.get("codec", "identity")), cell["algorithm"]))
    if "down" not in cell:
        return up.all_reduce
    down = Exchange(link, Plan(algorithm=cell["down"]))

    def through_the_root(bucket: torch.Tensor) -> None:
        up.reduce(bucket)
        down.broadcast(bucket)

    return through_the_root


def line_of(row: Row) -> AlphaBetaGamma:
    """Return the link measured by a row's hosts, for closed forms in which additions take no time."""
    return AlphaBetaGamma(row["line_latency_s"], 1 / row["line_nbytes_per_s"])
