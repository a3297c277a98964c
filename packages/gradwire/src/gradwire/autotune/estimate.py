"""Step times predicted from observed steps, on other networks, with and without gradwire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from gradwire.autotune.contract import exchanged
from gradwire.autotune.settings import DEFAULT, Auto
from gradwire.autotune.steps import Observed
from gradwire.codecs import Codec, Identity
from gradwire.collectives import backend
from gradwire.errors import refuse
from gradwire.fields import Source, of, to_values
from gradwire.page import in_notebook
from gradwire.plan import FLOAT_NBYTES, MAX_LANES, MOST_HOSTS, Plan
from gradwire.planner.baselines import cast_s, in_bf16
from gradwire.planner.candidates import Space, Workload, lanes_in
from gradwire.planner.choice import ScalePoint
from gradwire.planner.exchange_times import BucketPlan, Family
from gradwire.planner.explain import LANES_LEGEND, name_in_table, name_plan
from gradwire.planner.loss import StepsToLoss
from gradwire.planner.predict import Prediction, Predictor, choose
from gradwire.records import read_object
from gradwire.tables import Column, Table, figure
from gradwire.timing.environment import CodecCost, Environment
from gradwire.timing.line import HostCost, Line
from gradwire.units import format_duration


@dataclass(frozen=True)
class Limit:
    """The largest part of a step (computation, line: the link, or CPU: codecs and frames), and its share."""

    name: str
    share: float

    def __str__(self) -> str:
        return f"{self.name} {100 * self.share:.0f} %"


def limit_of(chosen: Prediction, line: Line, gather_s: float, ranks_per_machine: int) -> Limit:
    """Return the largest part of a step. The all-gathers of FSDP's weights add ``gather_s`` seconds.

    The exposed part of an exchange is divided like the whole exchange. If ranks share a machine, the exchange
    also waits for cores, so the link's part is at most the time of the bytes at the link's rate.
    """
    cost = chosen.cost
    line_s = cost.wait_s
    if ranks_per_machine > 1:
        line_s = min(line_s, cost.wire_nbytes / line.nbytes_per_s)
    share = line_s / cost.total_s if cost.total_s else 0.0
    parts = {
        "computation": chosen.compute_s,
        "line": share * chosen.exposed_s + gather_s,
        "CPU": (1 - share) * chosen.exposed_s,
    }
    name = max(parts, key=parts.__getitem__)
    total_s = sum(parts.values())
    return Limit(name, parts[name] / total_s if total_s else 1.0)


_SOURCE = Source("an estimate", "run the same version of gradwire on all ranks")


@dataclass(frozen=True)
class Deployment:
    """A network, and the number of hosts on it. ``ranks_per_machine`` of the hosts share a machine.

    ``is_here`` marks the deployment in which the steps were observed.
    """

    network: str
    line: Line
    hosts: int
    ranks_per_machine: int = 1
    is_here: bool = False

    def __post_init__(self) -> None:
        if type(self.hosts) is not int or not 2 <= self.hosts <= MOST_HOSTS:
            refuse(f"2 to {MOST_HOSTS} hosts for an estimate", self.hosts, "pass a number in this range")


@dataclass(frozen=True)
class Estimate:
    """The step time predicted for gradwire in one deployment, in seconds.

    ``plain_s`` is predicted by the same cost model as ``step_s``, so that the cost model's error isn't
    reported as a gain.
    """

    network: str  # the name
    hosts: int
    kind: str  # "DDP" or "FSDP2"
    plain_s: float  # of a step without gradwire
    plan: Plan  # the plan with the shortest expected time to a loss
    step_s: float
    compute_s: float  # of computation in a step
    to_loss_s: float  # until training progresses as far as in one step without compression
    limit: Limit  # the largest part of ``step_s``
    # of gains: the observed steps' scatter, plus the cost model's relative error for the observed step
    spread: float = 0.0

    @property
    def is_noisy(self) -> bool:
        """Whether gains are too uncertain to report."""
        return self.spread > DEFAULT.noisy_share

    @property
    def speedup(self) -> float:
        """The step time without gradwire divided by the step time with gradwire."""
        return self.plain_s / self.step_s

    @property
    def speedup_to_loss(self) -> float:
        """The time to the same loss without gradwire, divided by the time with gradwire."""
        return self.plain_s / self.to_loss_s

    def values(self) -> dict[str, object]:
        """Return all fields and both speedups as a JSON object."""
        derived = {"speedup": self.speedup, "speedup_to_loss": self.speedup_to_loss}
        return {**to_values(self), **derived}

    @classmethod
    def from_json(cls, text: str) -> Estimate:
        """Read the JSON text of ``values``. Raises ``SpecError``."""
        found = read_object(text, "an estimate")
        for derived in ("speedup", "speedup_to_loss"):
            found.pop(derived, None)
        return _SOURCE.read(found, of(cls, plan=Plan.from_values))

    def _repr_html_(self) -> str:
        title = f"Estimate for {self.hosts} hosts, network {self.network}"
        return in_notebook(title, table([self]), legend([self]))

    def __str__(self) -> str:
        took, plain = format_duration(self.step_s), format_duration(self.plain_s)
        gains = f"speedup {self.speedup:.2f} per step, {self.speedup_to_loss:.2f} to the same loss"
        gains = "too noisy to report a gain" if self.is_noisy else gains
        return (
            f"{self.hosts} hosts, network {self.network}: {name_plan(self.plan)}, step time {took}, "
            f"{plain} with {self.kind} alone; {gains}; largest part of the step: {self.limit}"
        )


class Estimator:
    """The predictor of a training run's step times in any deployment.

    ``host`` has the costs of frames, ``costs`` those of codecs by spec, and ``noise`` is the noise scale of
    the gradients.
    """

    def __init__(
        self,
        observed: Observed,
        host: HostCost,
        costs: Mapping[str, CodecCost],
        noise: float,
        settings: Auto | None = None,
    ) -> None:
        self._observed, self._host, self.costs = observed, host, costs
        self._settings = settings or Auto()
        self._to_loss = StepsToLoss(costs, noise)
        self._workload = Workload(
            tuple(reversed(observed.counts)),
            forward_s=observed.compute_s - observed.backward_s,
            backward_s=observed.backward_s,
        )
        self._families: dict[tuple[Line, int, bool], Family] = {}

    def at(self, place: Deployment, codecs: tuple[Codec, ...] | None = None) -> Estimate:
        """Return the estimate for a deployment, with the best plan for ``codecs`` (None: all candidates)."""
        predictor, rules = self._predictor(place), self._observed.rules
        most_lanes = MAX_LANES if rules.has_lanes else 1
        space = Space(
            self._settings.candidates if codecs is None else codecs,
            rules.algorithms,
            buckets_nbytes=(FLOAT_NBYTES,),
            whole=False,
            refused=self._refused(place.hosts),
            lanes=lanes_in(self._family(place).environment, most_lanes),
        )
        best = self._slowed(choose(predictor, space).prediction, place)
        gather_s = self._gather_s(place, best.plan.segment_nbytes)
        step_s = best.step_s + gather_s
        return Estimate(
            place.network,
            place.hosts,
            self._observed.kind,
            self.plain_s(place),
            replace(best.plan, bucket_nbytes=None),
            step_s,
            best.compute_s,
            step_s * (1 + best.extra.share),
            limit_of(best, place.line, gather_s, place.ranks_per_machine),
            self._spread,
        )

    def scaling(self, places: Sequence[Deployment], known: Estimate) -> list[ScalePoint]:
        """Return the step times on one host and in ``places``, with the codec of the ``known`` estimate.

        ``known`` is used for its own number of hosts. Without computation, the result is empty.
        """
        compute_s, codecs = self._workload.compute_s, (known.plan.encoding,)
        if compute_s == 0:
            return []
        points = [ScalePoint(1, compute_s, compute_s, None, compute_s, compute_s)]
        for place in sorted(places, key=lambda each: each.hosts):
            found = known if place.hosts == known.hosts else self.at(place, codecs)
            baselines = self.plain_s(place), self.hook_s(place)
            points.append(ScalePoint(place.hosts, found.step_s, compute_s, None, *baselines))
        return points

    def step_s(self, place: Deployment, plan: Plan, *, halved: bool = False) -> float:
        """Return the predicted seconds of a step with ``plan``, in the observed buckets.

        If ``halved``, each value of an uncompressed gradient takes two bytes, as in bfloat16.
        """
        predicted = self._predictor(place, halved).predict(replace(plan, bucket_nbytes=FLOAT_NBYTES))
        return self._slowed(predicted, place).step_s + self._gather_s(place, plan.segment_nbytes)

    def _slowed(self, predicted: Prediction, place: Deployment) -> Prediction:
        """Return the prediction, slowed by overlapped exchange work if ranks share cores.

        If the backward pass keeps all cores busy, overlapped work lengthens it by the same time, unless the
        step is limited by the total work of the cores.
        """
        cost, total_s = predicted.cost, predicted.exchange_s
        busy = min(1.0, place.ranks_per_machine / self._host.cores)
        needed_s = cost.cores_s - (1 - busy) * predicted.compute_s
        if place.ranks_per_machine == 1 or predicted.exposed_s <= 1.01 * needed_s or not total_s:
            return predicted
        work_s = busy * cost.cores_s * predicted.hidden_s / total_s
        return replace(predicted, exposed_s=predicted.exposed_s + work_s)

    def plain_s(self, place: Deployment) -> float:
        """Return the predicted seconds of a step without gradwire."""
        return self.step_s(place, self._plain)

    def hook_s(self, place: Deployment) -> float:
        """Return the predicted seconds of a step with gradients of bfloat16, as with DDP's bf16 hook."""
        rounding_s = cast_s(self._family(place).environment, self._workload.count)
        return self.step_s(place, self._plain, halved=True) + rounding_s

    @property
    def _plain(self) -> Plan:
        way = backend.NAME if backend.NAME in self._observed.rules.algorithms else "ring"
        return Plan(codec=Identity(), algorithm=way)

    @cached_property
    def _spread(self) -> float:
        seen = self._observed
        if seen.line is None or seen.attached is not None or seen.step_s == 0:
            return seen.scatter
        here = Deployment("this one", seen.line, seen.world, seen.ranks_per_machine, is_here=True)
        return seen.scatter + abs(self.plain_s(here) / seen.step_s - 1)

    def _refused(self, hosts: int) -> set[tuple[Codec, str]]:
        """Return the pairs of a codec and an algorithm whose exchange exceeds the relative-error limit."""
        found = set[tuple[Codec, str]]()
        for codec, algorithm in product(self._settings.candidates, self._observed.rules.algorithms):
            cost = self.costs[str(codec)]
            partial, finished = cost.at(1).lost or 0.0, (cost.finished or cost.at(1)).lost or 0.0
            if exchanged(algorithm, hosts, partial, finished) > self._settings.max_lost_norm:
                found.add((codec, algorithm))
        return found

    def _predictor(self, place: Deployment, halved: bool = False) -> Predictor:
        family, half = self._family(place, halved), self._observed.rules.half
        return Predictor(self._workload, place.hosts, family, self._to_loss, half=half)

    def _family(self, place: Deployment, halved: bool = False) -> Family:
        key = place.line, place.ranks_per_machine, halved
        if key not in self._families:
            host = replace(self._host, ranks_per_machine=place.ranks_per_machine)
            environment = Environment(place.line, self.costs, host, threads=self._observed.threads)
            self._families[key] = Family(in_bf16(environment) if halved else environment)
        return self._families[key]

    def _gather_s(self, place: Deployment, segment_nbytes: int) -> float:
        """Return the seconds that forward and backward passes wait for all-gathers of weights."""
        way = BucketPlan("ring", segment_nbytes, str(Identity()), half="broadcast")
        times = self._family(place).among(place.hosts)
        return sum(times.terms(way, count).total_s for count in self._observed.gathers)


_LEGEND = (
    "One cost model predicts all times. gain: the speedup of a step; to loss: the speedup of training to "
    "the same loss, with the extra steps that encoding needs at this gradient noise. Ranges include the "
    "scatter of the observed steps, and the cost model's error for these steps; noisy: an uncertainty above "
    "15 %. limit: the largest part of the step with gradwire; CPU: codecs and frames."
)


def legend(estimates: Sequence[Estimate]) -> str:
    """Return the explanation of the columns of ``table``."""
    return _LEGEND + (LANES_LEGEND if any(each.plan.lanes > 1 for each in estimates) else "")


def gain(estimate: Estimate, ratio: float) -> str:
    """Return the speedup ``ratio`` with the estimate's spread, such as ``1.2-1.4x``, or ``noisy``."""
    if estimate.is_noisy:
        return "noisy"
    low, high = (f"{each:.3g}" for each in (ratio / (1 + estimate.spread), ratio * (1 + estimate.spread)))
    return f"{low}x" if low == high else f"{low}-{high}x"


def table(estimates: Sequence[Estimate]) -> Table:
    """Return a table with one row per estimate."""
    slowest_s = max(max(each.plain_s, each.step_s) for each in estimates)
    unit, scale = ("s", 1.0) if slowest_s >= 100 else ("ms", 1e3)
    columns = (
        Column.of_text("network"),
        Column("hosts"),
        Column(estimates[0].kind, unit),
        Column.of_text("plan"),
        Column("step", unit),
        Column("gain"),
        Column("to loss"),
        Column.of_text("limit"),
    )
    rows = [
        (
            each.network,
            str(each.hosts),
            figure(scale * each.plain_s),
            name_in_table(each.plan),
            figure(scale * each.step_s),
            gain(each, each.speedup),
            gain(each, each.speedup_to_loss),
            str(each.limit),
        )
        for each in estimates
    ]
    return Table(columns, rows)
