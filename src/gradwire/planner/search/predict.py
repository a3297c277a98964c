"""Predict the time of a step with a plan.

A step computes for ``compute_s`` (forward, backward, update). Its gradient's exchange takes ``exchange_s``,
of which computation doesn't hide ``exposed_s``; these add to the step.

- One step at a time (``pipeline`` 1): buckets are sent one after the other, each when backward has it ready;
  a single bucket hides nothing (Pipe-SGD, equation 2).
- Pipelined (``pipeline`` from 2 up): the exchange of all buckets runs during the computation of the next
  step, and the slower of the two determines the step (Pipe-SGD, equation 4). Computation includes the local
  update of an eager pipeline, which is the default.
- If ranks share the cores of one machine, hidden work takes cores from computation: the step takes at least
  as long as the cores need for both.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from gradwire.costs import ExchangeCost
from gradwire.plan import Plan
from gradwire.planner.inputs.workload import Part, Workload
from gradwire.planner.search.exchange_times import Family, Way
from gradwire.timing.closed_form.step_time import Bucket, overlap, pipelined_s

_FEW_SIZES = 3
"""Beyond this number of bucket sizes, times are interpolated between round sizes, which saves replays."""


@dataclass(frozen=True)
class Prediction:
    """The time of one step with a plan, in seconds, and the cost of exchanging all its buckets.

    ``step_s`` is ``compute_s + exposed_s``. Computation hides ``hidden_s`` of the exchange, but not
    ``exposed_s``. The bytes of ``cost`` are those of the rank that sends most.
    """

    plan: Plan
    compute_s: float
    exposed_s: float
    cost: ExchangeCost
    buckets: int

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.compute_s + self.exposed_s

    @property
    def exchange_s(self) -> float:
        """Seconds of the exchange of all buckets."""
        return self.cost.total_s

    @property
    def hidden_s(self) -> float:
        """Seconds of the exchange that computation hides."""
        return max(0.0, self.exchange_s - self.exposed_s)

    @property
    def ratio(self) -> float:
        """The compression ratio: bytes of floats per byte on the wire."""
        return self.cost.ratio

    @property
    def efficiency(self) -> float:
        """The part of the step that computes; the scaling efficiency of Pipe-SGD, section 3.2."""
        return self.compute_s / self.step_s if self.step_s else 1.0

    def values(self) -> dict[str, object]:
        """Return all values and the derived ones as a JSON object."""
        times = ("compute_s", "exposed_s", "step_s", "exchange_s", "hidden_s")
        shares = ("buckets", "ratio", "efficiency")
        costs = ("encode_s", "decode_s", "handling_s", "wait_s", "raw_nbytes", "wire_nbytes")
        return {
            "plan": json.loads(self.plan.to_json()),
            **{name: getattr(self, name) for name in times + shares},
            **{name: getattr(self.cost, name) for name in costs},
        }


class Predictor:
    """Predicts the steps of ``workload`` on ``world`` hosts, and caches the times of exchanges."""

    def __init__(self, workload: Workload, world: int, family: Family) -> None:
        self.workload, self.world = workload, world
        self._times = family.among(world)
        self._host = self._times.environment.host
        self._parts = lru_cache(None)(workload.parts)

    def predict(self, plan: Plan) -> Prediction:
        """Return the prediction for ``plan``. Raises ``SpecError`` for a codec without costs."""
        parts, way = self._parts(plan.bucket_nbytes), Way.of(plan)
        sizes = {part.count for part in parts}
        find = self._times.terms if len(sizes) <= _FEW_SIZES else self._times.between
        return self._prediction(plan, parts, [find(way, part.count) for part in parts])

    def least_s(self, plan: Plan) -> float:
        """Return a lower bound of the step's seconds, at the cost of a formula."""
        parts, way = self._parts(plan.bucket_nbytes), Way.of(plan)
        return self._prediction(plan, parts, [self._times.least(way, part.count) for part in parts]).step_s

    def _prediction(self, plan: Plan, parts: list[Part], costs: list[ExchangeCost]) -> Prediction:
        total = sum(costs, ExchangeCost())
        return Prediction(
            plan=plan,
            compute_s=self.workload.compute_with_s(plan.pipeline),
            exposed_s=min(self._exposed_s(plan, parts, costs, total), total.total_s),
            cost=total,
            buckets=len(parts),
        )

    def _exposed_s(
        self, plan: Plan, parts: list[Part], costs: list[ExchangeCost], total: ExchangeCost
    ) -> float:
        work = self.workload
        compute_s = work.compute_with_s(plan.pipeline)
        if plan.pipeline > 1:
            slower_s = pipelined_s(
                1,
                update_s=compute_s - work.forward_s - work.backward_s,
                compute_s=work.forward_s + work.backward_s,
                communicate_s=total.total_s,
            )
            exposed_s = slower_s - compute_s
        else:
            buckets = [Bucket(part.ready_s, each.total_s) for part, each in zip(parts, costs, strict=True)]
            exposed_s = overlap(buckets, work.backward_s).exposed_s
        return max(exposed_s, self._taken_s(compute_s, total))

    def _taken_s(self, compute_s: float, total: ExchangeCost) -> float:
        """Return the seconds of the exchange that a shared machine's busy cores can't hide."""
        ranks = self._host.ranks_per_machine
        if ranks <= 1:
            return 0.0
        busy_s = compute_s * min(1.0, ranks / self._host.cores)
        return max(0.0, busy_s + total.cores_s - compute_s)
