"""Predict the step times of PyTorch's DDP: plain DDP, and DDP with ``bf16_compress_hook``."""

from __future__ import annotations

from dataclasses import replace

from gradwire.codecs import Bf16, Identity
from gradwire.collectives import backend
from gradwire.plan import Plan
from gradwire.planner.candidates import Workload
from gradwire.planner.exchange_times import Family
from gradwire.planner.predict import Predictor
from gradwire.timing.environment import Environment

BUCKET_NBYTES = 25 << 20
"""The size of DDP's buckets, unless ``bucket_cap_mb`` sets another size."""
PLAIN = Plan(algorithm=backend.NAME, bucket_nbytes=BUCKET_NBYTES)
"""The plan that describes DDP without gradwire."""
_EXACT, _HALF = str(Identity()), str(Bf16())
_HALF_NBYTES = 2.0


class Baselines:
    """A predictor of DDP's step times in one environment, with cached times of exchanges."""

    def __init__(self, workload: Workload, environment: Environment) -> None:
        self._workload = workload
        self._plain, self._half = Family(environment), Family(in_bf16(environment))
        self._cast_s = cast_s(environment, workload.count)

    def plain_s(self, hosts: int) -> float:
        """Return the predicted seconds of a step of plain DDP."""
        return Predictor(self._workload, hosts, self._plain).predict(PLAIN).step_s

    def hook_s(self, hosts: int) -> float:
        """Return the predicted seconds of a step of DDP with ``bf16_compress_hook``."""
        return Predictor(self._workload, hosts, self._half).predict(PLAIN).step_s + self._cast_s


def in_bf16(environment: Environment) -> Environment:
    """Return the environment with uncompressed values of two bytes, as with DDP's bf16 hook."""
    exact = environment.cost(_EXACT)
    points = tuple(replace(point, nbytes=_HALF_NBYTES) for point in exact.points)
    return replace(environment, codecs={**environment.codecs, _EXACT: replace(exact, points=points)})


def cast_s(environment: Environment, count: int) -> float:
    """Return the seconds that the hook takes to round ``count`` gradients to bfloat16 and convert them back.

    If bf16's costs weren't measured, the cost of copying float32 is used.
    """
    point = environment.cost(_HALF if _HALF in environment.codecs else _EXACT).at(1)
    return count * (point.encode_s + point.decode_s)
