"""A flat gradient's buckets on their way: which there are, what they are called, and what waits for whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import BucketObserver
from gradwire.sync.bucket.residual import Residuals
from gradwire.sync.context import SyncContext
from gradwire.sync.flat.buckets import WHOLE, Alone, FlatBuckets, UsedParameters, UsedParametersAgreement
from gradwire.sync.flat.gradients import FlatGradients
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.layout import Layouts
from gradwire.sync.ledger.ledger import Ledger
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


def cut(
    exchange: Exchange,
    gradients: FlatGradients,
    residual: torch.Tensor | None = None,
    ledger: Ledger | None = None,
) -> tuple[GradientSync, FlatBuckets]:
    """Return what averages the gradients in step 3, and their buckets."""
    names, plan, link = ["a", "b", "c"], exchange.plan, exchange.link
    context = SyncContext(exchange, ledger=ledger, owns_link=False)
    sync = GradientSync(context, Layouts(names), Residuals(plan, link.rank, link.world))
    sync.resume(2)
    return sync, FlatBuckets(sync, gradients, names, [None] * 3, residual, plan.bucket_nbytes)


def averaged(
    exchange: Exchange, value: float, **options: Any
) -> tuple[FlatGradients, list[str], UsedParameters]:
    """Hand all buckets of a gradient of ``value`` over; return it, their names, and the used parameters."""
    model = three_layers()
    gradients = filled(model, value)
    for number in options.get("unused", ()):
        gradients.parameters[number].grad = None
    gradients.collect()
    sync, buckets = cut(exchange, gradients, options.get("residual"))
    used = UsedParameters(gradients)
    observers = [*(Alone() for _ in buckets.cut[1:]), UsedParametersAgreement(used)]
    sync.begin()
    works = [buckets.start(gradients, number, observer) for number, observer in enumerate(observers)]
    sync.finish()
    sync.close()
    return gradients, [f"{each.name}: {each.what}" for each in works], used


@pytest.mark.parametrize("bucket_nbytes", [None, 44, 4])
def test_every_bucket_is_averaged_and_named(bucket_nbytes: int | None, run_exchanges: Ranks) -> None:
    """By hand: of 8, 6 and 4 floats, 44 bytes hold the last two only; 4 bytes hold none with another."""
    wanted = {
        None: [f"{WHOLE}: {WHOLE} of step 3"],
        44: ["bucket 1: bucket 1 of step 3", "bucket 2: bucket 2 of step 3"],
        4: [f"bucket {number}: bucket {number} of step 3" for number in (1, 2, 3)],
    }[bucket_nbytes]

    def body(exchange: Exchange) -> tuple[list[float], list[str]]:
        gradients, names, _ = averaged(exchange, float(exchange.link.rank))
        return gradients.buffer.tolist(), names

    for values, names in run_exchanges(3, body, Plan(bucket_nbytes=bucket_nbytes)):
        assert values == [1.0] * 18
        assert names == wanted


def test_the_residual_of_what_backward_has_not_used_waits(run_exchanges: Ranks) -> None:
    """Rank 0 has not used the middle layer, whose residual stays; that of the others is sent and kept."""

    def body(exchange: Exchange) -> tuple[list[float], list[float], tuple[int, ...]]:
        residual = torch.full((18,), 0.5)
        unused = (1,) if exchange.link.rank == 0 else ()
        gradients, _, used = averaged(exchange, 1.0, residual=residual, unused=unused)
        return gradients.buffer.tolist(), residual.tolist(), tuple(sorted(used.unused))

    plan = Plan(parse("identity"), residual=True, bucket_nbytes=4)
    (first, kept, own), (second, gone, other) = run_exchanges(2, body, plan)
    assert first == second == [1.5] * 8 + [0.75] * 6 + [1.5] * 4
    assert kept == [0.0] * 8 + [0.5] * 6 + [0.0] * 4
    assert gone == [0.0] * 18
    assert (own, other) == ((1,), ())


def test_what_no_rank_has_used_is_known_with_the_last_bucket(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[set[int], set[int]]:
        unused = (0, 1) if exchange.link.rank == 0 else (0, 2)
        _, _, used = averaged(exchange, 1.0, unused=unused)
        return set(used.unused), set(used.absent)

    assert run_exchanges(2, body, Plan(bucket_nbytes=4)) == [({0, 1}, {0}), ({0, 2}, {0})]


def test_the_ledger_has_every_bucket_once() -> None:
    sink = Kept()
    exchange, model = Exchange(loopback(1)[0], Plan(bucket_nbytes=4)), three_layers()
    ledger = Ledger(0, [sink])
    gradients = filled(model, 2.0)
    sync, buckets = cut(exchange, gradients, ledger=ledger)
    for number in range(3):
        work = buckets.start(gradients, number, Alone())
        work.wait()
        work.wait()  # which counts nothing any more
    sync.finish()
    sync.close()
    (step,) = sink.steps
    counted = {
        name: (counts.exchanges, counts.gradient_nbytes) for name, counts in step.tally.buckets.items()
    }
    assert counted == {"bucket 1": (1, 16), "bucket 2": (1, 24), "bucket 3": (1, 32)}


def test_an_empty_bucket_goes_out_with_its_neighbour() -> None:
    """By hand: of 0, 8, 0 and 4 floats, 4 bytes would leave the empty parameters alone."""
    exchange = Exchange(loopback(1)[0], Plan(bucket_nbytes=4))
    parameters = [nn.Parameter(torch.zeros(count)) for count in (0, 8, 0, 4)]
    context = SyncContext(exchange, owns_link=False)
    sync = GradientSync(context, Layouts(list("abcd")), Residuals(exchange.plan, 0, 1))
    buckets = FlatBuckets(sync, FlatGradients(parameters), list("abcd"), [None] * 4, None, 4)
    assert [(each.start, each.stop, each.parameters) for each in buckets.cut] == [
        (8, 12, range(2, 4)),
        (0, 8, range(2)),
    ]
    assert [each.names for each in buckets.layouts] == [("c", "d"), ("a", "b")]


def test_one_bucket_is_exchanged_by_the_caller(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[list[float], list[str], int]:
        sink, gradients = Kept(), filled(three_layers(), float(exchange.link.rank))
        gradients.collect()
        sync, buckets = cut(exchange, gradients, ledger=Ledger(exchange.link.rank, [sink]))
        sync.begin()
        cost = buckets.run(gradients, UsedParametersAgreement(UsedParameters(gradients)))
        sync.finish()
        sync.close()
        (step,) = sink.steps
        return gradients.buffer.tolist(), list(step.tally.buckets), int(cost.raw_nbytes)

    for values, names, nbytes in run_exchanges(2, body):
        assert values == [0.5] * 18
        assert names == [WHOLE]
        assert nbytes == 4 * 18, "half of it, there and back"


def test_an_error_in_the_callers_exchange_ends_it() -> None:
    class Broken(BucketObserver):
        def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:  # noqa: ARG002
            raise ZeroDivisionError("of all things")

    exchange, gradients = Exchange(loopback(1)[0], Plan()), filled(three_layers(), 1.0)
    _, buckets = cut(exchange, gradients)
    with pytest.raises(ZeroDivisionError):
        buckets.run(gradients, Broken())
    assert exchange.failure == "of all things"
