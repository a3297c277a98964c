"""The ring in one thread that steps to a loss are measured with, and how shares of steps are told."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from support.project import ROOT

WORLD, COUNT = 4, 1003


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("steps_to_loss", ROOT / "bench" / "steps_to_loss.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def gradient(seed: int) -> torch.Tensor:
    return torch.randn(COUNT, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("plan", [Plan(parse("quantize:4")), Plan(parse("bf16")), Plan()], ids=str)
def test_the_ring_in_one_thread_gives_the_bits_of_an_exchange(
    plan: Plan, script: ModuleType, run_ranks: Callable[..., list[Any]]
) -> None:
    def rank(link: Link) -> list[torch.Tensor]:
        exchange, residual = Exchange(link, plan), torch.zeros(COUNT) if plan.keeps_residual else None
        buckets = [gradient(WORLD * step + link.rank) for step in range(2)]
        for bucket in buckets:
            exchange.all_reduce(bucket, residual=residual)
        return buckets

    ring = script.Ring(plan)
    for step, bucket in enumerate(run_ranks(WORLD, rank)[0]):
        assert torch.equal(ring.average([gradient(WORLD * step + k) for k in range(WORLD)]), bucket)
