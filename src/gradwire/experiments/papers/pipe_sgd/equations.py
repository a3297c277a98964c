"""Equations 2 to 4: the seconds of a step with 1 to 4 steps under way, and the scaling efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from gradwire.experiments.claim import RATIO, Claim, Published, at_most, near, only
from gradwire.experiments.experiment import Cell, Row
from gradwire.experiments.papers.exhibit import each, exhibit, row_of
from gradwire.experiments.papers.origins import RUN_TIME, TWO_CORES, chosen, origins, paper
from gradwire.timing.closed_form.formulas import AlphaBetaGamma, ring_s
from gradwire.timing.closed_form.step_time import pipelined_s, scaling_efficiency, sync_s

if TYPE_CHECKING:
    from gradwire.links import Link

PLACE = "equations 2 to 4"
WORLD, LATENCY_S, NBYTES_PER_S = 4, 1e-3, 5e6
PIPELINES = (1, 2, 3, 4)
COMPUTE_BOUND, BALANCED, LINE_BOUND = "compute bound", "balanced", "line bound"
SHARES = {COMPUTE_BOUND: 2.0, BALANCED: 1.0, LINE_BOUND: 0.4}
"""Computation over the exchange, by its formula."""
WITHIN, NO_BETTER = 0.2, 0.1
"""By what a measured step may differ from its equation, and by what more than two steps may save."""


@dataclass(frozen=True)
class Options:
    """Floats of the model, and steps of each cell."""

    count: int
    steps: int


def cells(options: Options) -> list[Cell]:
    """Return a cell for each share of computation and each number of steps under way."""
    return [
        {"kind": kind, "pipeline": pipeline, "count": options.count}
        for kind in SHARES
        for pipeline in PIPELINES
    ]


def exchange_formula_s(count: int) -> float:
    """Return the seconds of the ring all-reduce, by its formula."""
    return ring_s(WORLD, 4 * count, AlphaBetaGamma(LATENCY_S, 1 / NBYTES_PER_S))


def measure(options: Options, cell: Cell) -> Mapping[str, Any]:
    """Take steps whose computation sleeps, on ranks that are threads over paced links."""
    from gradwire.experiments.papers.threads import on_threads

    communicate_s = exchange_formula_s(cell["count"])
    compute_s = SHARES[cell["kind"]] * communicate_s

    def work(link: Link) -> list[float]:
        return _steps(link, cell["pipeline"], cell["count"], compute_s, options.steps)

    ranks = on_threads(WORLD, work, NBYTES_PER_S, LATENCY_S)
    return {
        "compute_s": compute_s,
        "communicate_s": communicate_s,
        "steps_s": [max(times) for times in zip(*ranks, strict=True)],
    }


def _steps(link: Link, pipeline: int, count: int, compute_s: float, steps: int) -> list[float]:
    import time

    import torch

    from gradwire.plan import Plan
    from gradwire.training import PipeSGD

    model = torch.nn.Linear(count, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    x = torch.ones(1, count)

    def loss() -> torch.Tensor:
        time.sleep(compute_s)
        found: torch.Tensor = model(x).sum()
        return found

    plan = Plan(pipeline=pipeline, segment_nbytes=1 << 24)
    method = PipeSGD(model, optimizer, plan, correction="none", group=link)
    method.synchronise()
    times = []
    for _ in range(steps + pipeline):
        began = time.perf_counter()
        method.step(loss)
        times.append(time.perf_counter() - began)
    method.drain()
    method.close()
    return times[pipeline:]


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare steps with their equations, and more than two steps under way with two."""

    def step_s(kind: str, pipeline: int) -> float:
        return float(median(row_of(rows, kind=kind, pipeline=pipeline)["steps_s"]))

    def predicted_s(kind: str, pipeline: int) -> float:
        row = row_of(rows, kind=kind, pipeline=pipeline)
        parts = {"update_s": 0.0, "compute_s": row["compute_s"], "communicate_s": row["communicate_s"]}
        return sync_s(1, **parts) if pipeline == 1 else pipelined_s(1, **parts)

    def ratios(pipeline: int) -> dict[str, float | None]:
        return {kind: step_s(kind, pipeline) / predicted_s(kind, pipeline) for kind in SHARES}

    best = {kind: step_s(kind, 2) / min(step_s(kind, pipeline) for pipeline in PIPELINES) for kind in SHARES}
    row = row_of(rows, kind=LINE_BOUND, pipeline=2)
    bound = scaling_efficiency(update_s=0.0, compute_s=row["compute_s"], communicate_s=row["communicate_s"])
    return [
        Claim(
            "synchronous step over equation 2",
            ratios(1),
            near(1.0, WITHIN),
            of_each=True,
            unit="",
            published=Published("equation 2", 1.0),
        ),
        Claim(
            "pipelined step (K = 2) over equation 4",
            ratios(2),
            near(1.0, WITHIN),
            of_each=True,
            unit="",
            published=Published("equation 4", 1.0),
        ),
        Claim(
            "K = 2 is the best of 1 to 4: its step over the shortest",
            best,
            at_most(1 + NO_BETTER),
            of_each=True,
            unit=RATIO,
            published=Published("section 3.1"),
        ),
        Claim(
            "scaling efficiency, compute bound",
            only(row_of(rows, kind=COMPUTE_BOUND, pipeline=2)["compute_s"] / step_s(COMPUTE_BOUND, 2)),
            near(1.0, WITHIN),
            published=Published("section 3.2", 1.0),
        ),
        Claim(
            "scaling efficiency, line bound",
            only(row["compute_s"] / step_s(LINE_BOUND, 2)),
            near(bound, WITHIN),
            published=Published("section 3.2"),
        ),
    ]


ORIGINS = origins(
    WORLD=paper("section 4"),
    LATENCY_S=TWO_CORES,
    NBYTES_PER_S=TWO_CORES,
    PIPELINES=paper("section 3.1"),
    SHARES=chosen("on both sides of the balance, and on it"),
    WITHIN=chosen("an equation has no processor time"),
    NO_BETTER=chosen("the scatter of shared cores"),
    count=RUN_TIME,
    steps=RUN_TIME,
)
EXHIBIT = exhibit(
    "pipe-sgd",
    PLACE,
    "how long does a step take with 1 to 4 steps under way?",
    cells=cells,
    run=each(measure),
    claims=claims,
    quick=Options(200_000, 5),
    full=Options(500_000, 40),
    scaling="four threads of one process over links paced to 40 Mbit/s; computation sleeps, so that "
    "two cores can do it for four ranks at once. Exchanges and pipelines are those of "
    "training.",
    origins=ORIGINS,
    seconds=(43, 600),
)
