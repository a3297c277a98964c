"""Frames with changes of weights that get lost or altered: errors, and the weights of whole steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import nn

from gradwire import Sharded
from gradwire.errors import ExchangeError
from gradwire.links import Fault, FaultyLink, Link
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.servers import flat, run_all
from support.sharded_ranks import adamw, loss_of, make_model

Kind = Literal["fail", "corrupt", "truncate", "drop", "duplicate"]
KINDS: tuple[Kind, ...] = ("fail", "corrupt", "truncate", "drop", "duplicate")
WORLD, STEPS, TIMEOUT_S = 3, 5, 0.6
History = list[list[torch.Tensor]]
Take = Callable[[], object]


def sharded(link: Link, model: nn.Sequential) -> list[Take]:
    method = Sharded(model, adamw(model), "quantize:8", group=link)
    return [partial(method.step, loss_of(model, t, link.rank)) for t in range(STEPS)]


def served(link: Link, model: nn.Sequential) -> list[Take]:
    plan = Plan(algorithm="star")
    if link.rank == 0:
        return [Server(model, adamw(model), plan, "delta:fp32", group=link).step] * STEPS
    worker = Worker(model, plan, "delta:fp32", group=link)
    return [partial(worker.step, loss_of(model, t, link.rank)) for t in range(STEPS)]


def served_late(link: Link, model: nn.Sequential) -> list[Take]:
    plan = Plan(algorithm="star")
    if link.rank == 0:
        return [partial(StaleServer(model, adamw(model), plan, 0, "delta:bf16", group=link).serve, STEPS)]
    worker = StaleWorker(model, plan, 0, "delta:bf16", group=link)
    return [*(partial(worker.step, loss_of(model, t, link.rank)) for t in range(STEPS)), worker.drain]


FRAMES = {"sharded": (14, 23, 31), "server": (6, 9, 12), "stale server": (6, 9, 12)}
"""Some that rank 0 sends in the middle of the training."""
METHODS = {"sharded": sharded, "server": served, "stale server": served_late}


def train(link: Link, method: str, histories: History) -> None:
    """Train until something fails; keep the weights after every whole step, and those that are left."""
    model = make_model()
    model.bfloat16().float()  # replicas hold no more bits, from the beginning on
    histories[link.rank] = [flat(model)]
    try:
        for take in METHODS[method](link, model):
            take()
            histories[link.rank].append(flat(model))
    finally:
        histories[link.rank].append(flat(model))
        link.close()


def run(method: str, faults: list[Fault]) -> tuple[list[Any], History]:
    histories: History = [[] for _ in range(WORLD)]
    links: list[Link] = [
        FaultyLink(link, faults) for link in loopback(WORLD, timeout_s=TIMEOUT_S if faults else 20)
    ]
    return run_all(partial(train, method=method, histories=histories), links), histories


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_fail_with_the_weights_of_a_whole_step(method: str, kind: Kind) -> None:
    results, whole = run(method, [])
    assert not [each for each in results if isinstance(each, BaseException)]
    for step in FRAMES[method]:
        results, found = run(method, [Fault(kind, rank=0, step=step, bit=60 * 8)])
        failed = [each for each in results if isinstance(each, BaseException)]
        assert failed, "the fault is in the middle"
        assert all(isinstance(each, ExchangeError) for each in failed), results
        for rank, weights in enumerate(found):
            if method == "sharded" or rank > 0:
                assert torch.equal(weights[-1], weights[-2]), "the step that failed has left no trace"
            if (method, rank) != ("stale server", 0):  # which serves all steps in one call
                assert any(torch.equal(weights[-1], each) for each in whole[rank])
