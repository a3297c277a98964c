"""The formulas of all-reduces, compared with measured seconds: the algorithm's own, and the best of all."""

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
"""Equations 1 to 4 by algorithm. One host of the star is the server, so equation 1 uses p - 1."""


def in_words(hosts: Sequence[int]) -> str:
    """Return numbers of hosts as a list in words.

    Examples
    --------
    >>> in_words([2, 4, 8]), in_words([4])
    ('2, 4 and 8', '4')
    """
    words = [*map(str, hosts)]
    return ", ".join(words[:-1]) + f" and {words[-1]}" if len(words) > 1 else "".join(words)


def over_own(row: Row) -> float:
    """Return a row's median time relative to its algorithm's formula, with the measured link."""
    return float(median(row["seconds"])) / own_best_s(row)


def over_best(row: Row) -> float:
    """Return a row's median time relative to the fastest formula, with the measured link."""
    return float(median(row["seconds"])) / best_s(row)


def own_best_s(row: Row) -> float:
    """Return the seconds of the row's algorithm by its formula."""
    return FORMULAS[row["algorithm"]](row["hosts"], row["nbytes"], line_of(row))


def best_s(row: Row) -> float:
    """Return the seconds of the algorithm with the fastest formula."""
    return min(formula(row["hosts"], row["nbytes"], line_of(row)) for formula in FORMULAS.values())
