"""Parameters that are frozen on the way or not reached: as DDP does with ``find_unused_parameters``."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire import DSync, PipeSGD
from gradwire.codecs import TABLE, parse
from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.links import ProcessGroupLink
from gradwire.plan import Plan
from gradwire.sync.checkpoint import pack, unpack
from support.branches import (
    OPTIMIZERS,
    STEPS,
    Branches,
    assert_close,
    branch_loss,
    everything,
    new_branches,
    squares,
    used_by_hand,
)
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]


def beside_ddp(kind: str, bucket_nbytes: int | None, pipeline: int) -> list[bool]:
    """Train with DDP and with gradwire, and tell for every step whether weights and states are equal."""
    rank, torch_threads = dist.get_rank(), torch.get_num_threads()
    torch.set_num_threads(1)
    theirs, ours = new_branches(), new_branches()
    ddp = DistributedDataParallel(theirs, find_unused_parameters=True)
    their_optimizer, our_optimizer = (OPTIMIZERS[kind](each.parameters()) for each in (theirs, ours))
    group = dist.group.WORLD
    assert group is not None
    link = ProcessGroupLink(group, timeout_s=20)
    exchange = Exchange(link, Plan(bucket_nbytes=bucket_nbytes))
    method = (
        DSync(ours, our_optimizer, exchange.plan, group=exchange.link)
        if pipeline == 0
        else pipe_sgd(ours, our_optimizer, exchange, pipeline)
    )
    equal = []
    with method:
        for step in range(STEPS):
            their_optimizer.zero_grad()
            torch.autograd.backward(branch_loss(ddp, theirs, step, rank))
            their_optimizer.step()
            method.step(partial(branch_loss, ours, ours, step, rank))
            method.drain()
            found, wanted = everything(ours, our_optimizer), everything(theirs, their_optimizer)
            equal.append(
                len(found) == len(wanted)
                and all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
            )
    link.close()
    torch.set_num_threads(torch_threads)
    return equal


@pytest.mark.processes
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("bucket_nbytes", "pipeline"), [(None, 0), (60, 0), (None, 1)])
def test_every_step_is_that_of_ddp(
    kind: str, bucket_nbytes: int | None, pipeline: int, run_processes: Callable[..., list[Any]]
) -> None:
    for equal in run_processes(2, beside_ddp, kind, bucket_nbytes, pipeline):
        assert equal == [True] * STEPS


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("bucket_nbytes", [None, 60])
def test_a_pipeline_keeps_what_was_reached_with_each_gradient(
    kind: str, bucket_nbytes: int | None, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        model, rank = new_branches(), exchange.link.rank
        optimizer = OPTIMIZERS[kind](model.parameters())
        with pipe_sgd(model, optimizer, exchange, 2, correction="none") as method:
            for step in range(STEPS):
                method.step(partial(branch_loss, model, model, step, rank))
        return everything(model, optimizer)

    found = run_exchanges(3, body, Plan(bucket_nbytes=bucket_nbytes))
    for each in found:
        assert_close(each, used_by_hand(kind, 2, 3))
        assert all(torch.equal(own, first) for own, first in zip(each, found[0], strict=True))


def test_eager_updates_leave_alone_what_they_have_not_reached(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[list[float], torch.Tensor]:
        model, rank = new_branches(), exchange.link.rank
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        method = pipe_sgd(model, optimizer, exchange, 2)
        ahead: list[float] = []

        def compute(step: int) -> torch.Tensor:
            virtual = model.right.weight.detach().clone()
            ahead.append(float((virtual - masters).abs().max()))
            x = torch.full((2, 4), 1.0 + step + rank)
            return squares(model, x, 1.0 if step < 3 else None)

        with method:
            for step in range(7):
                masters = model.right.weight.detach().clone()
                method._under_way.apply_all_but(1)  # as step does, so that the masters are those of the step
                masters = model.right.weight.detach().clone()
                method.step(partial(compute, step))
        return ahead, model.right.weight.detach().clone()

    found = run_exchanges(2, body)
    for ahead, weights in found:
        assert [moved > 0 for moved in ahead] == [False, True, True, True, False, False, False]
        assert torch.equal(weights, found[0][1])


@pytest.mark.parametrize("spec", [row.name for row in TABLE])
def test_every_codec_decodes_zeros_to_zeros(spec: str) -> None:
    """By which all ranks see alike that nobody may have reached a parameter."""
    wanted = {"errbound": "errbound:2^-10", "inceptionn": "inceptionn:2^-10", "truncate": "truncate:16"}
    more = {
        "quantize": "quantize:4",
        "bfp": "bfp:7x16",
        "bitpack": "bitpack:2",
        "topk": "topk:0.9",
        "ecsq": "ecsq:1",
    }
    codec = parse({**wanted, **more}.get(spec, spec))
    generator = torch.Generator().manual_seed(1)
    for scale in (1e-30, 1e-6, 1.0, 1e6):
        for sign in (0.0, 1.0):
            x = torch.randn(4000, generator=generator) * scale
            x = x.abs() + sign * x
            x[5:700], x[1000], x[2011:2050] = 0, 0, 0
            decoded = torch.empty_like(x)
            codec.decode(codec.encode(x), decoded)
            assert not decoded[x == 0].any()


@pytest.mark.parametrize("buckets", [None, 60])
def test_a_residual_waits_for_a_step_that_reaches_its_parameter(
    buckets: int | None, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> tuple[list[bool], torch.Tensor]:
        model, rank = new_branches(), exchange.link.rank
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        moved = []
        with DSync(model, optimizer, exchange.plan, group=exchange.link) as method:
            for step in range(6):
                before = model.right.weight.detach().clone()
                x = torch.full((2, 4), 1.0 + step + rank)
                right = 1.0 if step in (0, 1, 5) else None
                method.step(partial(squares, model, x, right))
                moved.append(not torch.equal(before, model.right.weight))
        return moved, model.right.weight.detach().clone()

    found = run_exchanges(2, body, Plan(parse("topk:0.1"), residual=True, bucket_nbytes=buckets))
    for moved, weights in found:
        assert moved == [True, True, False, False, False, True]
        assert torch.equal(weights, found[0][1])


def _resumable(exchange: Exchange, model: nn.Module, correction: str) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    plan = Plan(pipeline=3)
    return optimizer, gradwire.PipeSGD(model, optimizer, plan, correction=correction, group=exchange.link)


@pytest.mark.parametrize("correction", ["none", "eager"])
def test_what_was_not_reached_is_kept_in_a_checkpoint(correction: str, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        model, rank = new_branches(), exchange.link.rank
        optimizer, pipe = _resumable(exchange, model, correction)

        def train(model: Branches, pipe: Any, steps: range) -> None:
            for step in steps:
                pipe.step(partial(branch_loss, model, model, step, rank))

        train(model, pipe, range(6))
        saved = copy.deepcopy((pipe.state_dict(), model.state_dict(), optimizer.state_dict()))
        train(model, pipe, range(6, 9))
        pipe.drain()
        straight = everything(model, optimizer)
        pipe.close()
        again = new_branches()
        optimizer, pipe = _resumable(exchange, again, correction)
        pipe.load_state_dict(saved[0])
        again.load_state_dict(saved[1])
        optimizer.load_state_dict(saved[2])
        train(again, pipe, range(6, 9))
        pipe.drain()
        pipe.close()
        return straight, everything(again, optimizer)

    for straight, resumed in run_exchanges(2, body):
        assert all(torch.equal(a, b) for a, b in zip(straight, resumed, strict=True))


def test_a_checkpoint_of_other_parameters_is_refused(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = new_branches()
        _, pipe = _resumable(exchange, model, "none")
        pipe.step(lambda: model(torch.ones(2, 4), 1.0, None).square().mean())
        own = unpack(pipe.state_dict(), 0, 1)
        assert own.in_flight[0].absent == own.in_flight[0].own_absent == (4, 5)
        for numbers, said in (
            ((4, 9), "expected gradients in flight for 6 parameters, got"),
            ((-1,), r"at least 0 for absent\[0\]\[0\]"),
        ):
            in_flight = [replace(own.in_flight[0], absent=numbers)]
            state = pack(replace(own, in_flight=in_flight))
            with pytest.raises(StateError, match=said):
                pipe.load_state_dict(state)
        pipe.close()

    run_exchanges(1, body)


@pytest.mark.parametrize("kind", ["d-sync", "pipe"])
def test_scripts_with_another_default_dtype_train_alike(kind: str, run_exchanges: Ranks) -> None:
    """The numbers that ranks tell each other have a dtype of their own."""

    def body(exchange: Exchange) -> list[torch.Tensor]:
        model = nn.ModuleList([nn.Linear(3, 1), nn.Linear(3, 1)]).float()
        for each in model.parameters():
            nn.init.ones_(each)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
        pipe = kind == "pipe"
        method = (
            pipe_sgd(model, optimizer, exchange)
            if pipe
            else DSync(model, optimizer, exchange.plan, group=exchange.link)
        )
        with method:
            for _ in range(3):
                method.step(lambda: model[0](torch.ones(2, 3, dtype=torch.float32)).mean())
            if isinstance(method, PipeSGD):
                assert unpack(method.state_dict(), exchange.link.rank, 2).in_flight
        return [each.detach() for each in model.parameters()]

    usual = run_exchanges(2, body)
    torch.set_default_dtype(torch.float64)
    try:
        found = run_exchanges(2, body)
    finally:
        torch.set_default_dtype(torch.float32)
    for some, others in zip(usual, found, strict=True):
        assert all(map(torch.equal, some, others))
