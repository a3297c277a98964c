"""What an exchange costs a host where the transport's own all-reduce does it (``collectives.backend``)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gradwire.codecs import Identity
from gradwire.collectives import backend
from gradwire.timing.replay.environment import CodecCost, Environment
from gradwire.timing.replay.host import HostCost

MESSAGE_S = 30e-6
"""What a message of Gloo's own all-reduce costs either end: no Python, no frame."""


def as_seen_by(algorithm: str, environment: Environment) -> Environment:
    """Return the environment with the costs that ``algorithm`` meets there.

    The transport's own all-reduce hands no frames to Python, copies nothing into them and computes no
    checksums; it only adds.
    """
    spec = str(Identity())
    if algorithm != backend.NAME or spec not in environment.codecs:
        return environment
    codecs = {**environment.codecs, spec: _without_frames(environment.codecs[spec])}
    return replace(environment, codecs=codecs, host=_of_messages(environment.host))


@lru_cache(maxsize=64)
def _without_frames(cost: CodecCost) -> CodecCost:
    points = (replace(point, encode_s=0.0, decode_s=0.0) for point in cost.points)
    return replace(cost, points=tuple(points), call_s=0.0)


@lru_cache(maxsize=64)
def _of_messages(host: HostCost) -> HostCost:
    return replace(host, send_s=min(host.send_s, MESSAGE_S), receive_s=min(host.receive_s, MESSAGE_S))
