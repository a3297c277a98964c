"""A flat gradient's buckets on their way: which there are, what they are called, and what waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.codecs import parse
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.flat import FlatGradients
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.meter import MethodMeter
from gradwire.sync.thread import WHOLE, Buckets
from gradwire.sync.used_parameters import Reach
from support.ledgers import Kept

Ranks = Callable[..., list[Any]]
pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def three_layers() -> nn.Sequential:
    """Return a model whose parameters have 8, 6 and 4 floats."""
    return nn.Sequential(*(nn.Linear(count, 1, bias=False) for count in (8, 6, 4)))


def filled(model: nn.Module, value: float) -> FlatGradients:
    gradients = FlatGradients(model.parameters())
    gradients.zero()
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.fill_(value)
    return gradients


def averaged(exchange: Exchange, value: float, **options: Any) -> tuple[FlatGradients, list[str], Reach]:
    """Hand all buckets of a gradient of ``value`` over; return it, their names, and what was reached."""
    model = three_layers()
    gradients = filled(model, value)
    for number in options.get("unreached", ()):
        gradients.parameters[number].grad = None
    gradients.collect()
    buckets = Buckets(exchange, MethodMeter(model, exchange), gradients, options.get("residual"))
    reach, last = Reach(gradients), len(buckets.cut) - 1
    handovers = [
        buckets.hand_over(3, gradients, number, reach if number == last else None)
        for number in range(last + 1)
    ]
    for handover in handovers:
        buckets.thread.wait(handover)
    buckets.close()
    return gradients, [f"{each.name}: {each.what}" for each in handovers], reach


@pytest.mark.parametrize("bucket_nbytes", [None, 44, 4])
def test_every_bucket_is_averaged_and_named(bucket_nbytes: int | None, run_exchanges: Ranks) -> None:
    """By hand: of 8, 6 and 4 floats, 44 bytes hold the last two only; 4 bytes hold none with another."""
    wanted = {
        None: [f"{WHOLE}: the gradient of step 3"],
        44: ["bucket 1: bucket 1 of the gradient of step 3", "bucket 2: bucket 2 of the gradient of step 3"],
        4: [f"bucket {number}: bucket {number} of the gradient of step 3" for number in (1, 2, 3)],
    }[bucket_nbytes]

    def body(exchange: Exchange) -> tuple[list[float], list[str]]:
        gradients, names, _ = averaged(exchange, float(exchange.link.rank))
        return gradients.buffer.tolist(), names

    for values, names in run_exchanges(3, body, Plan(bucket_nbytes=bucket_nbytes)):
        assert values == [1.0] * 18
        assert names == wanted


def test_the_residual_of_what_backward_has_not_reached_waits(run_exchanges: Ranks) -> None:
    """Rank 0 has not reached the middle layer, whose residual stays; that of the others is sent and kept."""

    def body(exchange: Exchange) -> tuple[list[float], list[float], tuple[int, ...]]:
        residual = torch.full((18,), 0.5)
        unreached = (1,) if exchange.link.rank == 0 else ()
        gradients, _, reach = averaged(exchange, 1.0, residual=residual, unreached=unreached)
        return gradients.buffer.tolist(), residual.tolist(), tuple(sorted(reach.own))

    plan = Plan(parse("identity"), residual=True, bucket_nbytes=4)
    (first, kept, own), (second, gone, other) = run_exchanges(2, body, plan)
    assert first == second == [1.5] * 8 + [0.75] * 6 + [1.5] * 4
    assert kept == [0.0] * 8 + [0.5] * 6 + [0.0] * 4
    assert gone == [0.0] * 18
    assert (own, other) == ((1,), ())


def test_what_no_rank_has_reached_is_known_with_the_last_bucket(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[set[int], set[int]]:
        unreached = (0, 1) if exchange.link.rank == 0 else (0, 2)
        _, _, reach = averaged(exchange, 1.0, unreached=unreached)
        return set(reach.own), set(reach.absent)

    assert run_exchanges(2, body, Plan(bucket_nbytes=4)) == [({0, 1}, {0}), ({0, 2}, {0})]


def test_the_ledger_has_every_bucket_once() -> None:
    sink = Kept()
    exchange, model = Exchange(loopback(1)[0], Plan(bucket_nbytes=4)), three_layers()
    ledger = Ledger(0, [sink])
    gradients = filled(model, 2.0)
    buckets = Buckets(exchange, MethodMeter(model, exchange, ledger), gradients, None)
    for number in range(3):
        handover = buckets.hand_over(1, gradients, number)
        buckets.thread.wait(handover)
        buckets.thread.wait(handover)  # which counts nothing any more
    ledger.end_step()
    buckets.close()
    (step,) = sink.steps
    counted = {
        name: (counts.exchanges, counts.gradient_nbytes) for name, counts in step.tally.buckets.items()
    }
    assert counted == {"bucket 1": (1, 16), "bucket 2": (1, 24), "bucket 3": (1, 32)}
