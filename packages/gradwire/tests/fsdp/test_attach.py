from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

import gradwire
from gradwire.errors import AttachError, SpecError, StateError
from gradwire.plan import Plan
from support.saved_residuals import residuals_in
from support.sharded import Case, loss_of, make_model, shard, whole

RunProcesses = Callable[..., list[Any]]


def step(model: nn.Module, number: int = 0) -> None:
    loss_of(model, dist.get_rank(), number).backward()  # type: ignore[no-untyped-call]


def refuse_what_cannot_be() -> None:
    model = make_model()
    with pytest.raises(AttachError, match="got a Sequential without sharded parameters; call fully"):
        gradwire.attach_fsdp(model)
    with pytest.raises(AttachError, match=r"expected an nn\.Module, got int"):
        gradwire.attach_fsdp(17)  # type: ignore[arg-type]
    sharded = shard(model, Case())
    before = sharded._get_fsdp_state()._fsdp_param_groups[0]._reduce_scatter_comm
    for arguments, reason in (
        ({"gradients": "fp17"}, "unknown codec 'fp17'"),
        (
            {"gradients": 17},
            "expected a Plan, a codec, its spec or the path of a plan's file for gradients, got 17",
        ),
        ({"gradients": Plan(pipeline=2)}, "use a plan with pipeline=1"),
        (
            {"gradients": Plan(exchange="sharded")},
            "attach_fsdp: expected a plan with exchange='all_reduce', got 'sharded'",
        ),
        ({"weights": "delta"}, "delta: expected the receivers' format, fp32 or bf16, got ''"),
        (
            {"gradients": Plan(algorithm="star")},
            "the algorithm 'ring' on a mesh without a replica dimension, got 'star'",
        ),
        ({"weights": 17}, "weights: expected a codec, its spec or None, got 17"),
        ({"timeout_s": 0}, "expected timeout_s above 0"),
    ):
        with pytest.raises(SpecError, match=re.escape(reason)):
            gradwire.attach_fsdp(model, **arguments)
    assert sharded._get_fsdp_state()._fsdp_param_groups[0]._reduce_scatter_comm is before


def attach_and_close() -> list[list[torch.Tensor]]:
    refuse_what_cannot_be()
    model = make_model()
    shard(model, Case())
    found = []
    for attached in (None, "truncate:22", None):  # so coarse that nobody overlooks it
        if attached is None:
            step(model)
        else:
            with gradwire.attach_fsdp(model, attached) as handle:
                with pytest.raises(
                    AttachError,
                    match=r"got 'root', which is attached; call close\(\) on the earlier Attached",
                ):
                    gradwire.attach_fsdp(model)
                step(model)
            handle.close()
            assert str(handle.plan.codec) == "truncate:22"
        found.append([whole(parameter.grad) for parameter in model.parameters()])
        model.zero_grad()
    return found


@pytest.mark.processes
def test_close_gives_fsdp_its_own_collectives_back(run_processes: RunProcesses) -> None:
    for before, between, after in run_processes(2, attach_and_close):
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(before, between, strict=True))


def test_without_torch_distributed_the_error_says_what_to_call() -> None:
    with pytest.raises(AttachError, match=r"call torch\.distributed\.init_process_group first"):
        gradwire.attach_fsdp(nn.Linear(2, 2))


def in_an_older_torch() -> str:
    del FSDPModule.set_custom_all_gather
    model = nn.Linear(2, 2)
    fully_shard(model)
    with pytest.raises(AttachError) as caught:
        gradwire.attach_fsdp(model)
    return str(caught.value)


@pytest.mark.processes
def test_a_torch_without_the_extension_points_is_one_clear_error(run_processes: RunProcesses) -> None:
    (message,) = run_processes(1, in_an_older_torch, alone=True)
    assert "attach_fsdp needs FSDPModule.set_custom_all_gather, which torch 2." in message
    assert "does not have; install a newer torch" in message


def one_does_not_come() -> str:
    model = make_model()
    shard(model, Case())
    message = ""
    if dist.get_rank() == 0:
        with pytest.raises(AttachError) as caught:
            gradwire.attach_fsdp(model, timeout_s=0.5)
        message = str(caught.value)
    dist.barrier()
    return message


@pytest.mark.processes
def test_a_rank_that_does_not_attach_is_a_timeout(run_processes: RunProcesses) -> None:
    message = run_processes(2, one_does_not_come)[0]
    assert "rank 0: expected all 2 ranks of the model's group to attach within 0.5 s" in message


def differ() -> str:
    model = make_model()
    shard(model, Case())
    with pytest.raises(AttachError) as caught:
        gradwire.attach_fsdp(model, weights="bf16" if dist.get_rank() else "identity", timeout_s=10.0)
    return str(caught.value)


@pytest.mark.processes
def test_ranks_that_would_attach_differently_learn_it_at_once(run_processes: RunProcesses) -> None:
    for message in run_processes(2, differ):
        assert "weights is identity on rank 0, bf16 on rank 1" in message


def with_residuals() -> tuple[torch.Tensor, torch.Tensor, dict[str, Any], list[str]]:
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Linear(6, 2 * world, bias=False)
    fully_shard(model)
    attached = gradwire.attach_fsdp(model, Plan(gradwire.parse("truncate:20"), residual=True))
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    received = torch.zeros(2 * world, 6)
    for _ in range(5):  # the weights never change: every step has the same gradient
        model(x).sum().backward()
        received += whole(model.weight.grad)
        model.zero_grad()
    exact = x.sum(0).expand(2 * world, 6) * 5
    state = attached.state_dict()
    attached.close()
    refused = []
    with gradwire.attach_fsdp(model, Plan(gradwire.parse("truncate:20"), residual=True)) as again:
        again.load_state_dict(state)
        after = residuals_in(again.state_dict())
        assert all(torch.equal(after[key], each) for key, each in residuals_in(state).items())
        older = {"rank": rank, "world": world + 1, "residuals": residuals_in(state)}
        for wrong in ({}, {"residuals": older}):
            with pytest.raises(StateError) as caught:
                again.load_state_dict(wrong)
            refused.append(str(caught.value))
    return received, exact, residuals_in(state), refused


@pytest.mark.processes
def test_what_the_codec_lost_is_in_the_residuals_which_are_saved(run_processes: RunProcesses) -> None:
    world = 3
    results = run_processes(world, with_residuals)
    exact = torch.stack([each[1] for each in results]).sum(0)
    received = world * results[0][0]  # FSDP averages
    (key,) = results[0][2]
    lost = torch.stack([each[2][key] for each in results]).sum(0).view(2 * world, 6)
    assert lost.abs().max() > 1e-4
    assert torch.allclose(received + lost, exact, atol=1e-5)
    assert all(
        "got a mapping without any rank's key; load" in each[3][0]
        and f"residuals of {world + 1} ranks" in each[3][1]
        for each in results
    )


class Rooted(nn.Module):
    """Has a child that is called as gradwire calls a model itself, and as many gradients of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.root, self.own = nn.Linear(6, 4, bias=False), nn.Linear(4, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.own(self.root(x))
        return out


def with_a_child_named_root() -> tuple[list[str], list[str]]:
    model = Rooted()
    fully_shard(model.root)
    fully_shard(model)
    with gradwire.attach_fsdp(model, "topk:0.25") as attached:
        model(torch.ones(4, 6)).sum().backward()
        residuals = residuals_in(attached.state_dict())
        return sorted(residuals), sorted(attached.ledger.summary().buckets)


@pytest.mark.processes
def test_a_child_named_root_has_residuals_and_counts_of_its_own(run_processes: RunProcesses) -> None:
    for residuals, buckets in run_processes(2, with_a_child_named_root):
        assert residuals == [".root.gradients/24", "root.gradients/24"]
        assert buckets == [
            f"{name}.{what}" for name in (".root", "root") for what in ("gradients", "weights")
        ]


def on_nan() -> str:
    model = nn.Linear(6, 4)
    fully_shard(model)
    with gradwire.attach_fsdp(model, "fp8") as attached:
        for spoilt in (False, True):
            x = torch.ones(2, 6)
            x[0, 0] = torch.nan if spoilt and dist.get_rank() == 0 else 1.0
            model(x).sum().backward()
        return str(attached.ledger.summary())


@pytest.mark.processes
def test_training_on_nan_is_in_the_summary(run_processes: RunProcesses) -> None:
    said = " returned NaN or infinity, most often "
    assert any(said in summary for summary in run_processes(2, on_nan)), "on the rank that has this shard"


def compiled_on_rank_0_alone() -> list[torch.Tensor]:
    model = make_model()
    shard(model, Case())
    if dist.get_rank() == 0:
        model.compile(backend="eager")
    with gradwire.attach_fsdp(model, "identity", timeout_s=20):
        for number in range(3):
            step(model, number)
            with torch.no_grad():
                loss_of(model, dist.get_rank(), number)
    return [whole(parameter.grad) for parameter in model.parameters()]


@pytest.mark.processes
def test_ranks_may_compile_differently(run_processes: RunProcesses) -> None:
    first, second = run_processes(2, compiled_on_rank_0_alone)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
