"""What encodes on the simulated device gives the CPU's bits, and needs each of its waits.

Triton interprets the kernels. In the second of the steps it is measured what encoding loses.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import gradwire
from gradwire.codecs import parse
from gradwire.errors import GradwireError
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated
from support.device_methods import Body, d_sync, resumed, same, trained
from support.fake_buckets import FakeBucket, reducer_over
from support.ranks import run_ranks

HALVES = partial(Plan, parse("bf16"), encode_on="device")
KEPT = partial(Plan, parse("quantize:4,block=64"), encode_on="device")
WORLD = 2


def reduced(
    plan: Plan, dtype: torch.dtype, link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]
) -> None:
    """Train the last two parameters as DDP does: a bucket for each, in the order of their numbers."""
    names: dict[torch.Tensor, str] = {each: name for name, each in model.named_parameters()}
    averaging, sync = reducer_over(Exchange(link, plan), names)
    for t in range(2):
        model.zero_grad()
        loss(t).backward()  # type: ignore[no-untyped-call]
        owners = [each for each in model.parameters() if each.grad is not None][-2:]
        futures = []
        for index, each in enumerate(owners):
            assert each.grad is not None
            bucket = FakeBucket(index, each.grad.flatten().to(dtype), each is owners[-1], [each])
            futures.append(averaging.take(bucket, last_waits=True))
        for each, future in zip(owners, futures, strict=True):
            each.data.sub_(future.wait().view_as(each).float(), alpha=0.1)
    sync.close()


BODIES: dict[str, Body] = {
    "DSync, one bucket": partial(d_sync, HALVES()),
    "DSync, buckets": partial(d_sync, HALVES(bucket_nbytes=80)),
    "PipeSGD, resumed": partial(resumed, HALVES(pipeline=3)),
    "DDP": partial(reduced, HALVES(), torch.float32),
    "DDP, halves": partial(reduced, HALVES(), torch.bfloat16),
    "DSync, residual": partial(d_sync, KEPT()),
    "PipeSGD, residual, resumed": partial(resumed, KEPT(pipeline=2)),
    "DDP, residual": partial(reduced, KEPT(), torch.float32),
    "DDP, halves, residual": partial(reduced, KEPT(), torch.float16),
}


def check_weights(name: str) -> None:
    """Compare what all ranks train to, on devices and without."""
    expected = run_ranks(WORLD, trained, BODIES[name], [None] * WORLD, True)
    devices = [Simulated() for _ in range(WORLD)]
    assert same(run_ranks(WORLD, trained, BODIES[name], devices, True), expected)


@pytest.mark.parametrize("name", BODIES)
def test_it_trains_to_the_weights_of_the_cpu(interpreted: Callable[..., Any], name: str) -> None:
    interpreted(check_weights, name)


def needless_waits(name: str) -> tuple[dict[str, int], set[tuple[str, int]]]:
    """Return how many waits the last rank has, and the needless of the first and last ones of each kind."""
    devices = [Simulated() for _ in range(WORLD)]
    expected = run_ranks(WORLD, trained, BODIES[name], devices, True)
    waits, needless = dict(devices[-1].waits), set[tuple[str, int]]()
    for mutation in {(kind, number) for kind, count in waits.items() for number in (0, count - 1)}:
        mutants = [*devices[:-1], Simulated(without=mutation)]
        try:
            if same(run_ranks(WORLD, trained, BODIES[name], mutants, True, timeout_s=1.0), expected):
                needless.add(mutation)
        except (GradwireError, RuntimeError, IndexError, OverflowError):
            pass
    return waits, needless


NEEDLESS = {
    "DSync, one bucket": "follow",  # to look at an unreached parameter: the exchange has waited for all of it
    "DDP, halves": "wait",  # of the exchange: the completion of the future includes it
}
"""Whose last wait of this kind another one makes needless; alone, the exchange's is needed."""


@pytest.mark.parametrize("name", NEEDLESS)
def test_without_one_of_its_waits_it_does_not(interpreted: Callable[..., Any], name: str) -> None:
    waits, needless = interpreted(needless_waits, name)
    assert set(waits) >= {"follow", "wait"}
    assert needless == {(NEEDLESS[name], waits[NEEDLESS[name]] - 1)}, waits


def check_all_reduce() -> None:
    """Average tensors of several dtypes and layouts."""
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            device, whole = Simulated(), torch.randn(6, 10).to(dtype)
            on_host, here = whole.clone(), whole.clone()
            gradwire.all_reduce(on_host.t()[1:], plan=HALVES())
            with Kernels(device):
                gradwire.all_reduce(device.own(here).mul_(1).t()[1:], plan=HALVES())
            device.synchronize()
            assert torch.equal(here, on_host)
        dist.destroy_process_group()


def test_all_reduce_takes_tensors_of_any_layout_there(interpreted: Callable[..., Any]) -> None:
    interpreted(check_all_reduce)
