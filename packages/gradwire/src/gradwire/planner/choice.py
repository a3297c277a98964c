"""Choose a plan: resolve the request, measure, rank, and predict how the chosen plan scales."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire._native import target
from gradwire.codecs import Codec
from gradwire.fields import to_values
from gradwire.page import in_notebook
from gradwire.plan import Plan
from gradwire.planner.baselines import Baselines
from gradwire.planner.calibration import Show
from gradwire.planner.environment import Input, inputs_of, measure, quiet, resolve
from gradwire.planner.exchange_times import Family
from gradwire.planner.explain import explain, name_plan
from gradwire.planner.predict import Prediction, Ranking, rank
from gradwire.planner.request import PlanRequest
from gradwire.records import make_record, to_json
from gradwire.tables import Column, Table, figure
from gradwire.timing.environment import Environment
from gradwire.units import format_duration

if TYPE_CHECKING:
    from gradwire.planner.request import Model


def choose_plan(model: Model, hosts: int, **fields: Any) -> Choice:
    """Choose the plan with the shortest predicted step, with or without compression.

    Codecs and the handling of frames are measured for a few seconds on this machine, which should be one of
    the hosts.

    Parameters
    ----------
    model
        The model, its parameters, their number or sizes, or a factory ``package.module:name``.
    hosts
        The number of hosts that train, from 2 up.
    fields
        The other fields of ``PlanRequest``: ``rate`` and ``latency``, or ``line``; ``forward_s``,
        ``backward_s`` and ``update_s``; ``codecs``, ``algorithms``, and so on.

    Raises
    ------
    SpecError
        If an argument is invalid, or the network's rate isn't given.
    TensorError
        If gradients or parameters cannot be used.
    LinkError
        If the cost of frames cannot be measured.

    Examples
    --------
    >>> from gradwire import choose_plan
    >>> choice = choose_plan(25_600_000, hosts=8, rate="1gbit", backward_s=0.2)  # doctest: +SKIP
    >>> choice.plan.save("plan.json")  # doctest: +SKIP
    """
    return choose(PlanRequest.of(model, hosts, **fields))


def choose(request: PlanRequest, show: Show = quiet) -> Choice:
    """Choose a plan for a request, and predict its scaling if requested. Raises as ``choose_plan`` does.

    ``show`` receives the progress of measuring codecs.
    """
    resolved = resolve(request)
    environment = measure(resolved, show)
    ranked = rank(resolved, environment, resolved.hosts)
    choice = Choice(resolved, environment, ranked, inputs_of(request, resolved, environment), asked=request)
    if not request.most_hosts:
        return choice
    points = scaling(
        resolved,
        environment,
        worlds_around(resolved.hosts, resolved.most_hosts),
        {resolved.hosts: ranked.prediction},
        encodings=(ranked.plan.encoding,),
    )
    return replace(choice, scaling=tuple(points))


SCHEMA = "gradwire.choice/1"
_SHOWN = 5
"""The number of plans to show in a notebook."""


@dataclass(frozen=True)
class Choice:
    """A chosen plan, and the predictions and measurements behind the choice; returned by ``choose_plan``.

    ``plan`` is ready for ``gradwire.all_reduce``, ``gradwire.PipeSGD`` and ``Plan.save``. ``prediction`` is
    the predicted step with this plan, ``uncompressed`` the predicted step with the fastest plan without
    compression, and ``ranking`` contains all predictions, the fastest first. ``request`` contains the sizes
    and times of the model; ``asked`` is the original request, whose factory and files haven't been read.
    """

    request: PlanRequest
    environment: Environment
    ranked: Ranking
    inputs: tuple[Input, ...] = ()
    scaling: tuple[ScalePoint, ...] = ()
    asked: PlanRequest | None = None

    @property
    def hosts(self) -> int:
        """The number of hosts."""
        return self.request.hosts

    @property
    def plan(self) -> Plan:
        """The chosen plan."""
        return self.ranked.plan

    @property
    def prediction(self) -> Prediction:
        """The prediction of the chosen plan."""
        return self.ranked.prediction

    @property
    def uncompressed(self) -> Prediction:
        """The prediction of the fastest plan without compression."""
        return self.ranked.uncompressed

    @property
    def ranking(self) -> tuple[Prediction, ...]:
        """All predictions, the fastest first."""
        return self.ranked.ranking

    @property
    def explanation(self) -> str:
        """The reasons for this plan, in sentences."""
        return explain(self.ranked)

    def _repr_html_(self) -> str:
        columns = (
            Column.of_text("plan"),
            Column("step"),
            Column("exposed"),
            Column("wire", "MB"),
            Column("ratio"),
        )
        rows = [
            (
                f"{name_plan(each.plan)}{', chosen' if each is self.prediction else ''}",
                format_duration(each.step_s),
                format_duration(each.exposed_s),
                figure(each.cost.wire_nbytes / 1e6),
                f"{each.ratio:.3g}",
            )
            for each in self.ranked.ordered[:_SHOWN]
        ]
        verdict, _, _ = self.explanation.partition(". ")
        return in_notebook(f"A plan for {self.hosts} hosts", f"Chosen: {verdict}.", Table(columns, rows))

    def to_json(self) -> str:
        """Return the choice's record as indented JSON. ``Plan.from_json`` reads the value of ``plan``."""
        return to_json(self.record())

    def record(self) -> dict[str, object]:
        """Return the choice as a record of schema ``SCHEMA``."""
        fields = {
            "hosts": self.hosts,
            "request": (self.asked or self.request).to_values(),
            "plan": to_values(self.plan),
            "explanation": self.explanation,
            "prediction": self.prediction.values(),
            "uncompressed": self.uncompressed.values(),
            "objective": "step" if self.environment.noise is None else "loss",
            "uncertainty": self.ranked.uncertainty,
            "inputs": to_values(self.inputs),
            "codecs": [
                {
                    "codec": str(each.codec),
                    "largest_error": each.error,
                    "guaranteed": each.guaranteed,
                    "admitted": each.admitted,
                }
                for each in self.ranked.codecs
            ],
            "considered": self.ranked.considered,
            "ranking": [each.values() for each in self.ranked.ordered],
            "scaling": [each.values() for each in self.scaling],
            "hosts_that_pay": hosts_that_pay(self.scaling) if self.scaling else None,
        }
        return make_record(SCHEMA, fields, target=target())


# Weak scaling: every host keeps its batch size, so ``p`` hosts process ``p`` batches per step. The throughput
# is ``p`` over the step time. The efficiency is the throughput over ``p`` times the throughput of one host,
# which is the time of computation over the step time.

LEAST_GAIN = 0.5
"""The share of a single host's throughput that an additional host must add to pay off."""
_NONE_KNOWN: Mapping[int, Prediction] = MappingProxyType({})


@dataclass(frozen=True)
class ScalePoint:
    """The step time of the best plan on ``hosts`` hosts.

    A single host exchanges nothing, and has no ``prediction``. ``plain_s`` and ``hook_s`` are the step times
    of plain DDP and of its bf16 hook, or None if unknown.
    """

    hosts: int
    step_s: float
    compute_s: float
    prediction: Prediction | None
    plain_s: float | None = None
    hook_s: float | None = None

    @property
    def throughput(self) -> float:
        """The number of batches per second of all hosts together."""
        return self.hosts / self.step_s

    @property
    def speedup(self) -> float:
        """The throughput relative to a single host."""
        return self.hosts * self.compute_s / self.step_s

    @property
    def efficiency(self) -> float:
        """The speedup divided by the number of hosts."""
        return self.compute_s / self.step_s

    def values(self) -> dict[str, object]:
        """Return the step time, the baselines, and the plan as a JSON object."""
        return {
            "hosts": self.hosts,
            "step_s": self.step_s,
            "ddp_s": self.plain_s,
            "bf16_hook_s": self.hook_s,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "plan": None if self.prediction is None else to_values(self.prediction.plan),
        }


def scaling(
    request: PlanRequest,
    environment: Environment,
    worlds: Sequence[int],
    known: Mapping[int, Prediction] = _NONE_KNOWN,
    *,
    encodings: Sequence[Codec] | None = None,
) -> Iterator[ScalePoint]:
    """Yield the step time of the best plan for each number of hosts in ``worlds``, in their order.

    ``known`` maps numbers of hosts to existing predictions; ``encodings`` is as in ``planner.predict.rank``.
    If the time of computation is 0, throughputs are undefined, and nothing is yielded.
    """
    compute_s = request.workload.compute_s
    if compute_s == 0:
        return
    family, baselines = Family(environment), Baselines(request.workload, environment)
    for world in worlds:
        if world == 1:
            yield ScalePoint(1, compute_s, compute_s, None, compute_s, compute_s)
            continue
        prediction = known.get(world)
        if prediction is None:
            prediction = rank(request, environment, world, encodings=encodings, family=family).prediction
        plain_s, hook_s = baselines.plain_s(world), baselines.hook_s(world)
        yield ScalePoint(world, prediction.step_s, compute_s, prediction, plain_s, hook_s)


def worlds_around(hosts: int, farthest: int) -> list[int]:
    """Return the powers of two up to ``farthest``, and ``hosts``."""
    return sorted({hosts, *(1 << k for k in range(farthest.bit_length()) if 1 << k <= farthest)})


def hosts_that_pay(points: Sequence[ScalePoint], least_gain: float = LEAST_GAIN) -> int:
    """Return the number of hosts up to which every additional host pays off, or 1 if a second host doesn't.

    Still more hosts may pay off again; ``paying_ranges`` returns all ranges in which hosts pay off.
    """
    first, *_ = (*paying_ranges(points, least_gain), (1, 1))
    return first[1] if first[0] == points[0].hosts else 1


def gains(points: Sequence[ScalePoint]) -> list[float]:
    """Return the throughput, in units of one host's, that each host adds between neighbouring points."""
    return [
        (after.speedup - before.speedup) / (after.hosts - before.hosts) for before, after in pairwise(points)
    ]


def paying_ranges(points: Sequence[ScalePoint], least_gain: float = LEAST_GAIN) -> list[tuple[int, int]]:
    """Return all ranges (first, last) of the number of hosts in which every additional host pays off."""
    ranges: list[tuple[int, int]] = []
    for (before, after), gain in zip(pairwise(points), gains(points), strict=True):
        if gain >= least_gain:
            first = ranges.pop()[0] if ranges and ranges[-1][1] == before.hosts else before.hosts
            ranges.append((first, after.hosts))
    return ranges
