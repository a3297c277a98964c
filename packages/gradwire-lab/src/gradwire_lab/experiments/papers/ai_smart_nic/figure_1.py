"""Figure 1: the pipelined ring of four workers, as a schedule and as an exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from gradwire_lab.closed_forms.formulas import ring_s
from gradwire_lab.experiments.claim import RATIO, SHARE, Basis, Claim, Published, near, only
from gradwire_lab.experiments.experiment import Cell, Row
from gradwire_lab.experiments.hosts.exchanges import SHORT_NBYTES, ExchangeOptions, exchanging, line_of, rate
from gradwire_lab.experiments.papers.exhibit import (
    FLOATING,
    RUN_TIME,
    TWO_CORES,
    chosen,
    exhibit,
    paper,
    row_of,
)

PLACE = "figure 1"
WORKERS = 4
STEPS, ADDING = 2 * (WORKERS - 1), WORKERS - 1
"""The published number of steps, and the number of initial steps that add the received chunk."""
WITHIN, EXACT = 0.15, 1e-6
BUDGET_S = 20.0


def cells(options: ExchangeOptions) -> list[Cell]:
    """Return a cell for each number of workers. The workers are the first hosts of one testbed."""
    hosts = max(options.workers)
    network = {"hosts": hosts, "rate": rate(hosts, options.total_mbit), "nbytes": options.nbytes}
    return [
        {"workers": workers, "ranks": workers, "algorithm": "ring", **network} for workers in options.workers
    ]


def followed(workers: int) -> Mapping[str, Any]:
    """Return the figures of a ring's schedule; a chunk is the set of workers whose gradients it sums."""
    from gradwire.collectives import ring

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
    }


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare the steps of four workers with the figure, and the time with the formula."""
    row = row_of(rows, workers=WORKERS)
    published = [
        ("time steps of four workers", row["steps"], STEPS, ""),
        ("steps that add the received chunk", row["adding"], ADDING, ""),
        ("later steps, which store the received chunk", row["steps"] - row["adding"], STEPS - ADDING, ""),
        ("neighbours that a worker sends to", row["receivers"], 1, ""),
        ("neighbours that a worker receives from", row["senders"], 1, ""),
        ("share of a worker's gradient that moves in a step", row["share_of_a_step"], 1 / WORKERS, SHARE),
        ("share of chunks with the sum of all workers at the end", row["complete"], 1, SHARE),
    ]
    counted = partial(Claim, basis=Basis.ARITHMETIC)
    over = {
        f"{each['workers']} workers": median(each["seconds"])
        / ring_s(each["workers"], each["nbytes"], line_of(each))
        for each in rows
    }
    text = "time over the time of its bytes and steps on the hosts' link: bandwidth optimal"
    optimal = Published("section II.B")
    return [
        *(
            counted(text, only(figure), near(value, EXACT), unit=unit, published=Published(PLACE, value))
            for text, figure, value, unit in published
        ),
        Claim(text, over, near(1.0, WITHIN), of_each=True, unit=RATIO, published=optimal),
    ]


EXHIBIT = exhibit(
    "smart-nic",
    PLACE,
    "what does each worker of a ring of four do in each step?",
    cells=cells,
    run=exchanging(BUDGET_S, SHORT_NBYTES, lambda row: followed(row["workers"])),
    claims=claims,
    quick=ExchangeOptions((3, WORKERS), 1600, 1_000_000, 3),
    full=ExchangeOptions((2, 3, WORKERS, 5, 6, 8), 1600, 4 * 2048 * 2048, 9),
    scaling="the steps are from the schedule that training and the gateware follow. For the time, workers "
    "are the first hosts of a testbed, and exchange a layer of section V.B, 16.8 MB, over TCP. "
    "Eight hosts have 200 Mbit/s each, because all share two cores. Without --full, four hosts at "
    "400 Mbit/s exchange 1 MB. The formula uses the rate and latency measured between two of the "
    "hosts.",
    origins={
        "WORKERS STEPS ADDING workers": paper("figure 1"),
        "WITHIN": chosen("the formula omits additions and CPU time"),
        "EXACT": FLOATING,
        "BUDGET_S repeats": RUN_TIME,
        "total_mbit": TWO_CORES,
        "nbytes": paper("section V.B, a layer of 2048 x 2048 weights; a part of it in a short run"),
    },
    seconds=(8, 120),
    version=2,
)
