"""Ranks at different steps, with every front end: each rank names them, in time, with its weights intact."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire.links import Link
from support import out_of_step
from support.out_of_step import STEPS, Kind, Run, failed
from support.ranks import run_ranks

RunProcesses = Callable[..., list[Any]]
ADVICE = "load the same checkpoint on all ranks, and run the same number of steps"


@pytest.fixture(params=out_of_step.METHODS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return a training method."""
    found: Kind = request.param
    return found


def check(errors: list[str], behind: int, ahead: int) -> None:
    """The last rank is at the step ``behind``, and every other rank at ``ahead``; all errors say so."""
    last = len(errors) - 1
    for error in errors:
        assert ADVICE in error
        said = {int(rank): int(step) for rank, step in re.findall(r"rank (\d) is at step (\d+)", error)}
        assert len(said) == 2
        assert all(step == (behind if rank == last else ahead) for rank, step in said.items())
        assert last in said


@pytest.mark.parametrize("world", [2, 3])
def test_a_rank_that_took_a_step_less_is_named(kind: Kind, world: int) -> None:
    errors = run_ranks(world, lambda link: out_of_step.skipped(kind, link))
    check(errors, STEPS - 1, STEPS)


def saved(kind: Kind, link: Link, *, drain: bool = True) -> dict[str, Any]:
    run = Run(kind, link)
    for _ in range(STEPS):
        run.step()
    state: dict[str, Any] = copy.deepcopy(run.door.state_dict(drain=drain))
    run.door.close()
    return state


def test_a_rank_that_resumed_without_its_state_is_named(kind: Kind) -> None:
    states = run_ranks(3, lambda link: saved(kind, link))
    errors = run_ranks(3, lambda link: out_of_step.unloaded(kind, link, states[link.rank]))
    said = {int(step) for error in errors for step in re.findall(r"is at step (\d+)", error)}
    assert said <= {0, 1, STEPS, STEPS + 1}
    assert all(
        ADVICE in error and "rank 2 is at step 0" in error.replace("step 1,", "step 0,") for error in errors
    )


def test_ranks_whose_states_have_other_gradients_in_flight_are_named() -> None:
    states = [
        run_ranks(2, lambda link, drain=drain: saved("pipe", link, drain=drain)) for drain in (True, False)
    ]

    def resumed(link: Link) -> str:
        run = Run("pipe", link)
        run.door.load_state_dict(states[link.rank][link.rank])
        error = failed(run, run.step)
        run.door.close()
        return error

    for error in run_ranks(2, resumed):
        assert f"at step {STEPS} with 0 gradients in flight, like rank 0, got 2 on rank 1; load the" in error


def test_ranks_that_all_resume_go_on() -> None:
    for drain in (True, False):
        states = run_ranks(2, lambda link, drain=drain: saved("pipe", link, drain=drain))

        def resumed(link: Link, states: list[dict[str, Any]] = states) -> torch.Tensor:
            run = Run("pipe", link)
            run.door.load_state_dict(states[link.rank])
            for _ in range(STEPS):
                run.step()
            run.door.drain()
            run.door.close()
            return torch.cat([each.flatten() for each in out_of_step.weights(run.model)])

        first, second = run_ranks(2, resumed)
        assert torch.equal(first, second)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["attach", "backend", "fsdp"])
def test_a_rank_of_a_process_that_took_a_step_less_is_named(kind: str, run_processes: RunProcesses) -> None:
    check(run_processes(3, out_of_step.skipped, kind), STEPS - 1, STEPS)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["attach", "backend", "auto", "fsdp"])
def test_a_process_that_resumed_without_its_state_is_named(kind: str, run_processes: RunProcesses) -> None:
    check(run_processes(3, out_of_step.unloaded, kind), 1, STEPS + 1)


def test_a_rank_that_ended_training_early_is_named(run_processes: RunProcesses) -> None:
    gone, *others = reversed(run_processes(3, out_of_step.left, "attach"))
    assert gone == ""
    for error in others:
        assert re.search(
            r"rank 2 has closed its link after step 2, but rank \d is at step 3; check rank 2", error
        )
