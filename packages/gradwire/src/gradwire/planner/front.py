"""``choose_plan``: the front door of the planner."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradwire.codecs import FREE_OF_SCALE, Codec
from gradwire.errors import SpecError, TensorError
from gradwire.plan import EXCHANGES, FLOAT_NBYTES, SEGMENT_UNIT_NBYTES
from gradwire.planner.calibration import Show, excerpt, measure_codecs, synthetic_gradients
from gradwire.planner.candidates import ALGORITHMS, Space, Workload
from gradwire.planner.cluster import Cluster, Input
from gradwire.planner.encodings import (
    WEIGHTS,
    behind_nics,
    check_budget,
    check_rate,
    measure_weights,
    offered,
)
from gradwire.planner.explain import name_coding
from gradwire.planner.loss import noise_scale
from gradwire.planner.result import Choice, Query
from gradwire.timing.calibrate import sums
from gradwire.timing.environment import CodecCost, Environment
from gradwire.timing.line import HostCost, Line, LineRate
from gradwire.units import format_duration

OBJECTIVES = ("step", "loss")
"""What may be as short as possible: a step, or the time to a loss."""
Model = int | nn.Module | Workload | Iterable[nn.Parameter]


def choose_plan(
    model: Model,
    hosts: int,
    *,
    line: Line | LineRate | str | os.PathLike[str] | None = None,
    elsewhere: bool = False,
    rate: str | float | None = None,
    latency: str | float | None = None,
    forward_s: float = 0.0,
    backward_s: float = 0.0,
    update_s: float = 0.0,
    codecs: Sequence[str | Codec] | None = None,
    algorithms: Sequence[str] | None = None,
    pipelines: Sequence[int] = (1,),
    largest_error: float | None = None,
    objective: str | None = None,
    scale: str | None = None,
    nic: str | Codec | None = None,
    sharded: float | None = None,
    gradients: Sequence[torch.Tensor] | None = None,
    costs: Mapping[str, CodecCost] | None = None,
    host: HostCost | None = None,
    shared_machine: bool | None = None,
    group_size: int | None = None,
    core_rate: str | float | None = None,
) -> Choice:
    """Return the plan with which a training step should take the least time; it may say not to compress.

    Codecs and the handling of frames are measured on this machine, which should be one of the hosts; that
    takes a few seconds.

    Parameters
    ----------
    model
        The model, its parameters, or how many there are.
    hosts
        How many hosts train, from 2 up.
    line
        The line between two hosts: measured by ``gradwire line-rate --json FILE`` (the file, or its
        ``LineRate``), or a ``Line``.
    elsewhere
        Whether the file may be of another machine.
    rate, latency
        The line as told, instead: ``"10gbit"`` or bytes per second, ``"50us"`` or seconds.
    forward_s, backward_s, update_s
        Seconds of computation in a step. Without them the plan with the fastest exchange is chosen.
    codecs
        Codecs that may be used, the preferred first; None for those whose error is a known share of the
        values, see ``codecs.FREE_OF_SCALE``.
    algorithms
        The preferred first; None for those of ``ALGORITHMS``, and hierarchical where there are groups.
    pipelines
        1 for a step at a time. ``(1, 2)`` offers Pipe-SGD as well, which computes before the average of the
        step before has come: faster, but another training.
    largest_error
        The largest absolute error that an element of the gradients' sum over all hosts may have.
    objective
        ``"step"`` for the shortest step, or ``"loss"`` for the shortest time to a loss: the step's, times the
        share of extra steps that the codec's noise and staleness may cost. None for the loss if there are
        gradients to learn their noise from, otherwise for the step.
    scale
        ``"auto"`` also offers those codecs with a scale that can have one (``Plan.scale``).
    nic
        The codec of NICs on the way, which is offered as a plan's ``offload``; None if there are none.
    sharded
        The learning rate of an optimizer like Adam, if ``training.Sharded`` is offered: the bytes of weights'
        changes depend on it.
    gradients
        Real gradients to measure codecs on, such as ``record_gradients`` keeps; synthetic ones if None. Their
        noise is that of different steps, or ranks.
    costs
        The costs of encodings (``Plan.encoding``), by their specs, where they have been measured already.
    host
        What frames cost; None takes what was measured with the line, or measures it here.
    shared_machine
        Whether all hosts are this machine, as in a testbed; None looks for one.
    group_size, core_rate
        Groups of so many neighbouring hosts, and the rate at which a group reaches the others.

    Raises
    ------
    SpecError
        For invalid words or numbers, and if the line isn't given.
    TensorError
        For gradients or parameters that cannot be used.
    LinkError
        Where frames cannot be measured.

    Examples
    --------
    >>> from gradwire import choose_plan
    >>> choice = choose_plan(25_600_000, hosts=8, rate="1gbit", backward_s=0.2)  # doctest: +SKIP
    >>> choice.plan.save("plan.json")  # doctest: +SKIP
    """
    cluster = Cluster(hosts, line, elsewhere, rate, latency, group_size, core_rate, host, shared_machine)
    workload = as_workload(model, forward_s, backward_s, update_s)
    query, inputs = pose(
        cluster,
        workload,
        codecs=codecs,
        algorithms=algorithms,
        pipelines=pipelines,
        largest_error=largest_error,
        objective=objective,
        scale=scale,
        nic=nic,
        sharded=sharded,
        gradients=gradients,
        costs=costs,
    )
    return answer(query, hosts, inputs)


def pose(
    cluster: Cluster,
    workload: Workload,
    *,
    codecs: Sequence[str | Codec] | None = None,
    algorithms: Sequence[str] | None = None,
    pipelines: Sequence[int] = (1,),
    largest_error: float | None = None,
    objective: str | None = None,
    scale: str | None = None,
    nic: str | Codec | None = None,
    sharded: float | None = None,
    gradients: Sequence[torch.Tensor] | None = None,
    costs: Mapping[str, CodecCost] | None = None,
    most_hosts: int = 0,
    show: Show = lambda _done, _total, _what: None,
) -> tuple[Query, tuple[Input, ...]]:
    """Check everything, then measure what is missing; see ``choose_plan``.

    ``most_hosts`` is for the most hosts that the query will be answered for, if more than the cluster has.
    """
    _check_lists(codecs, algorithms, pipelines)
    _check_gradients(gradients, min(workload.count, SEGMENT_UNIT_NBYTES // FLOAT_NBYTES))
    noise = _noise(objective, gradients, told=costs is not None)
    tried = offered(FREE_OF_SCALE if codecs is None else codecs, scale, nic)
    ways = _algorithms(algorithms, cluster)
    exchanges = EXCHANGES[:1] if sharded is None else EXCHANGES
    Space(tried, ways, tuple(pipelines), exchanges=exchanges)
    check_budget(largest_error)
    check_rate(sharded)
    found_line, inputs = cluster.find_line()
    found_host, of_host = cluster.find_host()
    if costs is not None and not isinstance(costs, Mapping):
        raise SpecError(f"costs must be a mapping from specs to CodecCosts, but is {costs!r}")
    if costs is None:
        samples = synthetic_gradients(workload.count) if gradients is None else gradients
        most = max(cluster.hosts, most_hosts)
        costs = measure_codecs(tried, samples, most, cluster.threads, found_line, show)
        if nic is not None:
            costs = behind_nics(costs, tried, sums([excerpt(each) for each in samples], most))
        if sharded is not None:
            costs = {**costs, WEIGHTS: measure_weights(samples, sharded, cluster.threads)}
        source = "measured here"
    else:
        source = "told"
    environment = Environment(
        found_line, costs, found_host, groups=cluster.groups, core_nbytes_per_s=cluster.core_nbytes_per_s
    )
    for spec in (*map(str, tried), *(() if sharded is None else (WEIGHTS,))):
        environment.cost(spec)
    query = Query(workload, environment, tried, ways, tuple(pipelines), largest_error, noise, exchanges)
    inputs += [
        *of_host,
        Input("codecs", ", ".join(map(name_coding, tried)), source),
        *_of_gradients(gradients, noise),
        *_of_weights(environment, sharded),
        _computation(workload),
    ]
    return query, tuple(inputs)


def answer(query: Query, hosts: int, inputs: Sequence[Input] = ()) -> Choice:
    """Return the choice for ``hosts`` hosts."""
    return Choice(hosts, query, query.answer(hosts), query.admissions(hosts), tuple(inputs))


def as_workload(model: Model, forward_s: float, backward_s: float, update_s: float) -> Workload:
    """Return the workload of a model, of its parameters, or of their number. Raises ``SpecError``."""
    if isinstance(model, Workload):
        return model
    if isinstance(model, int):
        return Workload.of_count(model, forward_s, backward_s, update_s)
    counts = tuple(each.numel() for each in _trainable(model))
    return Workload(counts, forward_s, backward_s, update_s)


def _trainable(model: nn.Module | Iterable[nn.Parameter]) -> Iterable[nn.Parameter]:
    """Return what is trained, each parameter once."""
    found: object = model.parameters() if isinstance(model, nn.Module) else model
    parameters: list[Any] = list(found) if _is_list(found) else [found]
    strange = [each for each in parameters if not isinstance(each, torch.Tensor)]
    if strange or not _is_list(found):
        raise SpecError(
            "a plan is for a torch.nn.Module, for its parameters or for a whole number of them, but what "
            f"came is {(strange or parameters)[0]!r:.60}"
        )
    if any(is_lazy(each) for each in parameters):
        raise SpecError(
            "the model has parameters whose sizes it does not know before its first forward pass; let it see "
            "an input first"
        )
    return {id(each): each for each in parameters if each.requires_grad}.values()


def _is_list(value: object) -> TypeGuard[Iterable[Any]]:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, torch.Tensor))


def _check_lists(codecs: object, algorithms: object, pipelines: object) -> None:
    """Refuse a single value where a list is wanted: the letters of a word would be taken one by one."""
    for name, several in (("codecs", codecs), ("algorithms", algorithms), ("pipelines", pipelines)):
        if not (several is None and name != "pipelines") and not _is_list(several):
            raise SpecError(f"{name} must be a list, but is {several!r}; write [{several!r}]")


def _check_gradients(gradients: object, fewest: int) -> None:
    """Refuse what codecs cannot be measured on; of few values only the cost of the call would show."""
    if gradients is None:
        return
    if not isinstance(gradients, Sequence) or isinstance(gradients, str):
        raise TensorError(f"gradients must be a list of tensors, but is a {type(gradients).__name__}")
    if not gradients:
        raise TensorError("the list of gradients to measure codecs on is empty; None has some made")
    shortest = min(each.numel() if isinstance(each, torch.Tensor) else fewest for each in gradients)
    if shortest < fewest:
        raise TensorError(
            f"the gradients to measure codecs on must have {fewest} values or more, but one has {shortest}; "
            "record those of the model itself"
        )


def _computation(workload: Workload) -> Input:
    if workload.compute_s == 0:
        return Input("computation", "none: the fastest exchange is looked for", "assumed")
    return Input("computation", f"{format_duration(workload.compute_s)} a step", "told")


def _noise(objective: str | None, gradients: Sequence[torch.Tensor] | None, *, told: bool) -> float | None:
    """Return the noise scale by which plans are compared; None for the step. Raises ``SpecError``.

    By default the step counts where costs are told, which need not say what codecs lose.
    """
    if objective not in (None, *OBJECTIVES):
        raise SpecError(f"objective must be one of {', '.join(OBJECTIVES)}, but is {objective!r}")
    if objective == "loss" and gradients is None:
        raise SpecError(
            "what a codec costs in steps to a loss depends on the gradients' noise; pass recorded gradients, "
            "or plan for the step"
        )
    if objective == "step" or gradients is None or (objective is None and told):
        return None
    return noise_scale(gradients)


def _of_gradients(gradients: Sequence[torch.Tensor] | None, noise: float | None) -> list[Input]:
    if gradients is None:
        return [Input("gradients", "synthetic (Laplace)", "assumed")]
    found = [Input("gradients", f"{len(gradients)} recorded", "measured")]
    if noise is not None:
        value = f"{noise:.3g} batches of a host" if noise < math.inf else "beyond what these gradients show"
        found.append(Input("noise scale", value, "measured"))
    return found


def _of_weights(environment: Environment, learning_rate: float | None) -> list[Input]:
    if learning_rate is None:
        return []
    bits = 8 * environment.cost(WEIGHTS).at(1).nbytes
    return [
        Input(
            "weights",
            f"{bits:.2g} bits of each change, at the learning rate {learning_rate:g}",
            "measured here",
        )
    ]


def _algorithms(algorithms: Sequence[str] | None, cluster: Cluster) -> tuple[str, ...]:
    if algorithms is None:
        size = cluster.group_size
        return ALGORITHMS if size is None else (*ALGORITHMS, f"hierarchical:{size}")
    return tuple(algorithms)
