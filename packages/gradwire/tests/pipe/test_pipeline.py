"""A pipeline by itself, of one rank: what is under way, what is applied when, and what a state holds."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.pipe.pipeline import Pipeline, Treatment
from gradwire.plan import Plan
from gradwire.sync.bucket.residual import Residuals
from gradwire.sync.checkpoint import InFlight
from gradwire.sync.context import SyncContext
from gradwire.sync.flat.buckets import FlatBuckets
from gradwire.sync.flat.gradients import FlatGradients
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.layout import Layouts
from gradwire.sync.trained import TrainedParameters

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
MakePipeline = Callable[..., "Made"]


class Made:
    """A weight of two numbers, whose gradient in a step is what the test says, and its pipeline."""

    def __init__(
        self,
        pipeline: int,
        correction: str = "none",
        max_norm: float = math.inf,
        on_average: Callable[[Sequence[nn.Parameter]], object] = lambda _: None,
    ) -> None:
        self.model = nn.Linear(2, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        exchange = Exchange(loopback(1)[0], Plan(pipeline=pipeline))
        trained = TrainedParameters(self.model, self.optimizer, "PipeSGD")
        treatment = Treatment(correction, max_norm, on_average)
        self.sync = GradientSync(SyncContext(exchange), Layouts(["weight"]), Residuals(exchange.plan, 0, 1))
        self.pipeline = Pipeline(trained, self.optimizer, self.sync, treatment, self._buckets_of)

    def add(self, *gradient: float, alone: bool = False) -> float:
        """Compute the gradient of the next step; return the loss."""
        weight, wanted = self.model.weight, torch.tensor([gradient])
        loss, _ = self.pipeline.add(lambda: (weight * wanted).sum() + 7, alone=alone)
        return loss

    def _buckets_of(self, gradients: FlatGradients) -> FlatBuckets:
        return FlatBuckets(self.sync, gradients, ["weight"], [None], None, None)

    @property
    def weights(self) -> list[float]:
        return self.model.weight.flatten().tolist()


@pytest.fixture
def make() -> Iterator[MakePipeline]:
    """Return ``make(pipeline, ...)``; threads end with the test."""
    made: list[Made] = []

    def new(*arguments: Any, **options: Any) -> Made:
        made.append(Made(*arguments, **options))
        return made[-1]

    yield new
    for each in made:
        each.sync.close()


def test_gradients_are_applied_oldest_first_and_only_as_many_as_asked(make: MakePipeline) -> None:
    made = make(3)
    for power in range(3):
        assert made.add(10.0**power, 0.0) == 7.0, "at the weights of then, which are all 0"
    assert (len(made.pipeline), made.weights) == (3, [0.0, 0.0])
    for left, wanted in ((2, -1.0), (1, -11.0), (1, -11.0), (0, -111.0)):
        made.pipeline.apply_all_but(left)
        assert (len(made.pipeline), made.weights) == (left, [wanted, 0.0])


def test_between_steps_no_gradient_can_be_touched(make: MakePipeline) -> None:
    made = make(2)
    made.add(1.0, 2.0)
    assert [each.grad for each in made.model.parameters()] == [None]
    made.optimizer.zero_grad(set_to_none=False)
    made.pipeline.apply_all_but(0)
    assert made.weights == [-1.0, -2.0]
    (parameter,) = made.model.parameters()
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [[1.0, 2.0]], "what was applied last"


def test_a_gradient_is_applied_with_the_learning_rate_of_its_own_step(make: MakePipeline) -> None:
    made = make(2)
    for rate in (1.0, 10.0):
        made.optimizer.param_groups[0]["lr"] = rate
        made.add(1.0, 0.0)
    made.optimizer.param_groups[0]["lr"] = 1000.0
    made.pipeline.apply_all_but(0)
    assert made.weights == [-11.0, 0.0]
    assert made.optimizer.param_groups[0]["lr"] == 1000.0


def test_averages_are_treated_and_then_clipped(make: MakePipeline) -> None:
    """3 and 4 become 6 and 8 by the treatment, whose norm of 10 is clipped to 5."""

    def double(parameters: Sequence[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(2)

    made = make(2, max_norm=5.0, on_average=double)
    made.add(3.0, 4.0)
    made.pipeline.apply_all_but(0)
    assert made.weights == pytest.approx([-3.0, -4.0])


@pytest.mark.parametrize(
    ("pipeline", "correction", "own"), [(1, "eager", 0), (3, "eager", 2), (3, "none", 0)]
)
def test_only_a_longer_eager_pipeline_keeps_own_gradients(
    pipeline: int, correction: str, own: int, make: MakePipeline
) -> None:
    made = make(pipeline, correction)
    assert made.pipeline.own_count == own
    assert made.pipeline.corrects == (own > 0)


def test_an_eager_step_computes_where_its_own_gradients_are_applied(make: MakePipeline) -> None:
    made = make(3, "eager")
    losses = [made.add(1.0, 0.0) for _ in range(3)]
    assert losses == [7.0, 6.0, 5.0], "7 + w, and each step before has lowered w by 1 here"
    assert made.weights == [0.0, 0.0], "the masters wait"


@pytest.mark.parametrize("correction", ["none", "eager"])
def test_what_is_in_flight_goes_on_in_another_pipeline(correction: str, make: MakePipeline) -> None:
    first, second = make(3, correction), make(3, correction)
    for number in (1.0, 2.0, 3.0):
        first.add(number, 0.0)
    first.pipeline.apply_all_but(2)
    kept = copy.deepcopy(first.pipeline.in_flight())
    assert [each.gradient.tolist() for each in kept] == [[2.0, 0.0], [3.0, 0.0]]
    assert [each.own is not None for each in kept] == [correction == "eager"] * 2
    second.add(99.0, 99.0)  # which is dropped
    second.pipeline.settle()
    second.pipeline.check_fits(kept)
    second.pipeline.resume(kept)
    nn.init.constant_(second.model.weight, -1.0)
    losses = [made.add(1.0, 0.0) for made in (first, second)]
    assert losses == [7.0 - 1 - (5 if correction == "eager" else 0)] * 2
    for made in (first, second):
        made.pipeline.apply_all_but(0)
    assert [made.weights[0] for made in (first, second)] == [-7.0, -7.0]


def test_gradients_of_another_model_or_length_do_not_fit(make: MakePipeline) -> None:
    made = make(2)
    fits = InFlight(torch.zeros(2), [{"lr": 1.0}])
    made.pipeline.check_fits([fits, fits])
    for wrong, reason in (
        ([fits] * 3, "a pipeline of 2: expected at most 2 gradients in flight with 2 floats each, got"),
        ([replace(fits, gradient=torch.zeros(3))], "with 2 floats each, got"),
        ([replace(fits, own=torch.zeros(5))], "with 2 floats each, got"),
        ([replace(fits, scheduled=[{}, {}])], "with at most 1 parameter groups, got 2; resume"),
        (
            [replace(fits, absent=(1,))],
            "expected gradients in flight for 1 parameters, got one for parameter 1",
        ),
    ):
        with pytest.raises(StateError, match=reason):
            made.pipeline.check_fits(wrong)


def test_a_cancelled_gradient_is_not_sent_and_the_thread_still_ends(make: MakePipeline) -> None:
    made = make(2)
    made.add(1.0, 0.0)
    made.pipeline.settle()
    made.sync.cancel()
    made.sync.close()
    assert made.weights == [0.0, 0.0]
