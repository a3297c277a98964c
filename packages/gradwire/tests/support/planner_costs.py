"""Made-up costs of codecs, for planners that must not measure."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.codecs import Codec
from gradwire.planner import Choice, Input, PlanRequest
from gradwire.planner.candidates import Workload
from gradwire.planner.predict import rank
from gradwire.timing.environment import CodecCost, CodecPoint, Environment

NBYTES = {"identity": 4.0, "bf16": 2.0, "bfp:7x16": 1.0625, "quantize:8": 1.004}
"""Codec -> bytes for each value."""


def codec_cost(spec: str, nbytes: float) -> CodecCost:
    """Return the costs of a codec that takes a nanosecond for a value each way; only identity is exact."""
    exact = spec == "identity"
    point = CodecPoint(1, nbytes, 1e-9, 1e-9, 1e-9, largest_error=0.0 if exact else 1e-5)
    return CodecCost(spec, (point,), 2e-5, exact)


def made_up(codec: Codec) -> CodecCost:
    """Return the costs of any codec."""
    return codec_cost(str(codec), NBYTES.get(str(codec), 3.0))


def make_request(workload: Workload, codecs: Sequence[str], hosts: int = 2, **fields: object) -> PlanRequest:
    """Return a request on a line that is told, for environments that are made up."""
    seconds = {name: getattr(workload, name) for name in ("forward_s", "backward_s", "update_s")}
    return PlanRequest.of(workload.counts, hosts, **{"rate": "1gbit", "codecs": codecs, **seconds} | fields)


def chosen(request: PlanRequest, environment: Environment, *inputs: Input) -> Choice:
    """Return the choice for a request in a made-up environment."""
    return Choice(request, environment, rank(request, environment, request.hosts), inputs)
