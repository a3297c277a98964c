"""Measure the environment of a request: model, link, hosts, codecs, and gradient noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gradwire.codecs import Codec
from gradwire.errors import SpecError
from gradwire.machine import cores, is_inside
from gradwire.planner.calibration import (
    Show,
    excerpt,
    measure_codecs,
    measure_host,
    synthetic_gradients,
    threads_of,
)
from gradwire.planner.encodings import WEIGHTS, behind_nics, measure_weights
from gradwire.planner.explain import name_coding
from gradwire.planner.loss import noise_scale
from gradwire.planner.model import load_factory, load_gradients, measure_model, sizes_of
from gradwire.planner.request import Objective, PlanRequest
from gradwire.timing.calibrate import sums
from gradwire.timing.environment import CodecCost, Environment
from gradwire.timing.line import HostCost
from gradwire.units import format_duration, format_rate, format_size

Gradients = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Input:
    """An input of the choice as text, and its source: measured, given, or assumed."""

    name: str
    value: str
    source: str


def quiet(_done: int, _total: int, _what: str) -> None:
    """Show no progress."""


def is_shared(shared_machine: bool | None) -> bool:
    """Return whether all hosts are this machine; if ``shared_machine`` is None, detect a testbed."""
    return is_inside() if shared_machine is None else shared_machine


def _threads(request: PlanRequest) -> int:
    return threads_of(request.hosts, shared=is_shared(request.shared_machine))


def resolve(request: PlanRequest) -> PlanRequest:
    """Replace a request's factory with the model's sizes and times, and its gradient file with gradients.

    Raises ``GradwireError`` if a file or the factory cannot be used.
    """
    _ = request.found_line  # first, so that an unreadable file fails before a model is measured
    if isinstance(request.gradients, Path):
        request = replace(request, gradients=tuple(load_gradients(request.gradients)))
    return _called(request, request.model) if isinstance(request.model, str) else request


def _called(request: PlanRequest, factory: str) -> PlanRequest:
    """Return the request with the sizes of the factory's model; with example inputs, also with its times.

    The measured gradients belong to the initial weights, and don't show the noise during training, so by
    default plans are compared by their step times.
    """
    model, example = load_factory(factory)
    sizes = sizes_of(model)
    if example is None:
        return replace(request, model=sizes)
    threads = _threads(request)
    measured = measure_model(model, example, threads)
    shared = is_shared(request.shared_machine)
    slower = max(1.0, request.hosts * threads / cores()) if shared else 1.0
    if request.gradients is None and measured.gradients:
        objective = request.objective or Objective.STEP
        request = replace(request, gradients=measured.gradients, objective=objective)
    return replace(
        request,
        model=sizes,
        forward_s=slower * measured.forward_s if request.forward_s is None else request.forward_s,
        backward_s=slower * measured.backward_s if request.backward_s is None else request.backward_s,
    )


def measure(request: PlanRequest, show: Show = quiet) -> Environment:
    """Measure the costs that a resolved request lacks, and return the environment of its plans.

    Raises ``SpecError`` if given costs lack an encoding, ``TensorError`` if gradients cannot be used, and
    ``LinkError`` if the cost of frames cannot be measured.
    """
    noise = _noise(request)
    line, host = request.found_line, _host(request)
    costs = _measured_costs(request, show) if request.costs is None else request.costs
    environment = Environment(
        line,
        costs,
        host,
        groups=_groups(request),
        core_nbytes_per_s=request.core_nbytes_per_s,
        noise=noise,
        threads=_threads(request),
    )
    for spec in (*map(str, request.encodings), *(() if request.sharded_lr is None else (WEIGHTS,))):
        environment.cost(spec)
    return environment


def _noise(request: PlanRequest) -> float | None:
    """Return the noise scale, or None to compare plans by their step times, and not by their time to a loss.

    Given costs may lack the encoding error, so by default they lead to a comparison of step times.
    """
    objective = request.objective
    if objective is None:
        objective = Objective.STEP if request.costs is not None else Objective.LOSS
    gradients = _tensors(request)
    return None if objective is Objective.STEP or gradients is None else noise_scale(gradients)


def _tensors(request: PlanRequest) -> Gradients | None:
    """Return the gradients of a resolved request. Raises ``SpecError`` if they aren't loaded yet."""
    if isinstance(request.gradients, Path):
        raise SpecError(
            f"expected gradients, got the file {request.gradients}; pass the request to "
            "gradwire.planner.environment.resolve first"
        )
    return request.gradients


def _host(request: PlanRequest) -> HostCost:
    found = request.host
    if found is None and request.line_rate is not None:
        found = request.line_rate.host
    if found is None:
        found = measure_host(cores(), 1)
    shared = is_shared(request.shared_machine)
    return replace(found, ranks_per_machine=request.hosts if shared else 1)


def _groups(request: PlanRequest) -> tuple[int, ...]:
    if request.group_size is None:
        return ()
    full, rest = divmod(request.hosts, request.group_size)
    return (request.group_size,) * full + ((rest,) if rest else ())


def _measured_costs(request: PlanRequest, show: Show) -> Mapping[str, CodecCost]:
    threads, given = _threads(request), _tensors(request)
    samples = synthetic_gradients(request.workload.count) if given is None else given
    most = max(request.hosts, request.most_hosts)
    encodings: tuple[Codec, ...] = request.encodings
    costs = measure_codecs(encodings, samples, most, threads, request.found_line, show)
    if request.nic is not None:
        costs = behind_nics(costs, encodings, sums([excerpt(each) for each in samples], most))
    if request.sharded_lr is not None:
        costs = {**costs, WEIGHTS: measure_weights(samples, request.sharded_lr, threads)}
    return costs


def inputs_of(asked: PlanRequest, request: PlanRequest, environment: Environment) -> tuple[Input, ...]:
    """Return the inputs of a choice as text; ``request`` is the resolved form of the request ``asked``."""
    measured = [
        name
        for name in ("forward", "backward")
        if getattr(asked, f"{name}_s") is None and getattr(request, f"{name}_s") is not None
    ]
    work, computation = request.workload, _computation(request, measured)
    factory = asked.model if isinstance(asked.model, str) else "given"
    codecs, timed = map(name_coding, request.encodings), request.costs is None
    return (
        Input("model", f"{work.count:,} parameters, {format_size(work.nbytes)}", factory),
        *([computation] if measured else []),
        *_line(request, environment),
        *_frames(request, environment),
        Input("codecs", ", ".join(codecs), "measured here" if timed else "given"),
        *_gradients(request, environment),
        *_weights(request, environment),
        *([] if measured else [computation]),
    )


def _computation(request: PlanRequest, measured: Sequence[str]) -> Input:
    work = request.workload
    if measured:
        seconds = {"forward": work.forward_s, "backward": work.backward_s, "update": work.update_s}
        value = ", ".join(f"{name} {format_duration(each)}" for name, each in seconds.items())
        return Input("computation", value, f"{' and '.join(measured)} measured here")
    if work.compute_s == 0:
        return Input("computation", "none: choose the fastest exchange", "assumed")
    return Input("computation", f"{format_duration(work.compute_s)} a step", "given")


def _line(request: PlanRequest, environment: Environment) -> list[Input]:
    line = environment.line
    if request.line is not None:
        return [Input("line", str(line), _source_of_line(request))]
    return [
        Input("rate", format_rate(line.nbytes_per_s), "given"),
        Input("latency", format_duration(line.latency_s), "assumed" if request.latency is None else "given"),
    ]


def _source_of_line(request: PlanRequest) -> str:
    if isinstance(request.line, Path):
        return f"measured{' elsewhere' if request.elsewhere else ''}, {request.line}"
    return "given" if request.line_rate is None else "measured"


def _frames(request: PlanRequest, environment: Environment) -> list[Input]:
    host, hosts = environment.host, request.hosts
    frame_s = host.send_s + host.receive_s
    source = "measured here"
    if request.host is not None:
        source = "given"
    elif request.line_rate is not None and request.line_rate.host is not None:
        source = _source_of_line(request)
    shared = is_shared(request.shared_machine)
    where = f"all {hosts} hosts share {host.cores} cores" if shared else f"{host.cores} cores each"
    return [
        Input("frames", f"{format_duration(frame_s)} each, both ends together", source),
        Input("hosts", f"{hosts}, {where}", "assumed" if request.shared_machine is None else "given"),
    ]


def _gradients(request: PlanRequest, environment: Environment) -> list[Input]:
    given, noise = _tensors(request), environment.noise
    if given is None:
        return [Input("gradients", "synthetic (Laplace)", "assumed")]
    found = [Input("gradients", f"{len(given)} recorded", "measured")]
    if noise is not None:
        value = f"{noise:.3g} batches of a host" if noise < math.inf else "too large to measure"
        found.append(Input("noise scale", value, "measured"))
    return found


def _weights(request: PlanRequest, environment: Environment) -> list[Input]:
    if request.sharded_lr is None:
        return []
    bits = 8 * environment.cost(WEIGHTS).at(1).nbytes
    value = f"{bits:.2g} bits per change, at the learning rate {request.sharded_lr:g}"
    return [Input("weights", value, "measured here")]
