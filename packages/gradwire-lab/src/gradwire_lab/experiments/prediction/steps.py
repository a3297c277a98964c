"""DDP steps between distant hosts, with buckets in lanes: measured, and predicted by the planner."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs import parse
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.planner.candidates import Workload
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import Predictor
from gradwire_lab.experiments.experiment import Cell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gradwire.timing.environment import Environment
    from gradwire_lab.experiments.hosts.ranks import Ranks

BUDGET_S = 1.0
"""The time budget of a cell's 3 to 15 timed steps, in seconds."""
TIMEOUT_S = 120.0


class Weights(nn.Module):
    """Parameters of one bucket each, whose backward pass takes almost no time."""

    def __init__(self, gradient: torch.Tensor, buckets: int) -> None:
        super().__init__()
        self._gradients = gradient.chunk(buckets)
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros_like(each)) for each in self._gradients])

    def forward(self) -> torch.Tensor:
        """Return a loss with the given gradient."""
        pairs = zip(self.parts, self._gradients, strict=True)
        return torch.stack([(part * own).sum() for part, own in pairs]).sum()


def plan_of(cell: Cell) -> Plan:
    """Return the plan of a cell."""
    codec, bucket_nbytes = parse(cell["codec"]), cell["nbytes"] // cell["buckets"]
    segment_nbytes, lanes = cell["segment_nbytes"], cell["lanes"]
    return Plan(codec, cell["algorithm"], segment_nbytes, bucket_nbytes=bucket_nbytes, lanes=lanes)


def workload_of(cell: Cell, forward_s: float, backward_s: float) -> Workload:
    """Return the workload of a cell, with a parameter for each bucket."""
    count, buckets = cell["nbytes"] // FLOAT_NBYTES, cell["buckets"]
    return Workload((count // buckets,) * buckets, forward_s, backward_s)


def measure(ranks: Ranks, cells: Sequence[Cell], environment: Environment | None) -> None:
    """Measure and predict the cells of one network. All ranks call this; rank 0 has the environment."""
    family = None if environment is None else Family(environment)
    for cell in cells:
        model = Weights(ranks.gradient(cell["nbytes"] // FLOAT_NBYTES), cell["buckets"])
        forward_s, backward_s = _passes_s(ranks, model)
        plan = plan_of(cell)
        with _training(model, plan) as step:
            ranks.repeat_s(step, budget_s=BUDGET_S, least=4, most=10)  # untimed: TCP's windows open
            seconds = ranks.repeat_s(step, budget_s=BUDGET_S, least=3, most=15)
        if environment is None or family is None:
            continue
        predictor = Predictor(workload_of(cell, forward_s, backward_s), ranks.world, family)
        figures = {
            "measured_s": statistics.median(seconds),
            "fastest_s": min(seconds),
            "slowest_s": max(seconds),
            "predicted_s": predictor.predict(plan).step_s,
            "compute_s": forward_s + backward_s,
            "line_latency_s": environment.line.latency_s,
            "line_nbytes_per_s": environment.line.nbytes_per_s,
        }
        ranks.report(cell, figures)


def _passes_s(ranks: Ranks, model: Weights) -> tuple[float, float]:
    """Return the median seconds of simultaneous forward and backward passes on all ranks, without DDP."""

    def time_s(run: Callable[[], object]) -> float:
        return statistics.median(ranks.repeat_s(run, budget_s=0.2, least=3, most=5))

    forward_s = time_s(model)
    both_s = time_s(lambda: torch.autograd.backward(model()))
    model.zero_grad()
    return forward_s, max(0.0, both_s - forward_s)


@contextmanager
def _training(model: Weights, plan: Plan) -> Iterator[Callable[[], None]]:
    """Yield a function that runs one step, with the plan attached to the model."""
    assert plan.bucket_nbytes is not None
    ddp = DistributedDataParallel(model, bucket_cap_mb=plan.bucket_nbytes / (1 << 20), init_sync=False)

    def step() -> None:
        ddp.zero_grad()
        ddp().backward()

    with gradwire.attach(ddp, plan, timeout_s=TIMEOUT_S):
        yield step
