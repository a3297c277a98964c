"""What eager updates are for: a pipeline that learns as synchronous training does, on real digits."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync
from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire.sync.method import WorkerMethod
from gradwire_lab.job.data import Dataset, load
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
WORLD, BATCH, STEPS, SEEDS = 2, 25, 100, 3
METHODS = ("synchronous", "none", "eager")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def _held_out_loss(link: Link, digits: Dataset, start: nn.Module, seed: int, how: str) -> float:
    """Train one rank; return the loss on held-out data, which is the same on all of them."""
    model, rank = copy.deepcopy(start), link.rank
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    exchange = Exchange(link, Plan(parse("quantize:8")))
    method: WorkerMethod
    if how == "synchronous":
        method = DSync(model, optimizer, exchange.plan, group=exchange.link)
    else:
        method = pipe_sgd(model, optimizer, exchange, correction=how)
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    with method:
        for _ in range(STEPS):
            picked = torch.randint(len(digits.train_labels), (BATCH,), generator=draw)
            images, labels = digits.train_batch(picked)
            method.step(lambda x=images, y=labels: nn.functional.cross_entropy(model(x), y))  # type: ignore[misc]
    images, labels = next(digits.test_batches(1000))
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(images), labels))


def test_eager_updates_close_the_gap_to_synchronous_training(digits: Dataset, run_ranks: Ranks) -> None:
    losses: dict[str, list[float]] = {how: [] for how in METHODS}
    for seed in range(SEEDS):
        start = _model(seed)
        for how in METHODS:
            ranks = run_ranks(WORLD, _held_out_loss, digits, start, seed, how)
            assert len(set(ranks)) == 1
            losses[how].append(ranks[0])
    synchronous, stale, eager = (statistics.mean(losses[how]) for how in METHODS)
    assert stale > 2 * synchronous, "stale gradients cost too little here to show what closes the gap"
    closed = (stale - eager) / (stale - synchronous)
    assert closed >= 0.9, f"{closed:.2f} of the gap between {stale:.3f} and {synchronous:.3f}: {eager:.3f}"
