"""Frames with changes of weights that get lost or altered: errors, and the weights of whole steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
import torch
from torch import nn

from gradwire import Sharded
from gradwire.errors import ExchangeError
from gradwire.links import Link
from gradwire.links.loopback import loopback
from support.faulty_link import Fault, FaultyLink
from support.servers import flat, run_all
from support.sharded_ranks import adamw, loss_of, make_model

Kind = Literal["fail", "corrupt", "truncate", "drop", "duplicate"]
KINDS: tuple[Kind, ...] = ("fail", "corrupt", "truncate", "drop", "duplicate")
WORLD, STEPS, TIMEOUT_S = 3, 5, 0.6
History = list[list[torch.Tensor]]
Take = Callable[[], object]


@dataclass(frozen=True)
class Training:
    """A rank's training as calls, and what a fault in its middle must leave."""

    begin: Callable[[Link, nn.Sequential], list[Take]]
    frames: tuple[int, ...]
    """Some that rank 0 sends in the middle of the training."""
    intact_from: int = 0
    """From this rank on, the step that failed leaves no trace."""
    whole_from: int = 0
    """From this rank on, the weights are those of a whole step."""


def sharded(link: Link, model: nn.Sequential) -> list[Take]:
    method = Sharded(model, adamw(model), "quantize:8", group=link)
    return [partial(method.step, loss_of(model, t, link.rank)) for t in range(STEPS)]


@pytest.fixture
def training() -> Training:
    return Training(sharded, (14, 23, 31))


def train(link: Link, training: Training, histories: History) -> None:
    """Train until something fails; keep the weights after every whole step, and those that are left."""
    model = make_model()
    model.bfloat16().float()  # replicas hold no more bits, from the beginning on
    histories[link.rank] = [flat(model)]
    try:
        for take in training.begin(link, model):
            take()
            histories[link.rank].append(flat(model))
    finally:
        histories[link.rank].append(flat(model))
        link.close()


def run(training: Training, faults: list[Fault]) -> tuple[list[Any], History]:
    histories: History = [[] for _ in range(WORLD)]
    links: list[Link] = [
        FaultyLink(link, faults) for link in loopback(WORLD, timeout_s=TIMEOUT_S if faults else 20)
    ]
    return run_all(partial(train, training=training, histories=histories), links), histories


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_fail_with_the_weights_of_a_whole_step(training: Training, kind: Kind) -> None:
    results, whole = run(training, [])
    assert not [each for each in results if isinstance(each, BaseException)]
    for step in training.frames:
        results, found = run(training, [Fault(kind, rank=0, step=step, bit=60 * 8)])
        failed = [each for each in results if isinstance(each, BaseException)]
        assert failed, "the fault is in the middle"
        assert all(isinstance(each, ExchangeError) for each in failed), results
        for rank, weights in enumerate(found):
            if rank >= training.intact_from:
                assert torch.equal(weights[-1], weights[-2]), "the step that failed has left no trace"
            if rank >= training.whole_from:
                assert any(torch.equal(weights[-1], each) for each in whole[rank])
