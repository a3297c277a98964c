"""Figure 3b: the trace of a step whose layers are exchanged while the next layers compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gradwire_lab.experiments.claim import Basis, Claim, Published, at_most, near, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of, select
from gradwire_lab.experiments.hosts import measured_by
from gradwire_lab.experiments.learning import Trainings
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, paper, row_of
from gradwire_lab.experiments.smart_nic import STEPS_MODULE
from gradwire_lab.experiments.smart_nic.options import IDENTITY, LAYERWISE, NAIVE, STEP
from gradwire_lab.experiments.smart_nic.verdict import trainings
from gradwire_lab.job.data import at_hand

PLACE = "figure 3b"
HOSTS, RATE, WIDTH = 3, "200mbit", 256
WITHIN = 0.1
"""The allowed exposed time beyond one layer's exchange, as a share of the naive step's exposed time."""


@dataclass(frozen=True)
class SmartNicFigure3Options:
    """The options: layers, batches (the last batch is large enough to hide an exchange), steps, and seeds."""

    layers: int
    batches: tuple[int, ...]
    steps: int
    seeds: int


def cells(options: SmartNicFigure3Options) -> list[Cell]:
    """Return a cell for each batch and schedule: the smart NIC's schedule, and the naive schedule."""
    place = {"part": STEP, "hosts": HOSTS, "rate": RATE, "width": WIDTH, "codec": IDENTITY}
    more = {"layers": options.layers, "data": at_hand(), "steps": options.steps, "seeds": options.seeds}
    return cells_of({**place, **more}, batch=options.batches, method=(LAYERWISE, NAIVE))


def published_order(layers: int) -> list[str]:
    """Return the figure's order: a layer is updated once the layer below has its gradients."""
    between = [note for layer in range(layers - 1, 0, -1) for note in (f"B{layer}", f"U{layer + 1}")]
    return [f"B{layers}", *between, "U1"]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the order with the figure's, and a large batch's exposed time with one layer's exchange."""
    batch = max(row["batch"] for row in rows)
    own, naive = (row_of(rows, batch=batch, method=method) for method in (LAYERWISE, NAIVE))
    layered = select(rows, method=LAYERWISE)

    def learned(*of: Row) -> list[Trainings]:
        return [each for row in of for each in trainings(rows, row)]

    same = dict[str, float]()  # the share of positions at which both have the same note
    for row in layered:
        notes, wanted = row["notes"], published_order(row["layers"])
        equal = sum(one == other for one, other in zip(notes, wanted, strict=False))
        same[f"batch {row['batch']}"] = equal / max(len(notes), len(wanted))
    return [
        Claim(
            "backward passes and updates in the trace's order",
            same,
            near(1.0, 0.0),
            of_each=True,
            published=Published(PLACE),
            basis=Basis.ARITHMETIC,
            rests_on=learned(*layered),
        ),
        Claim(
            f"batch {batch}: exposed exchange time over the naive step's",
            only(fmean(own["exposed_s"]) / fmean(naive["exposed_s"])),
            at_most(1 / own["layers"] + WITHIN),
            published=Published(PLACE),
            rests_on=learned(own, naive),
        ),
    ]


EXHIBIT = exhibit(
    "smart-nic",
    PLACE,
    "is a layer exchanged while the next one computes, as in the trace?",
    cells=cells,
    run=measured_by(STEPS_MODULE),
    claims=claims,
    quick=SmartNicFigure3Options(3, (1792,), 20, 1),
    full=SmartNicFigure3Options(6, (448, 1792), 40, 3),
    scaling="six layers of 256 x 256 weights (three without --full) replace 20 of 2048 x 2048, on three "
    "hosts of a testbed at 200 Mbit/s. Workers run on one core, and software rings on another core, as in "
    "section V.B. Hosts that share a core wait for each other; the paper's nodes have their own cores. An "
    "exchange waits for the last worker to start it, and for each ring to get the core. These waits count "
    "as exposed communication here. The paper draws the trace without numbers: if computation takes "
    "longer, only the first layer's exchange is exposed. Figure 3a is a drawing.",
    origins={
        "HOSTS WIDTH layers": RUN_TIME,
        "WITHIN": chosen("hosts share a core and wait for each other"),
        "batches": paper("section V.B"),
        "steps": chosen("a training run of one process reaches the goal in this many steps"),
        "seeds": chosen("the minimum for a verdict on a training run"),
    },
    seconds=(14, 120),
    version=2,
)
