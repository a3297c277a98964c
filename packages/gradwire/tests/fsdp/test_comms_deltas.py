"""Weights that FSDP gathers as what changed: forward computes with the bits of the plain all-gather."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import gradwire
from gradwire.errors import AttachError
from gradwire.sync.replicas.deltas import LARGER
from support.sharded import Case, Seen, make_model, shard, train_all

RunProcesses = Callable[..., list[Any]]
pytestmark = pytest.mark.processes
HALVES = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
KINDS = {"floats": MixedPrecisionPolicy(), "halves": HALVES}


def whole(attach: tuple[Any, ...] | None, **how: Any) -> Case:
    return Case(attach, reshard_after_forward=False, steps=4, **how)


def check_same(one: Seen, other: Seen) -> None:
    for mine, theirs in zip([*one.forward, *one.weights], [*other.forward, *other.weights], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert one.losses == other.losses


@pytest.mark.parametrize("world", [2, 3, 4])
def test_exact_deltas_train_as_the_plain_all_gather_bit_for_bit(
    run_processes: RunProcesses, world: int
) -> None:
    cases = {
        f"{kind}, {weights}": whole(("identity", weights), policy=policy)
        for kind, policy in KINDS.items()
        for weights in (None, "delta:fp32")
    }
    if world == 4:  # replicas of shards
        cases |= {
            f"mesh, {weights}": whole(("identity", weights), mesh=(2, 2)) for weights in (None, "delta:fp32")
        }
    for seen in run_processes(world, train_all, cases):
        for kind in (*KINDS, *(["mesh"] if world == 4 else [])):
            plain, found = seen[f"{kind}, None"], seen[f"{kind}, delta:fp32"]
            check_same(plain, found)
            buckets = found.summary.buckets
            assert {"0.weights", "2.weights", "root.weights"} <= set(buckets)
            assert buckets["0.weights"].exchanges == 4, "once a step"


def test_rounded_deltas_are_the_weights_rounded_to_bfloat16(run_processes: RunProcesses) -> None:
    cases = {weights: whole(("identity", weights)) for weights in ("bf16", "delta:bf16")}
    for seen in run_processes(2, train_all, cases):
        check_same(seen["bf16"], seen["delta:bf16"])
        used, kept = seen["delta:bf16"].forward[1], seen["delta:bf16"].weights[1]
        matrices = [each for each in kept if each.dim() == 2]
        assert all(torch.equal(a, b.bfloat16().float()) for a, b in zip(used, matrices, strict=True))


def few_bytes() -> tuple[int, int, int]:
    """Return the bytes of a gather that is a full copy, of one after a small step, and of one after none."""
    torch.manual_seed(3)
    model = nn.Linear(256, 256)
    fully_shard(model, reshard_after_forward=False)
    optimizer, nbytes = torch.optim.Adam(model.parameters(), lr=1e-5), [0]
    with gradwire.attach_fsdp(model, "identity", "delta:bf16", timeout_s=20.0) as attached:
        for step in range(3):
            model(torch.randn(4, 256)).square().mean().backward()
            if step == 0:
                optimizer.step()
            optimizer.zero_grad()
            nbytes.append(int(attached.ledger.summary().buckets["root.weights"].cost.wire_nbytes))
        assert LARGER not in attached.ledger.summary().bypasses
    first, second, third = (b - a for a, b in pairwise(nbytes))
    return first, second, third


def test_small_steps_take_few_bytes(run_processes: RunProcesses) -> None:
    share = 256 * 257 // 2
    for full, changed, nothing in run_processes(2, few_bytes):
        assert full < 2 * share
        assert changed < full / 5
        assert nothing < 200


def refused() -> str:
    model = make_model()
    shard(model, Case(reshard_after_forward=True))
    with pytest.raises(AttachError) as caught:
        gradwire.attach_fsdp(model, "identity", "delta:fp32", timeout_s=20.0)
    gradwire.attach_fsdp(model, "identity", timeout_s=20.0).close()  # nothing has changed
    return str(caught.value)


def test_modules_that_free_their_weights_are_refused_in_a_sentence(run_processes: RunProcesses) -> None:
    for message in run_processes(2, refused):
        assert message == (
            "weights='delta:fp32': expected modules that keep their weights after forward, got 'root', "
            "which frees them; call fully_shard with reshard_after_forward=False, or use weights='identity'"
        )
