"""All-reduces on the hosts of a testbed: their seconds, the line of the hosts, and the best by formula."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from gradwire.experiments.experiment import Cell, Row
from gradwire.plan import FLOAT_NBYTES
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, butterfly_s, ring_s, star_s, tree_s

if TYPE_CHECKING:  # torch's import takes seconds: only the hosts need it
    from gradwire.experiments.hosts.ranks import Ranks

FORMULAS: Mapping[str, Callable[[int, float, AlphaBetaGamma], float]] = {
    "star": star_s,
    "tree": tree_s,
    "ring": ring_s,
    "butterfly": butterfly_s,
}
"""Equations 1 to 4 by algorithm. One host of the star is the server, so p in equation 1 is one less."""


def rate(hosts: int, total_mbit: int) -> str:
    """Return the rate of each host, if all together have ``total_mbit`` Mbit/s each way.

    Examples
    --------
    >>> rate(2, 1600), rate(16, 1600)
    ('800mbit', '100mbit')
    """
    return f"{total_mbit // hosts}mbit"


def in_words(hosts: Sequence[int]) -> str:
    """Return numbers of hosts as a list.

    Examples
    --------
    >>> in_words([2, 4, 8]), in_words([4])
    ('2, 4 and 8', '4')
    """
    words = [*map(str, hosts)]
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def measure(ranks: Ranks, cells: Sequence[Cell], most: int, budget_s: float) -> None:
    """Measure the cells of one network as one of its ranks: up to ``most`` exchanges in ``budget_s`` each."""
    from gradwire.machine import cores

    line = ranks.line()
    for cell in cells:
        figures = {
            **_exchanges(ranks, cell, most, budget_s),
            "line_latency_s": line.latency_s,
            "line_nbytes_per_s": line.nbytes_per_s,
            "cores": cores(),
        }
        ranks.report(cell, figures)


def _exchanges(ranks: Ranks, cell: Cell, most: int, budget_s: float) -> Mapping[str, Any]:
    """Return the seconds of exchanges, and the processor seconds that all hosts together need for one."""
    from gradwire.codecs import parse
    from gradwire.exchange import Exchange
    from gradwire.plan import Plan

    exchange = Exchange(ranks.link, Plan(parse("identity"), cell["algorithm"]))
    source = ranks.gradient(cell["nbytes"] // FLOAT_NBYTES)
    bucket, processor_s = source.clone(), list[float]()
    exchange.all_reduce(source[: 1 << 16].clone())  # makes the buffers

    def run() -> None:
        began = time.process_time()
        exchange.all_reduce(bucket)
        processor_s.append(time.process_time() - began)

    seconds = ranks.repeat_s(run, lambda: bucket.copy_(source), budget_s=budget_s, least=1, most=most)
    return {"seconds": seconds, "processor_s": sum(ranks.gather(median(processor_s)))}


def over_own(row: Row) -> float:
    """Return a row's median time over that of its algorithm's formula, with the line as measured."""
    return float(median(row["seconds"])) / own_best_s(row)


def over_best(row: Row) -> float:
    """Return a row's median time over that of the fastest formula, with the line as measured."""
    return float(median(row["seconds"])) / best_s(row)


def own_best_s(row: Row) -> float:
    """Return the seconds of the row's algorithm by its formula."""
    return FORMULAS[row["algorithm"]](row["hosts"], row["nbytes"], _line(row))


def best_s(row: Row) -> float:
    """Return the seconds of the algorithm whose formula is the fastest."""
    return min(formula(row["hosts"], row["nbytes"], _line(row)) for formula in FORMULAS.values())


def _line(row: Row) -> AlphaBetaGamma:
    return AlphaBetaGamma(row["line_latency_s"], 1 / row["line_nbytes_per_s"])
