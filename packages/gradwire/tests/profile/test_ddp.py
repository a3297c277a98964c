from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Variable

from gradwire.ddp.attach import HookState
from gradwire.profile.ddp import DdpWatch
from gradwire.profile.settings import Settings


class FakeDdp(nn.Module):
    """Says what DDP says of itself, and waits at the end of backward as DDP does."""

    find_unused_parameters = static_graph = False
    require_backward_grad_sync = True
    process_group = "group"

    def __init__(self, told: dict[str, Any], wait: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._comm_hooks: list[tuple[object, object]] = []
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False)
        self.told = told

        def queue(_parameter: torch.Tensor) -> None:
            if self.require_backward_grad_sync:
                Variable._execution_engine.queue_callback(wait)

        self.first.weight.register_post_accumulate_grad_hook(queue)  # type: ignore[no-untyped-call]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x))
        return out

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self.told


def backward(model: nn.Module) -> None:
    model.zero_grad()
    model(torch.ones(3, 4)).sum().backward()


def watch_of(model: Any, passed: list[int], **settings: Any) -> DdpWatch:
    return DdpWatch(model, Settings("", **settings), lambda watch: passed.append(watch.steps))


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        ({"bucket_sizes": "96", "rebuilt_bucket_sizes": "32, 64"}, (8, 16)),
        ({"bucket_sizes": "64, 32"}, (16, 8)),
        ({"bucket_sizes": "64"}, (24,)),
        ({}, (24,)),
    ],
)
def test_buckets_are_what_ddp_says(told: dict[str, Any], counts: tuple[int, ...]) -> None:
    watch = watch_of(FakeDdp(told), [])
    assert (watch.recorded.counts, watch.recorded.gathers) == (counts, ())
    assert watch.floats == 24


def test_a_step_is_its_computation_and_what_it_waits_at_its_end() -> None:
    clock = [0.0]

    def wait() -> None:
        clock[0] += 7.0

    model, steps = FakeDdp({}, wait), list[int]()
    watch = watch_of(model, steps, warm_up=2, steps=2)
    watch._marks.now = lambda: clock[0]  # type: ignore[method-assign]
    for layer, seconds in ((model.last, 2.0), (model.first, 4.0)):
        layer.weight.register_hook(  # type: ignore[no-untyped-call]
            lambda _, more=seconds: clock.__setitem__(0, clock[0] + more)
        )
    for _ in range(4):
        clock[0] += 10.0  # the step's forward pass
        backward(model)
    found = watch.recorded.times.median
    assert (found.compute_s, found.exposed_s) == (16.0, 7.0)
    assert found.backward_s == pytest.approx(4.0 * 24 / 16)  # as much for the last layer's floats
    assert steps == [1, 2, 3, 4]


def test_gradients_are_those_before_the_average_in_the_steps_before_those_that_count() -> None:
    model = FakeDdp({})
    watch = watch_of(model, [], warm_up=3, steps=1)
    for _ in range(5):
        backward(model)
    wanted = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    assert len(watch.recorded.gradients) == 3
    assert all(torch.equal(each, wanted) for each in watch.recorded.gradients)


def test_passes_that_only_accumulate_are_a_part_of_a_step() -> None:
    model, steps = FakeDdp({}), list[int]()
    watch_of(model, steps)
    for number in range(4):
        model.require_backward_grad_sync = number % 2 == 1
        backward(model)
    assert steps == [1, 2]


def test_a_pass_without_all_gradients_is_no_step_unless_ddp_was_told_so() -> None:
    for unused, wanted in ((False, []), (True, [1])):
        model, steps = FakeDdp({}), list[int]()
        model.find_unused_parameters = unused
        watch_of(model, steps)
        model.last(torch.ones(1, 4)).sum().backward()
        assert steps == wanted


def test_the_gradient_of_an_unused_parameter_is_zeros() -> None:
    model = FakeDdp({})
    model.find_unused_parameters = True
    watch = watch_of(model, [], warm_up=3, steps=1)
    for _ in range(4):
        model.zero_grad()
        model.last(torch.ones(3, 4)).sum().backward()
    assert model.last.weight.grad is not None
    wanted = torch.cat([torch.zeros(16), model.last.weight.grad.flatten()])
    assert len(watch.recorded.gradients) == 3
    assert all(torch.equal(each, wanted) for each in watch.recorded.gradients)


def test_a_model_that_gradwire_is_attached_to_is_a_problem() -> None:
    model = FakeDdp({})
    watch = watch_of(model, [])
    model._comm_hooks.append(("a hook of torch's", "its state"))
    assert watch.problem == ""
    model._comm_hooks.append((None, object.__new__(HookState)))
    assert "call estimate(rate='1gbit') on the object that attach returned" in watch.problem


def test_nothing_is_left_of_it() -> None:
    model, steps = FakeDdp({}), list[int]()
    watch_of(model, steps).remove()
    backward(model)
    assert steps == []
