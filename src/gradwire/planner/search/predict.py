"""Predict the time of a step with a plan.

A step computes for ``compute_s`` (forward, backward, update). Its gradient's exchange takes ``exchange_s``,
of which computation doesn't hide ``exposed_s``; these add to the step.

- One step at a time (``pipeline`` 1): buckets are sent one after the other, each when backward has it ready;
  a single bucket hides nothing (Pipe-SGD, equation 2).
- Pipelined (``pipeline`` from 2 up): the exchange of all buckets runs during the computation of the next
  step, and the slower of the two determines the step (Pipe-SGD, equation 4). Computation includes the local
  update of an eager pipeline, which is the default.
- Sharded (``exchange`` "sharded"): the gradient's reduce half, an agreement on norms, and the broadcast half
  of the weights' changes follow one another, and each rank computes its share of the update.
- If ranks share the cores of one machine, hidden work takes cores from computation: the step takes at least
  as long as the cores need for both.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from gradwire.codecs import Identity
from gradwire.costs import ExchangeCost
from gradwire.plan import Plan
from gradwire.planner.inputs.weights import WEIGHTS
from gradwire.planner.inputs.workload import Part, Workload
from gradwire.planner.loss.steps import Extra, StepsToLoss
from gradwire.planner.search.exchange_times import Family, Way
from gradwire.timing.closed_form.step_time import Bucket, overlap, pipelined_s

_NOTHING = Extra()
_EXACT = str(Identity())
_AGREEMENT_NBYTES = Plan().segment_nbytes
_FEW_SIZES = 3
"""Beyond this number of bucket sizes, times are interpolated between round sizes, which saves replays."""


@dataclass(frozen=True)
class Prediction:
    """The time of one step with a plan, in seconds, and the cost of exchanging all its buckets.

    ``step_s`` is ``compute_s + exposed_s``. Computation hides ``hidden_s`` of the exchange, but not
    ``exposed_s``. The bytes of ``cost`` are those of the rank that sends most. ``extra`` is the share of
    steps that the plan needs in addition to reach a loss; 0 if only steps are asked for.
    """

    plan: Plan
    compute_s: float
    exposed_s: float
    cost: ExchangeCost
    buckets: int
    extra: Extra = _NOTHING

    @property
    def step_s(self) -> float:
        """Seconds of the step."""
        return self.compute_s + self.exposed_s

    @property
    def to_loss_s(self) -> float:
        """Seconds that bring training as far as one exact step does: plans are compared by these."""
        return self.step_s * (1 + self.extra.share)

    @property
    def to_loss_deviation_s(self) -> float:
        """The standard deviation of these seconds that comes from the share of extra steps."""
        return self.step_s * self.extra.deviation

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
        to_loss = ("to_loss_s", "to_loss_deviation_s")
        costs = ("encode_s", "decode_s", "handling_s", "wait_s", "raw_nbytes", "wire_nbytes")
        return {
            "plan": json.loads(self.plan.to_json()),
            **{name: getattr(self, name) for name in times + shares + to_loss},
            "extra_steps": self.extra.share,
            **{name: getattr(self.cost, name) for name in costs},
        }


class Predictor:
    """Predicts the steps of ``workload`` on ``world`` hosts, and caches the times of exchanges.

    With ``to_loss``, it predicts what shares of extra steps plans need, too. With ``half``, buckets go
    through that half of a ring alone (``Way``).
    """

    def __init__(
        self,
        workload: Workload,
        world: int,
        family: Family,
        to_loss: StepsToLoss | None = None,
        half: str | None = None,
    ) -> None:
        self.workload, self.world, self._to_loss, self._half = workload, world, to_loss, half
        self._times = family.among(world)
        self._host = self._times.environment.host
        self._parts = lru_cache(None)(workload.parts)

    def predict(self, plan: Plan) -> Prediction:
        """Return the prediction for ``plan``.

        Raises ``SpecError`` for a codec without costs, and for a plan that the planner can't price.
        """
        parts = self._parts(plan.bucket_nbytes)
        sizes = {part.count for part in parts}
        find = self._times.terms if len(sizes) <= _FEW_SIZES else self._times.between
        return self._prediction(plan, parts, self._costs(plan, parts, find))

    def least_s(self, plan: Plan) -> float:
        """Return a lower bound of the seconds to a loss, at the cost of a formula."""
        parts = self._parts(plan.bucket_nbytes)
        return self._prediction(plan, parts, self._costs(plan, parts, self._times.least)).to_loss_s

    def exchange_s(self, plan: Plan, count: int) -> float:
        """Return the seconds that an exchange of one bucket of so many floats takes by itself."""
        return self._times.terms(self._way(plan), count).total_s

    def _way(self, plan: Plan) -> Way:
        way = Way.of(plan)
        return way if self._half is None else replace(way, half=self._half)

    def _costs(
        self, plan: Plan, parts: list[Part], find: Callable[[Way, int], ExchangeCost]
    ) -> list[ExchangeCost]:
        """Return what the exchange of each bucket costs, with that of weights if they travel."""
        way = self._way(plan)
        costs = [find(way, part.count) for part in parts]
        if plan.is_sharded:
            weights = Way(plan.algorithm, plan.segment_nbytes, WEIGHTS, half="broadcast")
            agreement = find(Way("ring", _AGREEMENT_NBYTES, _EXACT), self.world + len(self.workload.counts))
            costs[-1] += replace(agreement, raw_nbytes=0) + find(weights, self.workload.count)
        return costs

    def _prediction(self, plan: Plan, parts: list[Part], costs: list[ExchangeCost]) -> Prediction:
        total = sum(costs, ExchangeCost())
        return Prediction(
            plan=plan,
            compute_s=self._compute_s(plan),
            exposed_s=min(self._exposed_s(plan, parts, costs, total), total.total_s),
            cost=total,
            buckets=len(parts),
            extra=_NOTHING if self._to_loss is None else self._to_loss.extra(plan, self.world),
        )

    def _compute_s(self, plan: Plan) -> float:
        return self.workload.compute_with_s(plan.pipeline, self.world if plan.is_sharded else 1)

    def _exposed_s(
        self, plan: Plan, parts: list[Part], costs: list[ExchangeCost], total: ExchangeCost
    ) -> float:
        work, compute_s = self.workload, self._compute_s(plan)
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
