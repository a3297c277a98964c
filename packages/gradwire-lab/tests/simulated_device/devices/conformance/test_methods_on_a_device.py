"""Methods train on the simulated device to the CPU's weights, bit for bit, and need each of their waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.codecs import parse
from gradwire.errors import GradwireError
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from gradwire_lab.simulated_device.simulated import Simulated
from support.device_methods import STEPS, Body, begin, d_sync, pipe_sgd, resumed, same, sgd, steps, trained

RunRanks = Callable[..., list[Any]]
BUCKETED, LOSSY = Plan(bucket_nbytes=80), Plan(parse("quantize:4"), residual=True)
LOSSY_PIPE = Plan(parse("quantize:4"), pipeline=2, residual=True)
STAR = Plan(parse("quantize:4"), "star", residual=True)


def server(link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    if link.rank == 0:
        method = Server(model, sgd(model), STAR, "bf16", group=link)
        begin(method)
        method.serve(STEPS)
    else:
        steps(Worker(model, STAR, "bf16", group=link), loss)


def stale(staleness: int, link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
    if link.rank == 0:
        method = StaleServer(model, sgd(model), STAR, staleness, "bf16", group=link)
        begin(method)
        method.serve(STEPS)
    else:
        steps(StaleWorker(model, STAR, staleness, "bf16", group=link), loss)


METHODS: dict[str, tuple[int, Body]] = {
    "DSync, one bucket": (2, partial(d_sync, LOSSY)),
    "DSync, buckets": (2, partial(d_sync, BUCKETED)),
    "PipeSGD, eager": (2, partial(pipe_sgd, Plan(pipeline=2), "eager")),
    "PipeSGD, eager, buckets": (3, partial(pipe_sgd, Plan(pipeline=3, bucket_nbytes=80), "eager")),
    "PipeSGD, stale": (2, partial(pipe_sgd, LOSSY_PIPE, "none")),
    "PipeSGD, resumed": (2, partial(resumed, Plan(pipeline=3))),
    "Server": (3, server),
    "StaleServer, in rounds": (3, partial(stale, 0)),
    "StaleServer, at once": (2, partial(stale, 2)),  # one worker: the order of updates is one
}
NEEDLESS: dict[str, Callable[[str, int], bool]] = {
    "DSync, one bucket": lambda _kind, _number: False,
    # In the first step, which counts gradients, backward has ended when the first bucket starts.
    "DSync, buckets": lambda kind, number: kind == "follow" and number in {1, 2},
    "PipeSGD, eager": lambda _kind, _number: False,
    # Before a worker's weights are written the host has waited for its gradient, which is computed last.
    "Server": lambda kind, number: kind == "follow" and number % 2 == 1,
}
"""Which waits of the last rank another one makes needless; ``test_seams`` shows that these have a purpose."""


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_to_the_weights_of_the_cpu(name: str, run_ranks: RunRanks) -> None:
    world, body = METHODS[name]
    expected = run_ranks(world, trained, body, [None] * world, True)
    assert same(run_ranks(world, trained, body, [Simulated() for _ in range(world)], True), expected)


@pytest.mark.parametrize("name", NEEDLESS)
def test_without_any_one_of_its_waits_it_does_not(name: str, run_ranks: RunRanks) -> None:
    world, body = METHODS[name]
    devices = [Simulated() for _ in range(world)]
    expected = run_ranks(world, trained, body, devices, False)
    last, without = devices[-1].waits, set[tuple[str, int]]()
    for mutation in _every(last):
        mutants = [*devices[:-1], Simulated(without=mutation)]
        try:
            if same(run_ranks(world, trained, body, mutants, False, timeout_s=1.0), expected):
                without.add(mutation)
        except (GradwireError, RuntimeError):
            pass
    assert set(last) == {"follow", "wait", "order"}
    assert without == {each for each in _every(last) if NEEDLESS[name](*each)}


def _every(waits: Mapping[str, int]) -> set[tuple[str, int]]:
    return {(kind, number) for kind, count in waits.items() for number in range(count)}


def test_the_default_device_does_not_matter(run_ranks: RunRanks) -> None:
    def within_another(link: Link, model: nn.Module, loss: Callable[[int], torch.Tensor]) -> None:
        with torch.device("meta"):
            pipe_sgd(Plan(pipeline=2, bucket_nbytes=80), "eager", link, model, loss)

    expected = run_ranks(2, trained, METHODS["PipeSGD, eager"][1], [None] * 2, False)
    assert same(run_ranks(2, trained, within_another, [Simulated(), Simulated()], False), expected)
