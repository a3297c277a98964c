"""What the rows come to: errors of the model, and the claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from gradwire.experiments.claim import RATIO, Claim, at_least, at_most, only
from gradwire.experiments.experiment import Row
from gradwire.experiments.smart_nic.options import (
    BFP,
    BLOCKING,
    FIGURE,
    IDENTITY,
    LAYERWISE,
    OVERLAPPED,
    RING,
    STEP,
    part_of,
)

OF_CYCLES, OF_SPEEDUPS, OF_STEPS = 0.01, 0.10, 0.03
"""The errors that the model may have: the largest, the largest, and the median one."""
SPEEDUP = "NIC + BFP"
"""What the names of the four speed-ups begin with, which end in ``speedup``."""


def error(row: Row) -> float:
    """Return what the model says over what is published, simulated, or measured, minus 1."""
    if row["part"] == RING:
        return float(row["model_cycles"] / row["cycles"] - 1)
    if row["part"] == STEP:
        return float(row["predicted_s"] / row["measured_s"] - 1)
    return float(row["model"] / row["published"] - 1)


def speedups(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the four speed-ups that smart NICs are published to have."""
    return [
        row
        for row in part_of(rows, FIGURE)
        if row["what"].startswith(SPEEDUP) and row["what"].endswith("speedup")
    ]


def claims(rows: Sequence[Row]) -> Iterator[Claim]:
    """Yield the claims about the parts that were performed."""
    rings, figures, steps = part_of(rows, RING), speedups(rows), part_of(rows, STEP)
    if rings:
        largest = only(_largest(rings))
        yield Claim("cycles of a ring: largest error of the model", largest, at_most(OF_CYCLES))
    if figures:
        largest = only(_largest(figures))
        yield Claim("published speed-ups: largest error of the model", largest, at_most(OF_SPEEDUPS))
    if steps:
        typical = only(median(abs(error(row)) for row in steps))
        yield Claim("measured steps: median error of the prediction", typical, at_most(OF_STEPS))
        took = {(row["method"], row["codec"]): row["measured_s"] for row in steps}
        before = took[OVERLAPPED, IDENTITY]
        for text, ratio in (
            ("overlapped over blocking", took[BLOCKING, IDENTITY] / before),
            ("layer-wise with BFP over overlapped", before / took[LAYERWISE, BFP]),
        ):
            yield Claim(text, only(ratio), at_least(1.0), unit=RATIO)


def _largest(rows: Sequence[Row]) -> float:
    return max(abs(error(row)) for row in rows)
