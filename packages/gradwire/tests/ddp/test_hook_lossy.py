"""Gradients that encoding kills, under DDP: who warns, and what all ranks raise at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.codecs import DEFAULT_CODEC, parse
from gradwire.plan import Plan
from support import lossy_ranks

RunProcesses = Callable[..., list[Any]]
KILLS = "errbound:2^-6"
LEAVES = Plan(parse(KILLS), "star")
"""Ranks 1 and 2 encode nothing but their own gradients, whose scale rank 0 does not share."""
pytestmark = pytest.mark.processes


def test_the_rank_that_loses_much_warns_once_for_each_bucket(run_processes: RunProcesses) -> None:
    for rank, found in enumerate(run_processes(3, lossy_ranks.trained, LEAVES, 40)):
        assert found["errors"] == {}
        assert found["steps"] == 40
        assert list(found["shares"]) == [2, 4, 8, 16, 32]
        if rank == 0:
            assert found["warnings"] == []
            assert max(found["shares"][32].values()) < 0.5
            continue
        assert sum(share > 0.99 for share in found["shares"][32].values()) >= 7
        assert 1 < len(found["warnings"]) < 8, "as many as there are buckets"
        names = {
            each.split(" of the gradient norm of ")[1].split()[0].rstrip(",") for each in found["warnings"]
        }
        assert len(names) == len(found["warnings"])
        for sentence in found["warnings"]:
            assert sentence.startswith(f"rank {rank}: {KILLS} loses ")
            assert sentence.endswith(f"try the codec {DEFAULT_CODEC}, or a plan with residual=True")
            assert sentence in found["summary"]


@pytest.mark.parametrize(
    "plan", ["identity", "quantize:8", Plan(parse(KILLS), residual=True), "topk:0.01"], ids=str
)
def test_what_is_fine_or_kept_does_not_warn(plan: Any, run_processes: RunProcesses) -> None:
    for found in run_processes(2, lossy_ranks.trained_alike, plan, 18):
        assert found["warnings"] == []


def test_strict_ranks_raise_together_and_can_go_on(run_processes: RunProcesses) -> None:
    results = run_processes(3, lossy_ranks.trained, LEAVES, 70, True)
    for found in results:
        assert found["warnings"] == []
        assert found["errors"] == results[0]["errors"]
        assert list(found["errors"]) == [8, 64], "three samples more"
        assert found["kept"]
        assert found["steps"] == 70
        assert torch.equal(found["weights"], results[0]["weights"])
    sentence = results[0]["errors"][8]
    assert sentence.startswith(("rank 1 (and 1 other rank): ", "rank 2 (and 1 other rank): "))
    assert f"{KILLS} loses " in sentence
    assert "of the gradient norm of " in sentence
    assert f"try the codec {DEFAULT_CODEC}" in sentence


def test_strict_ranks_that_lose_little_go_on(run_processes: RunProcesses) -> None:
    for found in run_processes(2, lossy_ranks.trained_alike, "quantize:8", 10, True):
        assert (found["errors"], found["steps"]) == ({}, 10)


def test_a_step_that_is_not_finite_is_no_sample(run_processes: RunProcesses) -> None:
    first, second = run_processes(2, lossy_ranks.trained, LEAVES, 9, False, 4)
    assert list(second["shares"]) == [2, 8]
    assert second["warnings"] == []
    assert first["warnings"] == []


def test_a_warning_that_is_an_error_leaves_ddp_whole(run_processes: RunProcesses) -> None:
    for found in run_processes(2, lossy_ranks.warned_as_an_error):
        assert found == {"steps": [8], "ended": 10}


def test_ranks_are_strict_together(run_processes: RunProcesses) -> None:
    for text in run_processes(2, lossy_ranks.differently_strict):
        assert "strict is True on rank 0, False on rank 1" in text


@pytest.mark.parametrize("spec", ["errbound:2^-8", "quantize:8", "bf16"])
def test_shares_are_those_by_hand(spec: str, run_processes: RunProcesses) -> None:
    """Rank 1 of a star encodes its own gradient alone; errbound's bound is absolute, and bf16's relative."""
    _, found = run_processes(2, lossy_ranks.first_shares, spec)
    assert found["step"] == 2
    assert found["shares"].keys() == found["own"].keys()
    if spec == "quantize:8":  # it looks at blocks, which go across parameters
        assert 0 < max(found["shares"].values()) < 0.1
        return
    codec = parse(spec)
    for name, gradient in found["own"].items():
        values = gradient.flatten()
        decoded = torch.empty_like(values)
        codec.decode(codec.encode(values), decoded)
        wanted = float((values - decoded).double().norm() / values.double().norm())
        assert found["shares"][name] == pytest.approx(wanted, rel=1e-3)
