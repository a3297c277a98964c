from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

from gradwire.codecs import parse
from gradwire.plan import Plan
from support.sharded import Case, Seen, expected_gradients, largest_difference, train_all

RunProcesses = Callable[..., list[Any]]
pytestmark = pytest.mark.processes
SLOP = 1e-6  # of float32 sums of a few numbers below 4
BOUND = 2**-10


def check_equal_ranks(every: list[Seen]) -> None:
    """What the forward passes computed with is the same, bit for bit, on all ranks."""
    for seen in every[1:]:
        for mine, first in zip(seen.forward, every[0].forward, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True))


def matrices(weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [weight for weight in weights if weight.dim() == 2]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_exact_codecs_train_as_fsdp_alone_and_lossy_ones_within_their_bounds(
    run_processes: RunProcesses, world: int
) -> None:
    cases = {
        "plain": Case(steps=5),
        "exact": Case(("identity", "identity"), steps=5),
        "own gather": Case(("identity", None), steps=1),
        "bounded": Case((parse("errbound:2^-10"),), steps=2),
        "bf16": Case(("identity", "bf16"), steps=3),
        "packed": Case((Plan(segment_nbytes=16384), parse("bitpack:2")), steps=1),
    }
    if world == 4:  # gathered among 2 in backward
        cases["pairs"] = Case(("identity", "bf16"), steps=3, reshard_after_forward=2)
    results = run_processes(world, train_all, cases)
    every = {name: [ranks[name] for ranks in results] for name in cases}
    for seen in every.values():
        check_equal_ranks(seen)
    first = {name: seen[0] for name, seen in every.items()}
    plain, oracle = first["plain"], expected_gradients(world, 0)
    assert largest_difference(plain.gradients[0], oracle) < SLOP, "the oracle itself"

    for name in ("exact", "own gather"):
        assert largest_difference(first[name].gradients[0], oracle) < SLOP
    assert largest_difference(first["exact"].weights[-1], plain.weights[-1]) < 5 * SLOP
    assert all(torch.equal(a, b) for a, b in zip(first["exact"].forward[0], plain.forward[0], strict=True))

    # The partial sums of a shard are encoded world - 1 times; then the sum is divided.
    error = largest_difference(first["bounded"].gradients[0], oracle)
    assert 10 * SLOP < error <= BOUND * (world - 1) / world + SLOP

    for step, used in enumerate(first["bf16"].forward):
        kept = matrices(first["bf16"].weights[step])
        assert all(torch.equal(a, b.bfloat16().float()) for a, b in zip(used, kept, strict=True))
        assert not any(torch.equal(a, b) for a, b in zip(used, kept, strict=True)), "the shards stay exact"
    if world == 4:
        for step in range(3):
            pairs, bf16 = first["pairs"].gradients[step], first["bf16"].gradients[step]
            assert largest_difference(pairs, bf16) < SLOP
    used, kept = first["packed"].forward[0], matrices(first["packed"].weights[0])
    cleared = [(weight.view(torch.int32) & -65536).view(torch.float32) for weight in kept]
    assert all(torch.equal(a, b) for a, b in zip(used, cleared, strict=True))


def test_the_ledger_counts_every_module_and_steps_by_backward_passes(run_processes: RunProcesses) -> None:
    cases = {
        "plan": Case((Plan(parse("errbound:2^-10")), "bf16"), steps=2),
        "gather left alone": Case(("fp16", None), steps=1),
        "two backward passes": Case(("fp16", None), steps=1, micro_batches=2),
    }
    for ranks in run_processes(2, train_all, cases):
        summary = ranks["plan"].summary
        assert summary.steps == 2
        assert not summary.bypasses
        kinds = ("gradients", "weights")
        assert set(summary.buckets) == {f"{name}.{kind}" for name in ("0", "2", "root") for kind in kinds}
        assert all(summary.buckets[f"{name}.gradients"].exchanges == 2 for name in ("0", "2", "root"))
        first = summary.buckets[
            "0.gradients"
        ]  # 7 x 13 weights and 13 biases, padded to an even number of rows
        assert first.gradient_nbytes == 2 * 4 * (14 * 7 + 14)
        assert first.exposed_s > 0
        weights = summary.buckets["0.weights"]
        assert weights.gradient_nbytes == 0
        halved = weights.cost.raw_nbytes / 2  # and a header for every frame
        assert halved < weights.cost.wire_nbytes < halved + 100 * weights.exchanges
        assert set(ranks["gather left alone"].summary.buckets) == {
            "0.gradients", "2.gradients", "root.gradients"
        }  # fmt: skip
        assert ranks["two backward passes"].summary.steps == 2


def test_replicas_of_shards_are_all_reduced_through_the_codec(run_processes: RunProcesses) -> None:
    mesh = (2, 2)
    cases = {
        "plain": Case(mesh=mesh),
        "exact": Case(("identity",), mesh=mesh),
        "tree": Case((Plan(algorithm="tree"),), mesh=mesh),
        "accumulated": Case(("identity",), mesh=mesh, micro_batches=2, steps=1),
        "bounded": Case(("errbound:2^-10", "bf16"), mesh=mesh),
    }
    results = run_processes(4, train_all, cases)
    every = {name: [ranks[name] for ranks in results] for name in cases}
    for seen in every.values():
        check_equal_ranks(seen)
        for one, replica in ((0, 2), (1, 3)):
            assert all(
                torch.equal(*pair) for pair in zip(seen[one].shards, seen[replica].shards, strict=True)
            )
    oracle = expected_gradients(4, 0)
    for name in ("plain", "exact", "tree"):
        assert largest_difference(every[name][0].gradients[0], oracle) < SLOP
        difference = largest_difference(every[name][0].weights[-1], every["plain"][0].weights[-1])
        assert difference < 5 * SLOP
    accumulated = every["accumulated"][0].gradients[0]
    assert largest_difference(accumulated, expected_gradients(4, 0, micro_batches=2)) < 2 * SLOP
    summary = every["bounded"][0].summary
    assert summary is not None
    assert {name.rpartition(".")[2] for name in summary.buckets} == {"gradients", "weights", "replicas"}
    assert not summary.bypasses


def test_replicas_stay_within_the_bound(run_processes: RunProcesses) -> None:
    cases = {"bounded": Case(("errbound:2^-10",), mesh=(2, 2), steps=1)}
    gradients = run_processes(4, train_all, cases)[0]["bounded"].gradients[0]
    # One encoding before the shards are averaged over 2, and two before the replicas are.
    error = largest_difference(gradients, expected_gradients(4, 0))
    assert 10 * SLOP < error <= (BOUND / 2 * 2 + 2 * BOUND) / 2 + SLOP


def halve(model: FSDPModule) -> None:
    for module in model.modules():  # type: ignore[attr-defined]
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(0.5)


def only_sums(model: FSDPModule) -> None:
    for module in model.modules():  # type: ignore[attr-defined]
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(enable=True)


def test_other_precisions_and_divisors_give_what_fsdp_gives(run_processes: RunProcesses) -> None:
    bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    wide = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    half = MixedPrecisionPolicy(param_dtype=torch.float16)
    cases = {
        "divided": Case(("identity",), steps=1, prepare=halve),
        "summed": Case(("identity",), steps=1, prepare=only_sums),
    }
    for name, policy in {"bf16": bf16, "wide": wide, "half": half}.items():
        cases[name] = Case(("identity",), steps=1, policy=policy)
        cases[f"plain {name}"] = Case(None, steps=1, policy=policy)
    cases["float64"] = Case(("errbound:2^-10", "bf16"), dtype=torch.float64)
    cases["plain float64"] = Case(None, dtype=torch.float64)
    first, second = run_processes(2, train_all, cases)
    check_equal_ranks([first["bf16"], second["bf16"]])
    oracle = expected_gradients(2, 0)
    assert largest_difference(first["summed"].gradients[0], oracle) < SLOP
    # The mean over 2 ranks times 2 is their sum; divided by 0.5 it is twice that.
    assert largest_difference(first["divided"].gradients[0], [4 * each for each in oracle]) < 4 * SLOP
    for name, ulp in (("bf16", 2**-8), ("wide", 1e-6), ("half", 2**-11)):
        mine, plain = first[name], first[f"plain {name}"]
        assert all(a.dtype == b.dtype for a, b in zip(mine.forward[0], plain.forward[0], strict=True))
        assert all(torch.equal(a, b) for a, b in zip(mine.forward[0], plain.forward[0], strict=True))
        assert largest_difference(mine.gradients[0], plain.gradients[0]) <= 2 * ulp
        counts = mine.summary.buckets["0.weights"]
        assert counts.cost.wire_nbytes < 0.5 * counts.cost.raw_nbytes + 100 * counts.exchanges
    assert all(
        torch.equal(*pair)
        for pair in zip(first["float64"].weights[-1], first["plain float64"].weights[-1], strict=True)
    )
    (reason, bypass), *others = first["float64"].summary.bypasses.items()
    assert (reason, others) == ("torch.float64 is none of float32, bfloat16 and float16", [])
    assert bypass.count >= 3 * (3 + 3)
    assert not first["float64"].summary.buckets


def test_training_through_lossy_codecs_learns(run_processes: RunProcesses) -> None:
    case = Case(("errbound:2^-10", "bf16"), steps=30)
    losses = run_processes(2, train_all, {"lossy": case})[0]["lossy"].losses
    means = [sum(losses[i : i + 10]) / 10 for i in (0, 10, 20)]
    assert all(later < earlier for earlier, later in pairwise(means))
