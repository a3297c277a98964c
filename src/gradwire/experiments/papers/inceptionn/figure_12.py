"""Figure 12: training time with an aggregator and with a ring, with and without the codec, on hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from types import MappingProxyType
from typing import Any

from gradwire.experiments.claim import (
    RATIO,
    Basis,
    Bound,
    Claim,
    Explanation,
    Published,
    at_least,
    at_most,
    only,
    within,
)
from gradwire.experiments.experiment import Cell, Reporter, Row
from gradwire.experiments.hosts.network import measure_cells
from gradwire.experiments.learning import GOALS, Trainings
from gradwire.experiments.papers.exhibit import exhibit, row_of
from gradwire.experiments.papers.inceptionn.training import WORKERS, data_name
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, calibrated, chosen, origins, paper

PLACE = "figure 12"
ON_HOSTS = "gradwire.experiments.papers.inceptionn.on_hosts"
"""The module that trains on the hosts, by name: it imports torch there."""
CODEC = "inceptionn:2^-10"


@dataclass(frozen=True)
class Way:
    """How a step's gradients become weights on all workers.

    Attributes
    ----------
    exact
        The same without the codec, which accuracies are compared with.
    hosts
        The workers, and an aggregator with a host of its own.
    up, down
        The collectives of gradients and of an aggregator's weights; no ``down``: gradients alone.
    codec
        Of gradients, on the hosts.
    nic
        The codec of the NICs between the hosts and their links.
    """

    exact: str
    hosts: int
    up: str
    down: str = ""
    codec: str = "identity"
    nic: str = ""


WA, TREE, INC = "WA", "WA, tree of aggregators", "INC"
COMPRESSED = ("INC+C", "INC+C, bounded", "INC+C, in NICs")
GROUPS = "hierarchical:2,star+star"
WAYS = MappingProxyType(
    {
        WA: Way(WA, WORKERS + 1, "star", "tree"),
        "WA+C": Way(WA, WORKERS + 1, "star", "tree", CODEC),
        TREE: Way(TREE, WORKERS, GROUPS, GROUPS),
        INC: Way(INC, WORKERS, "ring"),
        COMPRESSED[0]: Way(INC, WORKERS, "ring", codec=CODEC),
        COMPRESSED[1]: Way(INC, WORKERS, "ring", codec=f"{CODEC},bounded"),
        COMPRESSED[2]: Way(INC, WORKERS, "ring", nic=f"{CODEC} --no-merge"),
    }
)
"""WA sends gradients to one aggregator, whose weights go down a tree; the other has figure 1a's groups."""
PACE = "WA, to find the rate"
SHARE = (0.709, 0.802)
"""Published: communication in WA's time, of the four networks; the rate is set for the middle."""
TOTAL_CUT, COMMUNICATION_CUT = (0.31, 0.52), (0.36, 0.58)
"""Published of INC compared with WA, over the four networks."""
AGGREGATOR_CUT, FULL_CUT, RING_CUT = 0.308, (0.709, 0.807), 0.539
"""Of the communication: WA+C and INC+C compared with WA, and INC+C compared with INC."""
SPEEDUP, LOST = (2.2, 3.1), 0.015
"""The speed-up of INC+C over WA, and the accuracy that it loses in as many steps."""
BEYOND, FASTER = 0.1, 1.1
"""By what share figures may leave the published ones, and what counts as faster."""
RATIO_AT_10 = 11.6
"""Published: the largest mean ratio at 2^-10."""
FIRST_RATE, TRIES = 300_000_000, 2
"""Bits per second at which WA is measured first, and how often the rate is corrected."""


@dataclass(frozen=True)
class Options:
    """The network, images of a worker in a step, seeds, steps, and steps until the rate is found."""

    network: str
    batch: int
    seeds: tuple[int, ...]
    steps: int
    pace_steps: int


def cells(options: Options) -> list[Cell]:
    """Return a cell that finds the rate, and one for each way to train and each seed."""
    common = {"network": options.network, "data": data_name(), "batch": options.batch}
    return [
        {"run": PACE, **common, "steps": options.pace_steps},
        *(
            {"run": name, **common, "seed": seed, "steps": options.steps}
            for name in WAYS
            for seed in options.seeds
        ),
    ]


def run(_options: Options, cells: Sequence[Cell], before: Sequence[Row], report: Reporter) -> None:
    """Find the rate, and train on four hosts, or five with an aggregator, whose links keep to it."""
    rows = [*before]

    def note(row: Row) -> None:
        rows.append(row)
        report(row)

    if cells[0]["run"] == PACE:
        note({**cells[0], **find_rate(cells[0], report)})
    rate = row_of(rows, run=PACE)["rate"]
    measure_cells(ON_HOSTS, [on_hosts(cell, rate) for cell in cells if cell["run"] != PACE], note)


def on_hosts(cell: Cell, rate: str) -> Cell:
    """Return a cell with what the hosts need to know."""
    return {**cell, **asdict(WAYS[cell["run"]]), "rate": rate}


def find_rate(cell: Cell, report: Reporter) -> Mapping[str, Any]:
    """Return the rate at which WA communicates for the middle of table II's shares, from its measured steps.

    Communication takes as much longer as a rate is lower, nearly: so the second step comes close.
    """
    tried = list[tuple[int, float, float]]()
    rate, share = FIRST_RATE, fmean(SHARE)
    for _ in range(TRIES):
        report.say(f"WA at {rate / 1e6:.0f} Mbit/s")
        rows = list[Row]()
        measure_cells(ON_HOSTS, [on_hosts({**cell, "run": WA, "seed": 0}, f"{rate}bit")], rows.append)
        compute_s, communication_s = computing_s(rows[0]), communicating_s(rows[0])
        tried.append((rate, compute_s, communication_s))
        rate = round(rate * communication_s / (compute_s * share / (1 - share)))
    return {"rate": f"{rate}bit", "tried": tried}


def aggregator_messages() -> int:
    """Return the number of messages on the aggregator's link: workers' gradients, the tree's weights."""
    return WORKERS + int(math.log2(WORKERS)) + 1


def computing_s(row: Row) -> float:
    """Return the median seconds of computation in a step."""
    return float(median(row["compute_s"]))


def communicating_s(row: Row) -> float:
    """Return the median seconds of a step beside computation."""
    return float(median(all_s - own_s for all_s, own_s in zip(row["step_s"], row["compute_s"], strict=True)))


class Found:
    """The trainings by their names: means over seeds of the median step; NaN where a training is missing."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = {name: [row for row in rows if row["run"] == name] for name in WAYS}
        self.goal = GOALS[rows[0]["data"]]

    def communicating_s(self, run: str) -> float:
        """Return the seconds of a step beside computation."""
        return _mean(map(communicating_s, self._rows[run]))

    def step_s(self, run: str) -> float:
        """Return the seconds of a step."""
        return _mean(median(row["step_s"]) for row in self._rows[run])

    def ends(self, run: str) -> list[float]:
        """Return accuracies, by seed."""
        return [row["accuracy"] for row in self._rows[run]]

    def trainings(self, *runs: str) -> list[Trainings]:
        """Return what a figure of these runs rests on."""
        return [Trainings(run, self.ends(run), self.ends(WAYS[run].exact), self.goal) for run in runs]


def _mean(values: Iterable[float]) -> float:
    known = [*values]
    return fmean(known) if known else math.nan


def messages(run: str) -> float:
    """Return the gradients and weights that pass the busiest link in turn, at the largest published ratio."""
    way = WAYS[run]
    ratio = 1.0 if way.codec == "identity" and not way.nic else RATIO_AT_10
    if way.down:
        return WORKERS / ratio + aggregator_messages() - WORKERS
    return 2 * (WORKERS - 1) / WORKERS / ratio


def most_saved(own: str, other: str) -> float:
    """Return the share of the communication that a run saves if that is nothing but bytes over a rate."""
    return 1 - (1 - BEYOND) * messages(own) / messages(other)


BYTES = (
    "communication here is bytes over the links' rate, while the paper's has parts that neither the ring nor "
    "the codec shortens: drivers, and as many packets (section VIII-C)."
)


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the time beside computation, all of it, and accuracies, each with the trainings behind it."""
    found = Found(rows)
    return [*_of_ring(found), *_of_codec(found), *_accuracies(found)]


def _of_ring(found: Found) -> Iterator[Claim]:
    yield Claim(
        "share of WA's time in communication, for which the links' rate was set",
        only(found.communicating_s(WA) / found.step_s(WA)),
        within(SHARE, BEYOND),
        published=Published("table II", SHARE),
        basis=Basis.CALIBRATED,
        rests_on=found.trainings(WA),
    )
    yield Claim(
        "WA's time over that with a tree of aggregators",
        only(found.step_s(WA) / found.step_s(TREE)),
        at_least(FASTER),
        unit=RATIO,
        published=Published("section II-B"),
        rests_on=found.trainings(WA, TREE),
    )
    yield _saved("communication saved by the ring", found, INC, WA, COMMUNICATION_CUT)
    yield Claim(
        "time saved by the ring",
        only(1 - found.step_s(INC) / found.step_s(WA)),
        within(TOTAL_CUT, BEYOND),
        published=Published(PLACE, TOTAL_CUT),
        better=Explanation(BYTES, Bound(TOTAL_CUT[1], SHARE[1] * most_saved(INC, WA))),
        rests_on=found.trainings(INC, WA),
    )


def _of_codec(found: Found) -> Iterator[Claim]:
    yield _saved("communication saved by WA+C", found, "WA+C", WA, AGGREGATOR_CUT)
    for run in COMPRESSED:
        yield _saved(f"communication saved by {run}", found, run, WA, FULL_CUT)
        yield _saved(f"communication that {run} saves of the ring's", found, run, INC, RING_CUT)
        yield Claim(
            f"speed-up of {run}",
            only(found.step_s(WA) / found.step_s(run)),
            within(SPEEDUP, BEYOND),
            unit=RATIO,
            published=Published(PLACE, SPEEDUP),
            better=Explanation(BYTES, Bound(SPEEDUP[1], 1 / (1 - SHARE[1] * most_saved(run, WA)))),
            rests_on=found.trainings(run, WA),
        )


def _accuracies(found: Found) -> Iterator[Claim]:
    for run, way in WAYS.items():
        if run != way.exact:
            yield Claim(
                f"accuracy lost by {run} in as many steps",
                only(_mean(found.ends(way.exact)) - _mean(found.ends(run))),
                at_most(LOST),
                published=Published("section VIII-B", LOST, is_limit=True),
                rests_on=found.trainings(way.exact),
            )


def _saved(text: str, found: Found, own: str, other: str, published: float | tuple[float, float]) -> Claim:
    ends = published if isinstance(published, tuple) else (published, published)
    return Claim(
        text,
        only(1 - found.communicating_s(own) / found.communicating_s(other)),
        within(ends, BEYOND),
        published=Published(PLACE, published),
        better=Explanation(BYTES, Bound(ends[1], most_saved(own, other))),
        rests_on=found.trainings(own, other),
    )


ORIGINS = origins(
    SHARE=calibrated("table II, the share of WA's communication, for whose middle the rate is set"),
    TOTAL_CUT=paper("figure 12"),
    COMMUNICATION_CUT=paper("figure 12"),
    AGGREGATOR_CUT=paper("section VIII-A"),
    FULL_CUT=paper("section VIII-A and the conclusion"),
    RING_CUT=paper("section VIII-A"),
    SPEEDUP=paper("figure 12"),
    LOST=paper("section VIII-B"),
    BEYOND=chosen("a tenth, because machines differ; two digits alone would allow 2 %"),
    FASTER=chosen("what counts as faster beside the scatter of shared cores"),
    RATIO_AT_10=paper("section VIII-C"),
    FIRST_RATE=TWO_CORES,
    TRIES=RUN_TIME,
    network=RUN_TIME,
    batch=TWO_CORES,
    seeds=chosen("the fewest with an interval"),
    steps=RUN_TIME,
    pace_steps=RUN_TIME,
)
EXHIBIT = exhibit(
    "inceptionn",
    PLACE,
    "what do a ring and the codec save of the training time?",
    cells=cells,
    run=run,
    claims=claims,
    quick=Options("HDC, 3 layers, He", 350, (1,), 80, 6),
    full=Options("HDC, 3 layers, He", 350, (1, 2, 3), 240, 20),
    scaling="HDC in three layers alone of the four networks, on MNIST if GRADWIRE_DATA has it, else on "
    "scikit-learn's digits. Four hosts of a testbed, and a fifth for the aggregator, share two cores, so a "
    "worker computes on more images than table I has, and links are as slow as makes WA communicate for the "
    "middle of table II's shares; the other figures are judged at that rate. WA's weights go down a binomial "
    "tree. Communication is all of a step beside forward, backward, and update: additions, processes that "
    "wait for a core, and the codec are among it. Codecs run on the hosts' cores, and once in software NICs "
    "that share these, too, and leave as many packets as the paper's. The bounded codec is gradwire's "
    "variant, which keeps the bound that the printed one breaks. Trainings are shorter than there, and of "
    "larger batches gradients are smaller, so that the codec loses more of them.",
    origins=ORIGINS,
    seconds=(95, 800),
    version=2,
)
