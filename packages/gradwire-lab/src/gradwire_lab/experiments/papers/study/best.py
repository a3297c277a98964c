"""The formulas of all-reduces beside measured seconds: each algorithm's own, and the best of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, butterfly_s, ring_s, star_s, tree_s
from gradwire_lab.experiments.experiment import Row
from gradwire_lab.experiments.hosts.exchanges import line_of

FORMULAS: Mapping[str, Callable[[int, float, AlphaBetaGamma], float]] = {
    "star": star_s,
    "tree": tree_s,
    "ring": ring_s,
    "butterfly": butterfly_s,
}
"""Equations 1 to 4 by algorithm. One host of the star is the server, so p in equation 1 is one less."""


def in_words(hosts: Sequence[int]) -> str:
    """Return numbers of hosts as a list.

    Examples
    --------
    >>> in_words([2, 4, 8]), in_words([4])
    ('2, 4 and 8', '4')
    """
    words = [*map(str, hosts)]
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def over_own(row: Row) -> float:
    """Return a row's median time over that of its algorithm's formula, with the line as measured."""
    return float(median(row["seconds"])) / own_best_s(row)


def over_best(row: Row) -> float:
    """Return a row's median time over that of the fastest formula, with the line as measured."""
    return float(median(row["seconds"])) / best_s(row)


def own_best_s(row: Row) -> float:
    """Return the seconds of the row's algorithm by its formula."""
    return FORMULAS[row["algorithm"]](row["hosts"], row["nbytes"], line_of(row))


def best_s(row: Row) -> float:
    """Return the seconds of the algorithm whose formula is the fastest."""
    return min(formula(row["hosts"], row["nbytes"], line_of(row)) for formula in FORMULAS.values())
