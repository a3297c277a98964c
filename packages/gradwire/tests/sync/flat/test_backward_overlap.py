"""The moments at which buckets are started: never in the first pass, later as soon as they are complete."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.bucket.residual import Residuals
from gradwire.sync.context import SyncContext
from gradwire.sync.flat.backward import BackwardOverlap
from gradwire.sync.flat.buckets import FlatBuckets
from gradwire.sync.flat.gradients import Bucket, FlatGradients
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.layout import Layouts


class Made:
    """Three layers of one weight each, whose buckets are recorded when they start."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(1, 1, bias=False) for _ in range(3)])
        self.gradients = FlatGradients(self.layers.parameters(), with_frozen=True)
        exchange = Exchange(loopback(1)[0], Plan())
        self.sync = GradientSync(SyncContext(exchange), Layouts("abc"), Residuals(exchange.plan, 0, 1))
        buckets = FlatBuckets(self.sync, self.gradients, "abc", [None] * 3, None, 4)
        self.overlap, self.started = BackwardOverlap(self.sync, buckets), list[int]()

    def backward(self, *uses: int, pieces: bool = False) -> tuple[list[int], list[int]]:
        """Run a pass over these layers; return the parameters started during backward, and after it.

        With ``pieces``, each use gives its layer's parameter a gradient of its own.
        """
        self.started = []

        def note(bucket: Bucket) -> None:
            self.started += bucket.parameters

        def loss() -> torch.Tensor:
            x = torch.ones(1, requires_grad=True)
            for use in uses:
                layer = self.layers[use]
                x = checkpoint(layer, x, use_reentrant=True) if pieces else layer(x)
            return x.sum()

        with self.overlap.guarded():
            self.overlap.backward(loss, self.gradients, note)
            during = [*self.started]
            works, used = self.overlap.start_rest()
        for work in works:
            work.wait()
        assert used.unused == {0, 1, 2} - set(uses)
        return during, self.started[len(during) :]


@pytest.fixture
def made() -> Iterator[Made]:
    found = Made()
    yield found
    found.sync.close()


def test_the_first_pass_starts_all_buckets_after_backward(made: Made) -> None:
    assert made.backward(0, 1, 2) == ([], [2, 1, 0])
    assert made.backward(0, 1, 2) == ([2, 1, 0], [])


@pytest.mark.parametrize("uses", [(0, 1, 2), (2, 0, 1, 2)])
def test_a_parameter_is_counted_in_the_first_pass_that_uses_it(made: Made, uses: tuple[int, ...]) -> None:
    made.backward(0, 1)
    assert made.backward(*uses, pieces=True) == ([], [2, 1, 0]), "2 may receive more gradients than the first"
    assert made.backward(*uses, pieces=True) == ([2, 1, 0], [])


def test_a_bucket_without_a_gradient_and_all_after_it_start_after_backward(made: Made) -> None:
    made.backward(0, 1, 2)
    assert made.backward(0, 2) == ([2], [1, 0])
    assert made.backward(0, 1) == ([], [2, 1, 0])


def test_buckets_that_are_complete_early_wait_for_their_turn(made: Made) -> None:
    made.backward(0, 1, 2)
    assert made.backward(2, 1, 0) == ([2, 1, 0], []), "once the last gradient is there, in this order"


def test_a_frozen_parameter_holds_no_bucket_up(made: Made) -> None:
    made.backward(0, 1, 2)
    for parameter in made.layers[1].parameters():
        parameter.requires_grad_(False)
    with made.overlap.guarded():
        made.overlap.backward(lambda: made.layers[2](made.layers[0](torch.ones(1))).sum(), made.gradients)
        assert len(made.overlap.start_rest()[0]) == 3
    made.sync.settle()


def test_an_error_with_buckets_in_flight_ends_later_passes(made: Made) -> None:
    made.backward(0, 1, 2)

    def fail_in_backward() -> None:
        with made.overlap.guarded():
            made.overlap.backward(lambda: made.layers[2](torch.ones(1)).sum(), made.gradients)
            assert 1 // 0

    with pytest.raises(ZeroDivisionError):
        fail_in_backward()
    with pytest.raises(ExchangeError, match="step 1 failed with buckets in flight"):
        made.backward(0, 1, 2)
