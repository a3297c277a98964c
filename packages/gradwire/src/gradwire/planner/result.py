"""The planner's answer: a plan, what it should take, what else there was, and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from types import MappingProxyType

from gradwire._native import target
from gradwire.codecs import Codec
from gradwire.plan import EXCHANGES, Plan
from gradwire.planner.candidates import ALGORITHMS, Space, Workload
from gradwire.planner.cluster import Input
from gradwire.planner.encodings import Admission, admit
from gradwire.planner.exchange_times import Family
from gradwire.planner.explain import explain
from gradwire.planner.loss import StepsToLoss
from gradwire.planner.predict import Prediction, Predictor, Selection, choose, uncertainty_of
from gradwire.records import make_record, to_json
from gradwire.timing.environment import Environment

# Everything that a choice depends on, for any number of hosts.


@dataclass(frozen=True)
class Query:
    """What is trained, where, and which plans are allowed.

    ``codecs`` are the candidates, before the budget ``largest_error`` (see ``admit``);
    ``environment`` has the costs of all of them. With the gradients' ``noise`` scale, plans are compared by
    the time to a loss; with None by the step. ``exchanges`` are those of ``Space``.
    """

    workload: Workload
    environment: Environment
    codecs: tuple[Codec, ...]
    algorithms: tuple[str, ...] = ALGORITHMS
    pipelines: tuple[int, ...] = (1,)
    largest_error: float | None = None
    noise: float | None = None
    exchanges: tuple[str, ...] = EXCHANGES[:1]

    def admissions(self, world: int) -> tuple[Admission, ...]:
        """Return which codecs the budget admits among ``world`` ranks."""
        return tuple(admit(self.codecs, self.environment.codecs, world, self.largest_error))

    def space(self, world: int) -> Space:
        """Return the choices among ``world`` ranks."""
        codecs = tuple(each.codec for each in self.admissions(world) if each.admitted)
        return Space(codecs, self.algorithms, self.pipelines, exchanges=self.exchanges)

    def answer(self, world: int, family: Family | None = None) -> Selection:
        """Return the choice for ``world`` hosts, from 2 up; ``family`` remembers what exchanges take."""
        known = Family(self.environment) if family is None else family
        to_loss = None if self.noise is None else StepsToLoss(self.environment.codecs, self.noise)
        predictor, space = Predictor(self.workload, world, known, to_loss), self.space(world)
        found = choose(predictor, space)
        uncertainty = uncertainty_of(found, self.environment)
        return found if uncertainty == found.uncertainty else choose(predictor, space, uncertainty)


# How a training step scales with the number of hosts, and up to how many of them it pays.
#
# Weak scaling: every host keeps its batch, so ``p`` hosts work on ``p`` batches in each step. The
# throughput is
# ``p`` over the step's time; the efficiency is that over ``p`` times the throughput of one host, which is
# compute over step.

LEAST_GAIN = 0.5
"""What a further host must add to the throughput to pay, as a share of what the first one does."""
FARTHEST = 64
_NONE_KNOWN: Mapping[int, Prediction] = MappingProxyType({})


@dataclass(frozen=True)
class ScalePoint:
    """The best plan's step on ``hosts`` hosts; without a prediction for a single one."""

    hosts: int
    step_s: float
    compute_s: float
    prediction: Prediction | None

    @property
    def throughput(self) -> float:
        """Batches per second of all hosts together."""
        return self.hosts / self.step_s

    @property
    def speedup(self) -> float:
        """How many times the throughput of one host it is."""
        return self.hosts * self.compute_s / self.step_s

    @property
    def efficiency(self) -> float:
        """The speedup over the number of hosts."""
        return self.compute_s / self.step_s


def scaling(
    query: Query, worlds: Sequence[int], known: Mapping[int, Prediction] = _NONE_KNOWN
) -> Iterator[ScalePoint]:
    """Yield the best plan's step for each number of hosts, rising, from 1 up.

    ``known`` has choices that have been made already, by the number of hosts. Without any time of computation
    there is nothing to compare with, and no point.
    """
    compute_s = query.workload.compute_s
    if compute_s == 0:
        return
    family = Family(query.environment)
    for world in worlds:
        if world == 1:
            yield ScalePoint(1, compute_s, compute_s, None)
        else:
            prediction = known[world] if world in known else query.answer(world, family).prediction
            yield ScalePoint(world, prediction.step_s, compute_s, prediction)


def worlds_around(hosts: int, farthest: int = FARTHEST) -> list[int]:
    """Return the powers of two up to ``farthest``, and ``hosts``."""
    return sorted({hosts, *(1 << k for k in range(farthest.bit_length()) if 1 << k <= farthest)})


def hosts_that_pay(points: Sequence[ScalePoint], least_gain: float = LEAST_GAIN) -> int:
    """Return the number of hosts up to which every further one pays; 1 where the second does not.

    From each point to the next one each further host must add at least ``least_gain`` times the throughput of
    a single host. More hosts may pay again after some that do not; ``paying_ranges`` tells.
    """
    first, *_ = (*paying_ranges(points, least_gain), (1, 1))
    return first[1] if first[0] == points[0].hosts else 1


def gains(points: Sequence[ScalePoint]) -> list[float]:
    """Return what each further host adds from each point to the next, as a share of one host's throughput."""
    return [
        (after.speedup - before.speedup) / (after.hosts - before.hosts) for before, after in pairwise(points)
    ]


def paying_ranges(points: Sequence[ScalePoint], least_gain: float = LEAST_GAIN) -> list[tuple[int, int]]:
    """Return from how many hosts to how many further ones pay, rising; neighbours are joined."""
    ranges: list[tuple[int, int]] = []
    for (before, after), gain in zip(pairwise(points), gains(points), strict=True):
        if gain >= least_gain:
            first = ranges.pop()[0] if ranges and ranges[-1][1] == before.hosts else before.hosts
            ranges.append((first, after.hosts))
    return ranges


def narrowed(query: Query, prediction: Prediction) -> Query:
    """Return the query with the codec of a prediction only (identity is always a candidate)."""
    return replace(query, codecs=(prediction.plan.encoding,))


SCHEMA = "gradwire.choice/1"


@dataclass(frozen=True)
class Choice:
    """A chosen plan and how it was chosen; ``gradwire.choose_plan`` makes it.

    ``plan`` is ready for ``gradwire.all_reduce``, ``gradwire.PipeSGD`` and ``Plan.save``. ``prediction`` is
    what a step with it should take, ``uncompressed`` what one with the fastest plan without compression
    should; ``ranking`` are the predictions that were made, the fastest first.
    """

    hosts: int
    query: Query
    selection: Selection
    admissions: tuple[Admission, ...]
    inputs: tuple[Input, ...] = ()
    scaling: tuple[ScalePoint, ...] = field(default=())

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.selection.plan

    @property
    def prediction(self) -> Prediction:
        """The prediction of the chosen plan."""
        return self.selection.prediction

    @property
    def uncompressed(self) -> Prediction:
        """The prediction of the fastest plan without compression."""
        return self.selection.uncompressed

    @property
    def ranking(self) -> tuple[Prediction, ...]:
        """All predictions, the fastest first."""
        return self.selection.ranking

    @property
    def explanation(self) -> str:
        """Why this plan."""
        return explain(self.selection, self.admissions)

    def to_json(self) -> str:
        """Return everything as readable JSON; ``Plan.from_json`` reads the value of ``plan``."""
        return to_json(self.record())

    def record(self) -> dict[str, object]:
        """Return everything as the fields of a record."""
        fields = {
            "hosts": self.hosts,
            "plan": json.loads(self.plan.to_json()),
            "explanation": self.explanation,
            "prediction": self.prediction.values(),
            "uncompressed": self.uncompressed.values(),
            "objective": "step" if self.query.noise is None else "loss",
            "uncertainty": self.selection.uncertainty,
            "inputs": [asdict(each) for each in self.inputs],
            "codecs": [_admission(each) for each in self.admissions],
            "considered": self.selection.considered,
            "ranking": [each.values() for each in self.selection.ordered],
            "scaling": [_point(each) for each in self.scaling],
            "hosts_that_pay": hosts_that_pay(self.scaling) if self.scaling else None,
        }
        return make_record(SCHEMA, fields, target=target())


def _admission(admission: Admission) -> dict[str, object]:
    return {
        "codec": str(admission.codec),
        "largest_error": admission.error,
        "guaranteed": admission.guaranteed,
        "admitted": admission.admitted,
    }


def _point(point: ScalePoint) -> dict[str, object]:
    return {
        "hosts": point.hosts,
        "step_s": point.step_s,
        "speedup": point.speedup,
        "efficiency": point.efficiency,
        "plan": None if point.prediction is None else json.loads(point.prediction.plan.to_json()),
    }
