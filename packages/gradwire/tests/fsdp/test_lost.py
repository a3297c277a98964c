"""Gradients that encoding kills, under FSDP2: whose they are in what is scattered, who warns, who raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import parse
from gradwire.fsdp.units import UnitLayouts
from gradwire.plan import Plan
from support import lossy_ranks

RunProcesses = Callable[..., list[Any]]
pytestmark = pytest.mark.processes


def shard_of(gradient: torch.Tensor, member: int, world: int) -> torch.Tensor:
    """Return one member's rows, as FSDP shards them: the last one's may be fewer, or none."""
    rows = -(-gradient.shape[0] // world)
    return gradient[member * rows : (member + 1) * rows].flatten()


def test_shares_are_those_by_hand(run_processes: RunProcesses) -> None:
    """Of two ranks each encodes what the other one owns, of its own gradient, and nothing else."""
    codec = parse("bf16")
    for rank, found in enumerate(run_processes(2, lossy_ranks.with_shards, "bf16", 2, (2,))):
        assert list(found["shares"]) == [2]
        assert found["shares"][2].keys() == found["own"].keys()
        for name, gradient in found["own"].items():
            values = shard_of(gradient, 1 - rank, 2).contiguous()
            decoded = torch.empty_like(values)
            codec.decode(codec.encode(values), decoded)
            wanted = float((values - decoded).double().norm() / gradient.double().norm())
            assert found["shares"][2][name] == pytest.approx(wanted, rel=1e-3)


def test_each_module_is_told_of_once_on_the_rank_that_loses(run_processes: RunProcesses) -> None:
    first, second = run_processes(2, lossy_ranks.with_shards, "errbound:2^-2", 20, (2,))
    assert first["warnings"] == []
    assert len(second["warnings"]) > 1
    assert all(text.startswith("rank 1: errbound:2^-2 loses ") for text in second["warnings"])
    assert second["summary"].lost.total.samples == 4


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_strict_ranks_raise_together_and_can_go_on(
    mesh: tuple[int, ...], run_processes: RunProcesses
) -> None:
    world = 2 * len(mesh)
    results = run_processes(world, lossy_ranks.with_shards, "errbound:2^-2", 20, mesh, True)
    for found in results:
        assert found["warnings"] == []
        assert (found["errors"], found["steps"]) == (results[0]["errors"], 20)
        assert list(found["errors"]) == [8]
    assert "errbound:2^-2 loses" in results[0]["errors"][8]


def test_where_residuals_are_kept_every_step_is_measured(run_processes: RunProcesses) -> None:
    plan = Plan(parse("errbound:2^-2"), residual=True)
    for found in run_processes(4, lossy_ranks.with_shards, plan, 9, (2, 2), True):
        assert (found["warnings"], found["errors"]) == ([], {})
        assert list(found["shares"]) == list(range(1, 10))
        own = set(found["own"])
        assert set(found["shares"][9]) == own | {f"{name} among replicas" for name in own}


def test_where_parameters_are_left_out_the_rest_is_measured_as_one() -> None:
    layouts = UnitLayouts("0", ("0.weight", "0.bias"), ((2, 3), (2,)))
    whole, part = layouts.scattered(16, 2), layouts.scattered(12, 2)
    assert (whole.names, whole.counts, whole.copies) == (("0.weight", "0.bias"), (6, 2), 2)
    assert (part.names, part.counts, part.copies) == (("0 (some of its parameters)",), (12,), 1)
    assert layouts.replicated(8).names == ("0.weight among replicas", "0.bias among replicas")
    assert layouts.replicated(6).names == ("0 (some of its parameters) among replicas",)
    assert {*whole.names, *part.names, *layouts.replicated(6).names} < set(layouts.all_names())
