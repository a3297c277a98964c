"""An environment, converted for another number of ranks."""

from __future__ import annotations

from dataclasses import replace

from gradwire.codecs import Identity
from gradwire.timing.replay.environment import CodecPoint, Environment

_RESIDUAL_PASSES = 7


def among(environment: Environment, world: int) -> Environment:
    """Return the environment of ``world`` ranks, in which lines and groups repeat.

    All groups have the size of the first, except that the last may be smaller; lines repeat from the first.
    If ranks share a machine, all of them share it.
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
    """Return the environment with the cost of keeping residuals for ``codec``.

    To compute a residual, a rank decodes every encoded value and subtracts it. It gathers and adds the
    residuals of a bucket before the exchange, and checks, keeps, and returns them after it. The cost is one
    decoding and ``_RESIDUAL_PASSES`` passes over memory for every value, each as long as identity's decoding.
    """
    cost, identity = environment.cost(codec), environment.codecs.get(str(Identity()))

    def slower(point: CodecPoint) -> CodecPoint:
        passes_s = 0.0 if identity is None else _RESIDUAL_PASSES * identity.at(point.terms).decode_s
        return replace(point, encode_s=point.encode_s + point.decode_s + passes_s)

    finished = None if cost.finished is None else slower(cost.finished)
    found = replace(cost, points=tuple(map(slower, cost.points)), finished=finished)
    return replace(environment, codecs={**environment.codecs, codec: found})


def cores(world: int, environment: Environment) -> int:
    """Return the number of cores that the machines of ``world`` ranks have together."""
    per_machine = max(1, environment.host.ranks_per_machine)
    return -(-world // per_machine) * environment.host.cores


def _groups(groups: tuple[int, ...], world: int) -> tuple[int, ...]:
    if not groups or sum(groups) == world:
        return groups
    whole, rest = divmod(world, groups[0])
    return (groups[0],) * whole + ((rest,) if rest else ())
