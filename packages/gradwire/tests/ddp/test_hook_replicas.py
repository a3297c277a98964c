"""Replicas that differ in a weight or in an optimizer's state are named, now or within N steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradwire import Plan
from gradwire.plan import PlanLike
from support import replica_ranks

RunProcesses = Callable[..., list[Any]]
DIFFER = "StateError: replicas must agree bit for bit, but the"
pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("kind", "damaged", "plan"),
    [
        ("adamw", "exp_avg", "identity"),
        ("adamw", "exp_avg_sq", "topk:0.5"),
        ("adamw", "step", "identity"),
        ("adamw", "lr", Plan(algorithm="backend")),
        ("sgd", "momentum_buffer", "auto"),
        ("lbfgs", "d", "identity"),
        ("adamw", "weights", "identity"),
    ],
)
def test_one_flipped_bit_ends_the_run_on_all_ranks_at_the_next_check(
    kind: str, damaged: str, plan: PlanLike, run_processes: RunProcesses
) -> None:
    what = "weights" if damaged == "weights" else "optimizer states"
    for said in run_processes(2, replica_ranks.watched, kind, damaged, plan):
        assert said[:6] == [""] * 6
        for each in said[6:]:
            assert each.startswith(f"{DIFFER} {what} of rank 1 differ from those of rank 0; "), said


def test_an_optimizer_may_be_named_when_replicas_are_compared(run_processes: RunProcesses) -> None:
    for unharmed, of_weights, of_both in run_processes(3, replica_ranks.named_by_hand):
        assert unharmed == of_weights == ""
        assert of_both.startswith(f"{DIFFER} optimizer states of rank 0 differ from those of rank 1;")


def test_what_ddp_ignores_may_differ_and_the_rest_may_not(run_processes: RunProcesses) -> None:
    for said in run_processes(2, replica_ranks.ignored):
        assert said[:3] == [""] * 3
        assert all(each.startswith(f"{DIFFER} weights of rank 1 differ") for each in said[3:]), said


def test_a_rank_without_batches_under_join_is_no_false_alarm(run_processes: RunProcesses) -> None:
    assert run_processes(2, replica_ranks.joined) == ["done"] * 2


def test_ranks_that_would_check_at_other_steps_are_refused(run_processes: RunProcesses) -> None:
    for said in run_processes(2, replica_ranks.told_apart):
        assert said.startswith("AttachError: ")
        assert "check_replicas_every is 1 on rank 0, 2 on rank 1" in said
