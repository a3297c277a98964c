"""Figure 8: GoogLeNet's 53 MB with four algorithms on 2 to 16 hosts, relative to the theoretical best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.experiments.claim import (
    RATIO,
    Bound,
    Claim,
    Explanation,
    Published,
    at_least,
    at_most,
    only,
)
from gradwire_lab.experiments.experiment import Cell, Row, cells_of
from gradwire_lab.experiments.hosts.exchanges import exchanging, rate
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, TWO_CORES, exhibit, paper
from gradwire_lab.experiments.papers.study.formulas import FORMULAS, in_words, over_best, over_own

PLACE = "figure 8"
NBYTES = 53e6
"""The size of GoogLeNet's gradient, in bytes."""
SERVERS = 16
MOST = 2.0
"""The largest published ratio of an all-reduce's time on 16 servers to the theoretical best."""
VARIANCE = 0.01
"""The published relative difference between repeated runs, and the allowed margin below the best."""
LATENCY_S, NBYTES_PER_S = 2.5e-6, 6e9
"""The latency and rate of the link that the paper measured."""
SEGMENTED = ("star", "tree")
"""The algorithms whose formulas reduce the whole bucket before the broadcast."""
OVERLAPPED = "a bucket's first segments come down while others still go up, and the formula has no segments."


@dataclass(frozen=True)
class StudyFigure8Options:
    """The options: numbers of hosts, total rate, a divisor of the bytes, a cell's exchanges and seconds."""

    hosts: tuple[int, ...]
    total_mbit: int
    smaller: int
    most: int
    budget_s: float


def cells(options: StudyFigure8Options) -> list[Cell]:
    """Return a cell for each number of hosts and algorithm."""
    nbytes = round(NBYTES / options.smaller / 4) * 4
    found = cells_of({"nbytes": nbytes}, hosts=options.hosts, algorithm=FORMULAS)
    return [{**cell, "rate": rate(cell["hosts"], options.total_mbit)} for cell in found]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare times with each algorithm's own formula, with the best formula, and with each other."""
    found = {(row["hosts"], row["algorithm"]): row for row in rows}
    hosts = sorted({row["hosts"] for row in rows})
    return [*_on_16(found, hosts), *_over_own(found, hosts), *_over_best(found, hosts), *_order(found, hosts)]


Found = Mapping[tuple[int, str], Row]
_ratio = partial(Claim, unit=RATIO)


def _on_16(found: Found, hosts: Sequence[int]) -> Iterator[Claim]:
    """Yield the claim about the paper's measurement, the butterfly on 16 servers."""
    row = found.get((SERVERS, "butterfly"))
    yield _ratio(
        f"butterfly of 53 MB on {SERVERS} hosts, over the best",
        only(None if row is None else over_own(row)),
        Bound(1 - VARIANCE, MOST),
        published=Published(PLACE, MOST, is_limit=True),
        samples=_samples(found, [SERVERS], ["butterfly"]),
        not_run="" if SERVERS in hosts else f"--full has {SERVERS} hosts.",
    )


def _over_own(found: Found, hosts: Sequence[int]) -> Iterator[Claim]:
    for algorithm in FORMULAS:
        own = {each: found.get((each, algorithm)) for each in hosts}
        yield _ratio(
            f"{algorithm} on {in_words(hosts)} hosts: time over its own best",
            {str(each): None if row is None else over_own(row) for each, row in own.items()},
            Bound(1 - VARIANCE, MOST),
            of_each=True,
            published=Published(PLACE, MOST, is_limit=True) if algorithm == "butterfly" else None,
            samples=_samples(found, hosts, [algorithm]),
            better=_overlapped(algorithm),
        )


def _over_best(found: Found, hosts: Sequence[int]) -> Iterator[Claim]:
    """Yield each algorithm's time relative to the fastest formula, on the most hosts."""
    most, line = max(hosts, default=SERVERS), AlphaBetaGamma(LATENCY_S, 1 / NBYTES_PER_S)
    published = {name: formula(most, NBYTES, line) for name, formula in FORMULAS.items()}
    for algorithm, own_s in published.items():
        ratio, row = own_s / min(published.values()), found.get((most, algorithm))
        yield _ratio(
            f"{algorithm} on {most} hosts: time over the best of all",
            only(None if row is None else over_best(row)),
            Bound((1 - VARIANCE) * ratio, MOST * ratio),
            published=Published("table 1", ratio),
            samples=_samples(found, [most], [algorithm]),
            better=_overlapped(algorithm, ratio),
        )


def _samples(found: Found, hosts: Sequence[int], algorithms: Sequence[str]) -> int:
    """Return the number of measurements of the least measured exchange."""
    rows = [found.get((each, algorithm)) for each in hosts for algorithm in algorithms]
    return min((len(row["seconds"]) for row in rows if row is not None), default=0)


def _overlapped(algorithm: str, ratio: float = 1.0) -> Explanation | None:
    """Return the bound for a simultaneous reduce and broadcast: half of the formula's time."""
    bound = Bound((1 - VARIANCE) * ratio / 2, MOST * ratio)
    return Explanation(OVERLAPPED, bound) if algorithm in SEGMENTED else None


def _order(found: Found, hosts: Sequence[int]) -> Iterator[Claim]:
    """Yield claims that the butterfly is the fastest algorithm, and the star the slowest.

    On two hosts, star and tree are the same.
    """
    for one, others, wanted, compared in (
        ("butterfly", ("ring", "tree", "star"), at_most(1 + VARIANCE), hosts),
        ("star", ("tree", "ring"), at_least(1.0), hosts[1:]),
    ):
        for other in others:
            pairs = {each: (found.get((each, one)), found.get((each, other))) for each in compared}
            yield _ratio(
                f"{one} on {in_words(compared)} hosts: time over the {other}'s",
                {
                    str(each): None if a is None or b is None else median(a["seconds"]) / median(b["seconds"])
                    for each, (a, b) in pairs.items()
                },
                wanted,
                of_each=True,
                published=Published("section 4.5", 1.0, is_limit=True),
                samples=_samples(found, compared, [one, other]),
            )


EXHIBIT = exhibit(
    "study",
    PLACE,
    "how near to the theoretical best do four algorithms come, and which one is the fastest?",
    cells=cells,
    run=exchanging(None, most="most"),
    claims=claims,
    quick=StudyFigure8Options((2, 4), 1600, 5, 3, 2.0),
    full=StudyFigure8Options((2, 4, 8, 16), 1600, 1, 3, 12.0),
    scaling="hosts are network namespaces of one machine that exchange over TCP. All links together have "
    "1.6 Gbit/s (800 Mbit/s each on 2 hosts, 100 on 16) instead of 48 Gbit/s each, because all "
    "hosts share two cores. The best time is computed from the rate and latency measured between "
    "two of the hosts. Exchanges of more than 12 s are measured once. --quick has 2 and 4 hosts and "
    "a gradient that is 5 times smaller.",
    origins={
        "NBYTES SERVERS MOST hosts": paper("figure 8"),
        "VARIANCE": paper("section 6.1"),
        "LATENCY_S NBYTES_PER_S": paper("figure 7"),
        "total_mbit": TWO_CORES,
        "smaller most budget_s": RUN_TIME,
    },
    seconds=(25, 460),
    version=2,
)
