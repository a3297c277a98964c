"""FSDP2 whose plan the run chooses itself, between processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

import gradwire
from gradwire.codecs import DEFAULT_CODEC
from gradwire.errors import AttachError
from support.sharded import Case, loss_of, make_model, shard
from support.told_line import WARM_UP, telling, unpaced

RunProcesses = Callable[..., list[Any]]
STEPS = WARM_UP + 3
SLOW = (1e-4, 1e3, 0.0, 1.0)


def shards(model: torch.nn.Module) -> list[torch.Tensor]:
    found = [each for each in model.parameters() if isinstance(each, DTensor)]
    return [each.to_local().detach().clone() for each in found]


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        loss_of(model, dist.get_rank(), step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()


def choose(path: str) -> dict[str, Any]:
    """Train with a choice; go on from a checkpoint in the middle; begin another run with its decision."""
    with unpaced():
        settings = gradwire.Auto(codecs=["quantize:8"])
    models, optimizers = [], []
    for _ in range(3):
        models.append(make_model())
        shard(models[-1], Case())
        optimizers.append(torch.optim.SGD(models[-1].parameters(), lr=0.1, momentum=0.9))
    with telling(SLOW):
        with gradwire.attach_fsdp(models[0], gradwire.Auto(**vars(settings) | {"path": path})) as attached:
            first = attached.plan
            train(models[0], optimizers[0], range(STEPS))
            state = copy.deepcopy([models[0].state_dict(), optimizers[0].state_dict(), attached.state_dict()])
            train(models[0], optimizers[0], range(STEPS, STEPS + 4))
            decisions, told = attached.decisions, attached.ledger.summary().decided
        with gradwire.attach_fsdp(models[1], settings) as attached:
            models[1].load_state_dict(state[0])
            optimizers[1].load_state_dict(state[1])
            attached.load_state_dict(state[2])
            train(models[1], optimizers[1], range(STEPS, STEPS + 4))
            resumed = attached.plan
        with gradwire.attach_fsdp(models[2], gradwire.Auto(**vars(settings) | {"path": path})) as attached:
            train(models[2], optimizers[2], range(1))
            again = attached.plan
    return {
        "plans": [first, decisions[-1][1].plan, resumed, again],
        "steps": [step for step, _ in decisions],
        "told": told,
        "weights": [shards(models[0]), shards(models[1])],
    }


@pytest.mark.processes
def test_all_ranks_choose_one_codec_for_all_parameters_and_keep_it_in_checkpoints(
    tmp_path: Any, run_processes: RunProcesses
) -> None:
    results = run_processes(2, choose, str(tmp_path / "auto.json"))
    for found in results:
        first, chosen, *others = found["plans"]
        assert first == gradwire.Auto().first_plan
        assert str(chosen.codec) == "quantize:8"
        assert chosen.algorithm == "ring"
        assert not chosen.codecs
        assert others == [chosen, chosen]
        assert found["steps"] == [WARM_UP + 1]
        assert len(found["told"]) == 1
        assert found["plans"] == results[0]["plans"]
        assert all(torch.equal(a, b) for a, b in zip(*found["weights"], strict=True)), "bit for bit"


def on_a_mesh_of_two_dimensions() -> None:
    model = make_model()
    shard(model, Case(mesh=(2, 2)))
    with pytest.raises(AttachError, match=r"over all 4 ranks, got 'root' on a mesh of \(2, 2\); pass a plan"):
        gradwire.attach_fsdp(model, "auto")
    with gradwire.attach_fsdp(model) as attached:
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), range(WARM_UP + 2))
        assert str(attached.plan.codec) == DEFAULT_CODEC
        assert attached.decisions == []


@pytest.mark.processes
def test_modules_that_are_not_sharded_over_all_ranks_want_a_plan(run_processes: RunProcesses) -> None:
    run_processes(4, on_a_mesh_of_two_dimensions)


def without_a_word() -> int:
    model = make_model()
    shard(model, Case())
    with unpaced(), gradwire.attach_fsdp(model) as attached:
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), range(WARM_UP + 2))
        return len(attached.decisions)


@pytest.mark.processes
def test_who_names_no_plan_lets_the_run_choose(run_processes: RunProcesses) -> None:
    assert run_processes(2, without_a_word) == [1, 1]
