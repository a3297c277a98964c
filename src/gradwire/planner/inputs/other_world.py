"""An environment, seen from another number of ranks than it was made for."""

from __future__ import annotations

from dataclasses import replace

from gradwire.codecs import Identity
from gradwire.timing.replay.environment import Environment

_RESIDUAL_PASSES = 7


def among(environment: Environment, world: int) -> Environment:
    """Return the environment of ``world`` ranks: lines and groups go on as they begin.

    The first group's size holds for all, but that the last may be smaller; lines are used again from the
    first. A machine that ranks share is shared by all of them.
    """
    host = environment.host
    if host.ranks_per_machine > 1:
        host = replace(host, ranks_per_machine=world)
    lines = (
        tuple(environment.line_of(rank % len(environment.lines)) for rank in range(world))
        if environment.lines
        else ()
    )
    return replace(environment, host=host, lines=lines, groups=_groups(environment.groups, world))


def with_residuals(environment: Environment, codec: str) -> Environment:
    """Return the environment in which whoever encodes with ``codec`` keeps what that loses.

    To know it, every encoded value is decoded again and subtracted. The residuals of a bucket are gathered
    and added before; what was lost is looked at, kept and handed back after. That is a decoding and
    ``_RESIDUAL_PASSES`` passes over memory for every value, each as long as the identity takes to decode it.
    """
    cost, identity = environment.cost(codec), environment.codecs.get(str(Identity()))
    points = tuple(
        replace(
            point,
            encode_s=point.encode_s
            + point.decode_s
            + (0.0 if identity is None else _RESIDUAL_PASSES * identity.at(point.terms).decode_s),
        )
        for point in cost.points
    )
    return replace(environment, codecs={**environment.codecs, codec: replace(cost, points=points)})


def cores(world: int, environment: Environment) -> int:
    """Return how many cores the machines of ``world`` ranks have together."""
    per_machine = max(1, environment.host.ranks_per_machine)
    return -(-world // per_machine) * environment.host.cores


def _groups(groups: tuple[int, ...], world: int) -> tuple[int, ...]:
    if not groups or sum(groups) == world:
        return groups
    whole, rest = divmod(world, groups[0])
    return (groups[0],) * whole + ((rest,) if rest else ())
