"""Environments whose costs are made up: nothing here measures time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradwire.timing.environment import Environment
from gradwire.timing.line import HostCost, Line
from support.planner_costs import NBYTES, codec_cost


def make_environment(
    rate: float = 125e6, latency_s: float = 1e-4, host: HostCost | None = None, **more: object
) -> Environment:
    return Environment(
        Line(latency_s, rate),
        {spec: codec_cost(spec, nbytes) for spec, nbytes in NBYTES.items()},
        HostCost(send_s=5e-5, receive_s=5e-5, cores=16) if host is None else host,
        **more,  # type: ignore[arg-type]
    )


@pytest.fixture
def environment() -> Callable[..., Environment]:
    """Return ``environment(rate, latency_s, host=..., groups=..., ...)``."""
    return make_environment
