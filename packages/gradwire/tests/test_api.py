from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gradwire
from gradwire import api, codecs
from gradwire.errors import ExchangeError, SpecError

RunProcesses = Callable[..., list[Any]]


def share(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank)) * 0.01


def test_the_package_exports_its_public_names_sorted() -> None:
    assert list(gradwire.__all__) == sorted(gradwire.__all__)
    assert all(hasattr(gradwire, name) for name in gradwire.__all__)
    assert "all_reduce" in gradwire.__all__


def test_without_torch_distributed_the_error_says_what_to_call() -> None:
    with pytest.raises(ExchangeError, match=r"call torch\.distributed\.init_process_group first"):
        gradwire.all_reduce(torch.ones(3))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"codec": "fp17"}, "unknown codec 'fp17'"),
        ({"codec": 17}, "codec: expected a codec, its spec or None, got 17"),
        ({"algorithm": "gossip"}, "unknown algorithm 'gossip'"),
        ({"segment_nbytes": 5}, "for segment_nbytes, got 5"),
        ({"plan": 17}, "expected a Plan, a codec, its spec or the path of a plan's file for plan, got 17"),
        ({"plan": "no/plan.json"}, r"the plan no/plan\.json cannot be read: No such file or directory"),
        (
            {"plan": gradwire.Plan(), "codec": "fp16", "segment_nbytes": 1 << 22},
            "expected a plan or separate settings, got a plan and codec and segment_nbytes; omit the plan",
        ),
        (
            {"plan": "no/plan.json", "algorithm": "ring"},
            "got a plan and algorithm; omit the plan or algorithm",
        ),
        ({"timeout_s": 0}, "expected timeout_s above 0 and at most 1e\\+06 seconds, got 0"),
        ({"timeout_s": float("inf")}, "got inf"),
        ({"timeout_s": float("nan")}, "got nan"),
    ],
)
def test_settings_that_do_not_exist_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        gradwire.all_reduce(torch.ones(3), **arguments)


def many_calls() -> dict[str, torch.Tensor]:
    rank, world = dist.get_rank(), dist.get_world_size()
    x = share(rank, 30, 40)
    same = x.clone()
    results = {"returned": gradwire.all_reduce(same)}
    assert results["returned"] is same
    results["sum"] = gradwire.all_reduce(x.clone(), "identity", average=False)
    results["star"] = gradwire.all_reduce(x.clone(), gradwire.parse("bf16"), algorithm="star")
    results["scalar"] = gradwire.all_reduce(torch.tensor(float(rank)), "identity", average=False)
    results["empty"] = gradwire.all_reduce(torch.empty(0, 5))
    parameter = torch.nn.Parameter(x.clone())
    loss = parameter.square().sum()
    results["parameter"] = gradwire.all_reduce(parameter).detach()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(loss)
    torch_sum = x.clone()
    dist.all_reduce(torch_sum)
    results["torch"] = torch_sum
    results["again"] = gradwire.all_reduce(x.clone(), "identity", average=False)
    assert len(api._members) == 1
    assert world == len(dist.get_process_group_ranks(dist.group.WORLD))
    return results


@pytest.mark.processes
@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_shape_is_reduced_in_place_within_the_bound(run_processes: RunProcesses, world: int) -> None:
    shares = torch.stack([share(rank, 30, 40) for rank in range(world)])
    exact = shares.double().sum(0)
    largest = gradwire.parse(codecs.DEFAULT_CODEC).bound(shares.abs().sum(0).flatten())  # of any partial sum
    every = run_processes(world, many_calls)
    for results in every:
        for name, tensor in results.items():
            assert name == "torch" or torch.equal(tensor, every[0][name])
        assert (results["returned"].double() - exact / world).abs().max() <= largest + 1e-8
        assert (results["star"].double() - exact / world).abs().max() <= 2**-8 * 0.1
        assert torch.allclose(results["sum"], results["torch"], atol=1e-8, rtol=1e-6)
        assert torch.equal(results["again"], results["sum"])
        assert results["scalar"].item() == world * (world - 1) / 2
        assert results["scalar"].shape == ()
        assert results["empty"].shape == (0, 5)


def with_a_plan(path: str) -> list[torch.Tensor]:
    x = share(dist.get_rank(), 50_000)
    plan = gradwire.Plan.load(path)
    return [
        gradwire.all_reduce(x.clone(), plan=path),
        gradwire.all_reduce(x.clone(), plan=plan),
        gradwire.all_reduce(x.clone(), plan.codec, algorithm="star", segment_nbytes=plan.segment_nbytes),
        gradwire.all_reduce(x.clone(), "quantize:4", algorithm="ring", segment_nbytes=plan.segment_nbytes),
    ]


@pytest.mark.processes
def test_a_plan_stands_for_its_parts(run_processes: RunProcesses, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    gradwire.Plan(gradwire.parse("quantize:4"), "star", 16384, pipeline=2, bucket_nbytes=4096).save(path)
    for from_file, from_plan, from_parts, ring in run_processes(2, with_a_plan, str(path)):
        assert torch.equal(from_file, from_plan)
        assert torch.equal(from_file, from_parts)
        assert not torch.equal(from_file, ring), "the algorithms round differently"


def in_subgroups() -> list[float]:
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    sums = []
    for members, group in zip(((0, 1), (1, 2)), pairs, strict=True):
        assert isinstance(group, dist.ProcessGroup) or rank not in members
        tensor = torch.full((5,), float(10**rank))
        if rank in members:
            gradwire.all_reduce(tensor, "identity", group=group, average=False)
        else:
            with pytest.raises(ExchangeError, match=f"rank {rank} is not in the group"):
                gradwire.all_reduce(tensor, group=group)
        sums.append(tensor[0].item())
    return sums


@pytest.mark.processes
def test_subgroups_reduce_among_themselves_and_others_are_refused(run_processes: RunProcesses) -> None:
    assert run_processes(3, in_subgroups) == [[11.0, 1.0], [11.0, 110.0], [100.0, 110.0]]


def disagree_then_agree() -> tuple[str, float]:
    rank = dist.get_rank()
    with pytest.raises(ExchangeError) as caught:
        gradwire.all_reduce(torch.ones(1000), "errbound:2^-9" if rank else "errbound:2^-10", timeout_s=5.0)
    dist.barrier()
    return str(caught.value), gradwire.all_reduce(torch.full((10,), float(rank)), "identity").sum().item()


@pytest.mark.processes
def test_ranks_that_disagree_all_learn_it_and_can_start_afresh(run_processes: RunProcesses) -> None:
    messages, sums = zip(*run_processes(2, disagree_then_agree), strict=True)
    assert any("the parameters of the codec errbound differ" in message for message in messages)
    assert sums == (5.0, 5.0)


def alone() -> tuple[str, float]:
    gradwire.all_reduce(torch.ones(10), timeout_s=1.0)
    if dist.get_rank() == 1:
        dist.barrier()
        return "", 0.0
    started = time.monotonic()
    with pytest.raises(ExchangeError) as caught:
        gradwire.all_reduce(torch.ones(10), timeout_s=1.0)
    seconds = time.monotonic() - started
    with pytest.raises(ExchangeError, match=r"connecting with the 2 ranks .* call all_reduce on all"):
        gradwire.all_reduce(torch.ones(10), timeout_s=0.5)
    dist.barrier()
    return str(caught.value), seconds


@pytest.mark.processes
def test_a_rank_that_does_not_call_is_a_timeout(run_processes: RunProcesses) -> None:
    message, seconds = run_processes(2, alone)[0]
    assert "rank 0 receiving from rank 1: no progress within 1 s" in message
    assert seconds < 10


def forget_a_group() -> int:
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    gradwire.all_reduce(torch.ones(3), group=group)
    assert len(api._members) == 1
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return len(api._members)


@pytest.mark.processes
def test_what_was_made_for_a_group_goes_with_it(run_processes: RunProcesses) -> None:
    assert run_processes(2, forget_a_group) == [0, 0]


def averaged() -> float:
    tensor = torch.full((5000,), float(dist.get_rank()), device="cpu")
    return gradwire.all_reduce(tensor, "identity")[0].item()


def in_every_mode() -> list[float]:
    results = []
    with torch.inference_mode():
        results.append(averaged())
    results.append(averaged())
    with torch.device("meta"):
        results += [averaged(), gradwire.all_reduce(torch.zeros(10, device="cpu"), "bf16")[0].item()]
    return results


@pytest.mark.processes
def test_a_call_leaves_nothing_behind_that_disturbs_the_next(run_processes: RunProcesses) -> None:
    assert run_processes(2, in_every_mode) == [[0.5, 0.5, 0.5, 0.0]] * 2


def from_two_threads() -> tuple[list[str], float]:
    averaged()
    dist.barrier()
    refused: list[str] = []

    def call() -> None:
        try:
            averaged()
        except ExchangeError as error:
            refused.append(str(error))

    if dist.get_rank() == 1:
        time.sleep(1.0)
        return [], averaged()
    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused, 0.5


@pytest.mark.processes
def test_a_second_thread_is_refused_and_the_first_goes_on(run_processes: RunProcesses) -> None:
    (refused, _), (_, result) = run_processes(2, from_two_threads)
    assert len(refused) == 1
    assert "rank 0: another thread is in all_reduce with this group" in refused[0]
    assert result == 0.5


def with_many_codecs() -> tuple[float, int]:
    for _ in range(2):
        for bits in range(1, 21):
            last = gradwire.all_reduce(torch.ones(100), f"truncate:{bits}")
    (members,) = api._members.values()
    return last[0].item(), members[0].exchange.cache_info().currsize


def with_nics_and_without() -> tuple[list[float], list[int]]:
    plans: list[str | gradwire.Plan] = ["identity", gradwire.Plan(offload="truncate:16"), "identity"]
    averages = []
    for plan in plans:
        tensor = torch.full((1000,), 1.0 + 2**-10 + dist.get_rank())
        averages.append(gradwire.all_reduce(tensor, plan=plan)[-1].item())
    (members,) = api._members.values()
    return averages, sorted(members)


@pytest.mark.processes
def test_plans_with_and_without_offload_have_links_of_their_own(run_processes: RunProcesses) -> None:
    assert run_processes(2, with_nics_and_without) == [([1.5 + 2**-10, 1.5, 1.5 + 2**-10], [0, 0x28])] * 2


@pytest.mark.processes
def test_exchanges_of_codecs_used_long_ago_are_forgotten(run_processes: RunProcesses) -> None:
    assert run_processes(2, with_many_codecs) == [(1.0, 8)] * 2
