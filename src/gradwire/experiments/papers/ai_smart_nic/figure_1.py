"""Figure 1: the pipelined ring of four workers, as its schedule has it and as it is exchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwire.experiments.claim import RATIO, SHARE, Claim, Published, near, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import FLOATING, RUN_TIME, TWO_CORES, chosen, origins, paper

PLACE = "figure 1"
WORKERS = 4
STEPS, ADDING = 2 * (WORKERS - 1), WORKERS - 1
"""Published: the time steps, and those at the beginning in which workers add what they receive."""
NBYTES_PER_S, LATENCY_S = 5e6, 1e-4
WITHIN, EXACT = 0.15, 1e-6
"""The share by which a time may differ from its formula, as in the study, and that of floating point."""


@dataclass(frozen=True)
class Options:
    """Numbers of workers, bytes of a gradient, and exchanges of a cell."""

    workers: tuple[int, ...]
    nbytes: int
    repeats: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each number of workers."""
    return [{"workers": workers, "nbytes": options.nbytes} for workers in options.workers]


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Follow the steps of all workers at once, and time the exchange over paced links.

    A worker's chunk is the set of workers whose gradients are in it.
    """
    from gradwire.collectives import ring
    from gradwire.experiments.papers.threads import exchange_s

    workers = cell["workers"]
    schedules = [[*ring.schedule(rank, workers)] for rank in range(workers)]
    held = [[{rank} for _ in range(ring.chunks(workers))] for rank in range(workers)]
    for at_once in zip(*schedules, strict=True):
        sent = [set(held[rank][step.send[0]]) for rank, step in enumerate(at_once)]
        for rank, step in enumerate(at_once):
            before = held[rank][step.recv[0]] if step.combine else set[int]()
            held[rank][step.recv[0]] = before | sent[step.recv_from or 0]
    own = schedules[0]
    return {
        "steps": len(own),
        "adding": sum(step.combine for step in own),
        "receivers": len({step.send_to for step in own}),
        "senders": len({step.recv_from for step in own}),
        "share_of_a_step": max(step.send[1] - step.send[0] for step in own) / ring.chunks(workers),
        "complete": sum(len(chunk) == workers for chunks in held for chunk in chunks) / workers**2,
        "seconds": exchange_s(
            workers, "ring", "identity", cell["nbytes"], NBYTES_PER_S, LATENCY_S, options.repeats
        ),
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the steps of four workers with the figure's, and the time with that of its bytes."""
    row = row_of(rows, workers=WORKERS)
    published = [
        ("time steps of four workers", row["steps"], STEPS, ""),
        ("steps that add what arrives", row["adding"], ADDING, ""),
        ("later steps, which store it", row["steps"] - row["adding"], STEPS - ADDING, ""),
        ("neighbours that a worker sends to", row["receivers"], 1, ""),
        ("neighbours that a worker receives from", row["senders"], 1, ""),
        ("a worker's gradient that moves in a step", row["share_of_a_step"], 1 / WORKERS, SHARE),
        ("chunks with the sums of all at the end", row["complete"], 1, SHARE),
    ]
    found = [
        Claim(text, only(figure), near(value, EXACT), unit=unit, published=Published(PLACE, value))
        for text, figure, value, unit in published
    ]
    best_s = {each["workers"]: _best_s(each) for each in rows}
    over = {f"{each['workers']} workers": min(each["seconds"]) / best_s[each["workers"]] for each in rows}
    found.append(
        Claim(
            "time over that of its bytes and steps: bandwidth optimal",
            over,
            near(1.0, WITHIN),
            of_each=True,
            unit=RATIO,
            published=Published("section II.B"),
        )
    )
    return found


def _best_s(row: Row) -> float:
    steps = 2 * (row["workers"] - 1)
    return float(steps * (LATENCY_S + row["nbytes"] / row["workers"] / NBYTES_PER_S))


ORIGINS = origins(
    WORKERS=paper("figure 1"),
    STEPS=paper("figure 1"),
    ADDING=paper("figure 1"),
    NBYTES_PER_S=TWO_CORES,
    LATENCY_S=TWO_CORES,
    WITHIN=chosen("a formula has no additions and no processor time"),
    EXACT=FLOATING,
    workers=paper("figure 1"),
    nbytes=RUN_TIME,
    repeats=RUN_TIME,
)
EXHIBIT = exhibit(
    "smart-nic",
    PLACE,
    "what does each worker of a ring of four do in each step?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options((3, WORKERS, 6), 1_000_000, 3),
    full=Options((2, 3, WORKERS, 5, 6, 8), 4_000_000, 9),
    scaling="the steps are those of the schedule that training and the gateware follow. For the "
    "time, ranks are threads of one process over links paced to 40 Mbit/s, with gradients of "
    "1 MB (4 MB with --full).",
    origins=ORIGINS,
    seconds=(7, 60),
)
