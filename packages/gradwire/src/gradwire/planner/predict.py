"""Predict the step time of a plan.

A step computes for ``compute_s`` (forward, backward, update). The gradient's exchange takes ``exchange_s``;
its part ``exposed_s`` doesn't overlap computation and adds to the step.

- One step at a time (``pipeline`` 1): buckets are sent one after the other, or in several lanes. A bucket is
  sent once its gradients are ready; a single bucket overlaps nothing (Pipe-SGD, equation 2).
- Pipelined (``pipeline`` from 2 up): the exchange of all buckets runs during the computation of the next
  step, and the slower of the two determines the step (Pipe-SGD, equation 4). With one bucket, this is
  equation 5; with several buckets, equation 6 with the whole backward pass. Computation includes the local
  update of an eager pipeline, which is the default.
- Sharded (``exchange`` "sharded"): the gradient's reduce half, an all-reduce of norms, and the broadcast
  half of the weight deltas follow one another, and each rank computes its share of the update.
- If ranks share the cores of one machine, overlapped work takes cores from computation: the step takes at
  least the time that the cores need for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product

from gradwire.codecs import Codec, Identity
from gradwire.costs import ExchangeCost
from gradwire.fields import to_values
from gradwire.plan import Plan
from gradwire.planner.candidates import Part, Space, Workload, candidates, fastest_in_lanes, lanes_in
from gradwire.planner.encodings import WEIGHTS, CodecCandidate, admit
from gradwire.planner.exchange_times import BucketPlan, Family
from gradwire.planner.loss import Extra, StepsToLoss
from gradwire.planner.overlap import StepExchanges, end_in_turn_s, numbers_at_once
from gradwire.planner.request import PlanRequest
from gradwire.timing.environment import Environment

_NOTHING = Extra()
_EXACT = str(Identity())
_AGREEMENT_NBYTES = Plan().segment_nbytes
_Find = Callable[[BucketPlan, int], ExchangeCost]
_FEW_SIZES = 3
"""The number of bucket sizes above which times are interpolated instead of replayed."""


@dataclass(frozen=True)
class Prediction:
    """A plan's predicted step time in seconds, and the cost of exchanging all buckets.

    ``step_s`` is ``compute_s + exposed_s``. Of the exchange, ``hidden_s`` overlaps computation, and
    ``exposed_s`` doesn't. The bytes of ``cost`` are those of the busiest rank. ``extra`` is the share of
    extra steps that the plan needs to reach a loss; 0 if plans are compared by their step times.
    """

    plan: Plan
    compute_s: float
    exposed_s: float
    cost: ExchangeCost
    buckets: int
    extra: Extra = _NOTHING

    @property
    def step_s(self) -> float:
        """The step time in seconds."""
        return self.compute_s + self.exposed_s

    @property
    def to_loss_s(self) -> float:
        """The seconds to reduce the loss as much as one exact step does: the basis of comparisons."""
        return self.step_s * (1 + self.extra.share)

    @property
    def to_loss_deviation_s(self) -> float:
        """The standard deviation of ``to_loss_s``, from the deviation of the share of extra steps."""
        return self.step_s * self.extra.deviation

    @property
    def exchange_s(self) -> float:
        """The seconds of the exchange of all buckets."""
        return self.cost.total_s

    @property
    def hidden_s(self) -> float:
        """The seconds of the exchange that overlap computation."""
        return max(0.0, self.exchange_s - self.exposed_s)

    @property
    def ratio(self) -> float:
        """The compression ratio: bytes of floats per byte on the wire."""
        return self.cost.ratio

    @property
    def efficiency(self) -> float:
        """Computation as a share of the step time: the scaling efficiency of Pipe-SGD, section 3.2."""
        return self.compute_s / self.step_s if self.step_s else 1.0

    def values(self) -> dict[str, object]:
        """Return the prediction, including derived values, as a JSON object."""
        times = ("compute_s", "exposed_s", "step_s", "exchange_s", "hidden_s")
        shares = ("buckets", "ratio", "efficiency")
        to_loss = ("to_loss_s", "to_loss_deviation_s")
        costs = ("encode_s", "decode_s", "handling_s", "wait_s", "raw_nbytes", "wire_nbytes")
        return {
            "plan": to_values(self.plan),
            **{name: getattr(self, name) for name in times + shares + to_loss},
            "extra_steps": self.extra.share,
            **{name: getattr(self.cost, name) for name in costs},
        }


class Predictor:
    """A predictor of the step times of ``workload`` on ``world`` hosts, with cached times of exchanges.

    With ``to_loss``, it also predicts the plans' shares of extra steps. With ``half``, a bucket's exchange is
    only this half of a ring.
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

        Raises ``SpecError`` if the codec's costs are missing, or the plan encodes on a device or has several
        codecs.
        """
        parts = self._parts(plan.bucket_nbytes)
        find = self._times.terms if _has_few_sizes(parts) else self._times.between
        return self._prediction(plan, parts, find)

    def replays(self, plan: Plan) -> Iterator[None]:
        """Run the replays that ``predict`` needs, in pieces of about a millisecond."""
        parts, bucket_plan = self._parts(plan.bucket_nbytes), self._bucket_plan(plan)
        numbers = numbers_at_once(min(plan.lanes, len(parts)))
        for count, lanes in product(dict.fromkeys(part.count for part in parts), numbers):
            sizes = (count,) if _has_few_sizes(parts) else self._times.grid_counts(count)
            for size in sizes:
                yield from self._times.replays(replace(bucket_plan, lanes=lanes), size)
                yield

    def least_s(self, plan: Plan) -> float:
        """Return a lower bound on ``Prediction.to_loss_s``, without a replay."""
        parts = self._parts(plan.bucket_nbytes)
        return self._prediction(plan, parts, self._times.least, is_bound=True).to_loss_s

    def work_s(self, plan: Plan, count: int) -> float:
        """Return the seconds of work for the frames of ``count`` floats, without waits for the network."""
        return self._times.terms(self._bucket_plan(plan), count).work_s

    def _bucket_plan(self, plan: Plan, lanes: int = 1) -> BucketPlan:
        found = replace(BucketPlan.of(plan), lanes=lanes)
        return found if self._half is None else replace(found, half=self._half)

    def _costs(self, plan: Plan, parts: list[Part], find: _Find) -> list[ExchangeCost]:
        """Return the cost of each bucket's exchange; a sharded plan's last cost includes weight deltas."""
        bucket_plan = self._bucket_plan(plan, min(plan.lanes, len(parts)))
        costs = [find(bucket_plan, part.count) for part in parts]
        if plan.is_sharded:
            weights = BucketPlan(plan.algorithm, plan.segment_nbytes, WEIGHTS, half="broadcast")
            norms = BucketPlan("ring", _AGREEMENT_NBYTES, _EXACT)
            agreement = find(norms, self.world + len(self.workload.counts))
            costs[-1] += replace(agreement, raw_nbytes=0) + find(weights, self.workload.count)
        return costs

    def _prediction(
        self, plan: Plan, parts: list[Part], find: _Find, *, is_bound: bool = False
    ) -> Prediction:
        costs, ready_s = self._costs(plan, parts, find), [part.ready_s for part in parts]
        total = sum(costs, ExchangeCost())
        if min(plan.lanes, len(parts)) == 1:
            end_s = end_in_turn_s(ready_s, [cost.total_s for cost in costs])
        elif is_bound:
            end_s = self._exchanges(plan, parts, find).least_end_s(ready_s)
        else:
            exchanges = self._exchanges(plan, parts, find)
            end_s, together_s = exchanges.end_s(ready_s), exchanges.end_s([0.0] * len(parts))
            total = total.slowed(together_s / total.total_s if total.total_s else 1.0)
        compute_s = self.workload.compute_with_s(plan.pipeline, self.world if plan.is_sharded else 1)
        if plan.pipeline > 1:
            exposed_s = max(0.0, total.total_s - compute_s)
        else:
            exposed_s = max(0.0, end_s - self.workload.backward_s)
        ranks = self._host.ranks_per_machine
        if ranks > 1:  # the CPU time that can't overlap computation, because ranks share the cores
            busy_s = compute_s * min(1.0, ranks / self._host.cores)
            exposed_s = max(exposed_s, busy_s + total.cores_s - compute_s)
        return Prediction(
            plan=plan,
            compute_s=compute_s,
            exposed_s=min(exposed_s, total.total_s),
            cost=total,
            buckets=len(parts),
            extra=_NOTHING if self._to_loss is None else self._to_loss.extra(plan, self.world),
        )

    def _exchanges(self, plan: Plan, parts: list[Part], find: _Find) -> StepExchanges:
        def seconds(count: int, number: int) -> float:
            return number * find(self._bucket_plan(plan, number), count).total_s

        return StepExchanges([part.count for part in parts], min(plan.lanes, len(parts)), seconds)


def _has_few_sizes(parts: Sequence[Part]) -> bool:
    return len({part.count for part in parts}) <= _FEW_SIZES


# Candidates are sorted by a lower bound on their time and predicted in that order, until no remaining bound
# can win or tie. Most candidates are never replayed, and the choice equals that of an exhaustive search.

UNCERTAINTY = 0.03
"""The smallest assumed relative error of predictions. Plans tie if their step times differ by less."""


@dataclass(frozen=True)
class Ranking:
    """The predictions of the considered plans, and the prediction of the chosen plan.

    ``uncompressed`` is the fastest without compression, and ``ranking`` all predictions, the fastest first.
    Plans without a prediction are slower by more than ``uncertainty``, the predictions' relative error,
    according to their lower bounds. ``considered`` is the number of plans.
    """

    prediction: Prediction
    uncompressed: Prediction
    ranking: tuple[Prediction, ...]
    considered: int
    uncertainty: float = UNCERTAINTY
    codecs: tuple[CodecCandidate, ...] = ()

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.prediction.plan

    @property
    def ordered(self) -> tuple[Prediction, ...]:
        """The chosen plan's prediction, then all other predictions, the fastest first, as in every table."""
        return self.prediction, *(each for each in self.ranking if each is not self.prediction)


def choose(predictor: Predictor, space: Space, uncertainty: float = UNCERTAINTY) -> Ranking:
    """Rank the plans in ``space``, and choose the fastest, or the simplest of equally fast plans.

    Plans are compared by ``Prediction.to_loss_s``. A plan with compression must be faster than the fastest
    plan without compression by more than ``uncertainty``, even if it needs one standard deviation more extra
    steps than predicted. Among the remaining plans, times within ``UNCERTAINTY`` tie, because
    errors of a codec's measured cost affect all its plans equally. Ties are broken in this order: no
    compression, the shorter pipeline (a longer pipeline changes training), fewer lanes, the earlier algorithm
    of ``space``, the earlier codec, all-reduce before sharded, fewer buckets, larger segments (which have
    fewer frames), and the shorter time.
    """
    plans = list(candidates(space, predictor.workload, predictor.world))
    own = partial(fastest_in_lanes, space, predictor.workload, plans)
    every, one_lane, exact, more = list[Prediction](), list[Prediction](), list[Prediction](), 0
    for lossless in (True, False):
        offered = [plan for plan in plans if is_exact(plan) == lossless]
        found = _search(predictor, offered, uncertainty, one_lane)  # even if several lanes are faster
        in_lanes = own(each.plan for each in sorted(found, key=_time_s))
        one_lane += found
        every += found
        every += _search(predictor, in_lanes, uncertainty, every)
        exact, more = exact or every[:], more + len(in_lanes)
    uncompressed = min(exact, key=_time_s)
    worth_s = uncompressed.to_loss_s * (1 - uncertainty)
    worthwhile = [
        each for each in every if is_exact(each.plan) or each.to_loss_s + each.to_loss_deviation_s < worth_s
    ]
    by_time, considered = tuple(sorted(every, key=_time_s)), len(plans) + more
    return Ranking(_simplest(worthwhile, space), uncompressed, by_time, considered, uncertainty)


def _search(
    predictor: Predictor, plans: Iterable[Plan], uncertainty: float, known: list[Prediction]
) -> list[Prediction]:
    """Predict the ``plans`` that may be as fast as the fastest plan among ``plans`` and ``known``."""
    bounds = {plan: predictor.least_s(plan) for plan in plans}
    found: list[Prediction] = []
    fastest_s = min(map(_time_s, known), default=math.inf)
    for plan in sorted(bounds, key=bounds.__getitem__):
        if bounds[plan] * (1 - uncertainty) > fastest_s:
            break
        found.append(predictor.predict(plan))
        fastest_s = min(fastest_s, found[-1].to_loss_s)
    return found


def _simplest(predictions: list[Prediction], space: Space) -> Prediction:
    fastest_s = min(map(_time_s, predictions))

    def preference(prediction: Prediction) -> tuple[float, ...]:
        plan = prediction.plan
        return (
            not is_exact(plan),
            plan.pipeline,
            plan.lanes,
            space.algorithms.index(plan.algorithm),
            space.codecs.index(plan.encoding),
            space.exchanges.index(plan.exchange),
            prediction.buckets,
            -plan.segment_nbytes,
            prediction.to_loss_s,
        )

    ties = (each for each in predictions if each.to_loss_s * (1 - UNCERTAINTY) <= fastest_s)
    return min(ties, key=preference)


def _time_s(prediction: Prediction) -> float:
    return prediction.to_loss_s


def is_exact(plan: Plan) -> bool:
    """Return whether a plan compresses neither gradients nor, in a sharded exchange, weights."""
    return isinstance(plan.encoding, Identity) and not plan.is_sharded


def rank(
    request: PlanRequest,
    environment: Environment,
    hosts: int,
    *,
    encodings: Sequence[Codec] | None = None,
    family: Family | None = None,
) -> Ranking:
    """Rank a request's candidate plans for ``hosts`` hosts, which may differ from the request's number.

    The request is resolved, and ``environment`` has the costs of all encodings (``planner.environment``).
    ``encodings`` replaces the request's candidates, and ``family`` is a cache of exchange times.
    """
    offered = request.encodings if encodings is None else encodings
    codecs = tuple(admit(offered, environment.codecs, hosts, request.largest_error))
    admitted = tuple(each.codec for each in codecs if each.admitted)
    lanes = lanes_in(environment, request.most_lanes)
    algorithms, exchanges = request.all_algorithms, request.exchanges
    space = Space(admitted, algorithms, request.pipelines, exchanges=exchanges, lanes=lanes)
    noise = environment.noise
    to_loss = None if noise is None else StepsToLoss(environment.codecs, noise)
    times = Family(environment) if family is None else family
    predictor = Predictor(request.workload, hosts, times, to_loss)
    found = choose(predictor, space)
    uncertainty = uncertainty_of(found, environment)
    if uncertainty != found.uncertainty:
        found = choose(predictor, space, uncertainty)
    return replace(found, codecs=codecs)


MOST = 0.9
"""The largest uncertainty; even noisy measurements allow some comparison."""


def uncertainty_of(ranking: Ranking, environment: Environment) -> float:
    """Return the relative error of the chosen plan's step, or of the best uncompressed step if larger."""
    noise = max(_noise(each, environment) for each in (ranking.prediction, ranking.uncompressed))
    return min(MOST, max(UNCERTAINTY, noise))


def _noise(prediction: Prediction, environment: Environment) -> float:
    codec = environment.cost(str(prediction.plan.encoding)).disagreement
    seconds = codec * prediction.cost.codec_s
    seconds += environment.host.disagreement * prediction.cost.handling_s
    return seconds / prediction.step_s if prediction.step_s else 0.0
