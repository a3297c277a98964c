"""Equations 1 to 4: the formulas' seconds, and measured exchanges over TCP between 2 to 16 hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, butterfly_s, ring_s, star_s, tree_s
from gradwire_lab.experiments.claim import Bound, Claim, Explanation, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of
from gradwire_lab.experiments.hosts.exchanges import exchanging, line_of, rate
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, TWO_CORES, chosen, exhibit

# The formulas of all-reduces, compared with measured seconds: the algorithm's formula, and the best formula.

FORMULAS: Mapping[str, Callable[[int, float, AlphaBetaGamma], float]] = {
    "star": star_s,
    "tree": tree_s,
    "ring": ring_s,
    "butterfly": butterfly_s,
}
"""Equations 1 to 4, by algorithm. One host of the star is the server, so equation 1 uses p - 1."""


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


# The exhibit.

PLACE = "equations 1 to 4"
LARGE_NBYTES, SMALL_NBYTES = 2_000_000, 64
"""The sizes of a gradient whose time is bandwidth, and of one whose time is latency."""
WITHIN = 0.15
BUDGET_S = 3.0
AT_ONCE = "the server receives from all workers at once, and the formula adds their latencies up."


@dataclass(frozen=True)
class FormulasOptions:
    """The options: numbers of hosts, their total rate, and the largest number of exchanges per cell."""

    hosts: tuple[int, ...]
    total_mbit: int
    most: int


def cells(options: FormulasOptions) -> list[Cell]:
    """Return a cell for each number of hosts, algorithm, and size."""
    found = cells_of(hosts=options.hosts, algorithm=FORMULAS, nbytes=(LARGE_NBYTES, SMALL_NBYTES))
    return [{**cell, "rate": rate(cell["hosts"], options.total_mbit)} for cell in found]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare each algorithm's measured seconds with its equation."""
    hosts = sorted({row["hosts"] for row in rows})
    found = {(row["hosts"], row["algorithm"], row["nbytes"]): row for row in rows}
    return [
        claim
        for number, algorithm in enumerate(FORMULAS, start=1)
        for claim in _claims(
            algorithm,
            {each: found.get((each, algorithm, LARGE_NBYTES)) for each in hosts},
            {each: found.get((each, algorithm, SMALL_NBYTES)) for each in hosts},
            partial(Claim, unit="", published=Published(f"equation {number}", 1.0)),
        )
    ]


Rows = Mapping[int, Row | None]


def _claims(algorithm: str, large: Rows, small: Rows, claim: Callable[..., Claim]) -> Iterator[Claim]:
    """Yield a claim about bandwidth, and claims about latency on the fewest and on the most hosts."""
    yield claim(
        f"{algorithm} of 2 MB on {in_words([*large])} hosts: measured time over the formula's",
        {str(hosts): None if row is None else over_own(row) for hosts, row in large.items()},
        near(1.0, WITHIN),
        of_each=True,
    )
    for hosts in dict.fromkeys((min(small, default=0), max(small, default=0))):
        row = small.get(hosts)
        yield claim(
            f"{algorithm} of 64 bytes on {hosts} hosts: measured time over the formula's",
            only(None if row is None else over_own(row)),
            near(1.0, WITHIN),
            otherwise=None if row is None else _processors(row),
            better=_at_once(row) if algorithm == "star" and row is not None else None,
        )


def _processors(row: Row) -> Explanation:
    """Return the bound for hosts that wait for cores: the formula's time plus the work over the cores."""
    work_s, formula_s = row["processor_s"] / row["cores"], own_best_s(row)
    return Explanation(
        f"{row['hosts']} hosts share {row['cores']} cores, which are busy for {1e6 * work_s:,.0f} us of an "
        f"exchange that takes {1e6 * formula_s:,.0f} us by the formula.",
        Bound(1 - WITHIN, (1 + WITHIN) * (formula_s + work_s) / formula_s),
    )


def _at_once(row: Row) -> Explanation:
    """Return the bound for simultaneous latencies: one worker's latency, in both directions."""
    return Explanation(AT_ONCE, Bound((1 - WITHIN) * 2 * row["line_latency_s"] / own_best_s(row), 1.0))


EXHIBIT = exhibit(
    "study",
    PLACE,
    "do exchanges take as long as their formulas say?",
    cells=cells,
    run=exchanging(BUDGET_S, most="most"),
    claims=claims,
    quick=FormulasOptions((2, 4), 1600, 5),
    full=FormulasOptions((2, 4, 8, 16), 1600, 9),
    scaling="hosts are network namespaces of one machine that exchange over TCP. All links together have "
    "1.6 Gbit/s, because all hosts share two cores. The formulas use the rate and latency measured "
    "between two of the hosts. One of the star's hosts is the server.",
    origins={
        "LARGE_NBYTES BUDGET_S most": RUN_TIME,
        "SMALL_NBYTES": chosen("one float for each of 16 hosts"),
        "WITHIN": chosen("the formula omits additions and CPU time"),
        "hosts": chosen("those of figure 8"),
        "total_mbit": TWO_CORES,
    },
    seconds=(20, 160),
    version=2,
)
