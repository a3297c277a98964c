"""Made-up steps of a training, and what codecs cost it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gradwire.autotune import Auto
from gradwire.autotune.estimate import Estimator
from gradwire.autotune.steps import Observed
from gradwire.timing.environment import CodecCost, CodecPoint
from gradwire.timing.line import HostCost, Line

FAST = Line(1e-5, 1.25e9)
HOST = HostCost(send_s=1e-5, receive_s=1e-5, cores=4)
SETTINGS = Auto(codecs=["bf16", "fp8", "quantize:4"])
NBYTES = {"identity": (4.0, 0.0), "bf16": (2.0, 0.002), "fp8": (1.02, 0.03), "quantize:4": (0.5, 0.3)}


def observed(**changes: Any) -> Observed:
    """Return 4 ranks that compute for 30 ms, 20 of them backward, and average 16 MiB in 4 buckets."""
    gradients = tuple(
        1.0 + torch.randn(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(3)
    )
    usual = Observed("DDP", "cpu", 4, 1, 1, 10, 0.03, 0.02, 0.025, (1 << 20,) * 4, (), FAST, gradients)
    return replace(usual, **changes)


def estimator(seen: Observed, host: HostCost = HOST, seconds: float = 2e-10) -> Estimator:
    """Return what estimates with codecs that take so many seconds for a value each way."""
    costs = {
        spec: CodecCost(
            spec,
            (CodecPoint(1, nbytes, seconds, seconds, seconds, lost=lost),),
            exact=spec == "identity",
        )
        for spec, (nbytes, lost) in NBYTES.items()
    }
    return Estimator(seen, host, costs, 2.0, SETTINGS)
