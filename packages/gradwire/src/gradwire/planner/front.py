"""``choose_plan``: a request is resolved, measured and ranked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradwire.planner.calibration import Show
from gradwire.planner.environment import inputs_of, measure, quiet, resolve
from gradwire.planner.predict import rank
from gradwire.planner.request import PlanRequest
from gradwire.planner.result import Choice, scaling, worlds_around

if TYPE_CHECKING:
    from gradwire.planner.request import Model


def choose_plan(model: Model, hosts: int, **fields: Any) -> Choice:
    """Return the plan with which a training step should take the least time; it may be no compression.

    Codecs and the handling of frames are measured on this machine, which should be one of the hosts; that
    takes a few seconds.

    Parameters
    ----------
    model
        The model, its parameters, their number or sizes, or a factory ``package.module:name``.
    hosts
        The number of hosts that train, from 2 up.
    fields
        The other fields of ``PlanRequest``: ``rate`` and ``latency``, or ``line``; ``forward_s``,
        ``backward_s`` and ``update_s``; ``codecs``, ``algorithms`` and the rest.

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
    return choose(PlanRequest.of(model, hosts, **fields))


def choose(request: PlanRequest, show: Show = quiet) -> Choice:
    """Return the choice for a request, and how its step scales. Raises as ``choose_plan`` does.

    ``show`` receives the progress of the measurement of codecs.
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
