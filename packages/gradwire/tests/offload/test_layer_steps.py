from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import SpecError
from gradwire.offload.host_offload import HostOffload
from gradwire.offload.sums import LayerSteps

Maker = Callable[[list[nn.Parameter], list[nn.Parameter]], torch.optim.Optimizer]


def groups_of(some: list[nn.Parameter], others: list[nn.Parameter], **options: float) -> list[dict[str, Any]]:
    return [{"params": some}, {"params": others, **options}]


MAKERS: list[Maker] = [
    lambda a, b: torch.optim.SGD(groups_of(a, b, lr=0.1), lr=0.2, momentum=0.9),
    lambda a, b: torch.optim.AdamW(groups_of(a, b, weight_decay=0.1), lr=0.01),
    lambda a, b: torch.optim.NAdam([*a, *b], lr=0.01),
    lambda a, b: torch.optim.Adafactor([*a, *b], lr=0.01),
]


@pytest.mark.parametrize("make", MAKERS)
def test_steps_of_some_parameters_at_a_time_are_those_of_all(
    make: Maker,
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    expected = copy.deepcopy(model)
    plain = make([*expected[0].parameters()], [*expected[1].parameters()])
    optimizer = make([*model[0].parameters()], [*model[1].parameters()])
    groups = [[*group["params"]] for group in optimizer.param_groups]
    steps = LayerSteps(optimizer)
    for _ in range(3):
        gradients = {name: torch.randn_like(each) for name, each in model.named_parameters()}
        for name, each in expected.named_parameters():
            each.grad = gradients[name]
        plain.step()
        steps.begin()
        for layer in ("1", "0"):

            def deliver(layer: str = layer, gradients: dict[str, torch.Tensor] = gradients) -> None:
                assert not steps.active
                for name, each in model.get_submodule(layer).named_parameters():
                    each.grad = gradients[f"{layer}.{name}"]

            steps.submit({*model.get_submodule(layer).parameters()}, deliver)
        steps.join()
        steps.stepped()
        assert all(each.grad is None for each in model.parameters())
    steps.close()
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert [[*map(id, group["params"])] for group in optimizer.param_groups] == [
        [*map(id, g)] for g in groups
    ]


def test_an_error_reaches_whoever_joins_and_the_optimizer_is_whole_again() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def fail() -> None:
        raise ArithmeticError("gone")

    steps = LayerSteps(optimizer)
    steps.submit({parameter}, fail)
    with pytest.raises(ArithmeticError, match="gone"):
        steps.join()
    optimizer.register_step_pre_hook(lambda *_: fail())
    steps.submit({parameter}, lambda: None)
    with pytest.raises(ArithmeticError, match="gone"):
        steps.join()
    assert not steps.active
    assert optimizer.param_groups[0]["params"] == [parameter]
    steps.close()


def test_when_a_step_fails_no_later_step_runs_after_the_error() -> None:
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer, may_end = torch.optim.SGD([first, second], lr=1.0), threading.Event()

    def fail() -> None:
        raise ArithmeticError("gone")

    def deliver() -> None:
        second.grad = torch.ones(2)

    steps = LayerSteps(optimizer)

    def wait(*_: object) -> None:
        may_end.wait(30)

    optimizer.register_step_pre_hook(wait)
    steps.submit({first}, fail)
    steps.submit({second}, deliver)
    threading.Timer(0.1, may_end.set).start()
    with pytest.raises(ArithmeticError, match="gone"):
        steps.join()
    assert second.tolist() == [0.0, 0.0]
    assert len(optimizer.state_dict()["param_groups"][0]["params"]) == 2
    steps.close()


def test_each_backward_pass_wants_its_step() -> None:
    parameter = nn.Parameter(torch.ones(2))
    steps = LayerSteps(torch.optim.SGD([parameter], lr=0.1))
    steps.begin()
    steps.submit({parameter}, lambda: None)
    steps.join()
    with pytest.raises(
        SpecError,
        match=r"expected optimizer.step\(\) after each backward pass, got another .*; call optimizer\.step",
    ):
        steps.begin()
    steps.stepped()
    steps.begin()
    steps.close()


def test_an_optimizer_of_all_parameters_at_once_is_refused() -> None:
    with pytest.raises(SpecError, match="can step layer by layer, got LBFGS"):
        LayerSteps(torch.optim.LBFGS([nn.Parameter(torch.ones(2))]))


def test_a_step_after_a_failed_pass_waits_for_the_layers_that_it_stepped() -> None:
    """Else ``optimizer.step()`` would find the optimizer with one layer's parameters alone."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    offload = HostOffload(model, optimizer, "static:32", device="cpu", step_in_backward=True)
    may_end, begun = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        if threading.current_thread().name.startswith("gradwire optimizer"):
            begun.set()
            may_end.wait(30)

    def fail(_gradient: torch.Tensor) -> None:
        raise RuntimeError("out of memory")

    holding = optimizer.register_step_pre_hook(hold)
    failing = next(offload.replicas[0].parameters()).register_hook(fail)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="out of memory"):
        offload(torch.ones(2, 3)).sum().backward()
    failing.remove()
    assert begun.wait(30)
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(optimizer.step)
        with pytest.raises(TimeoutError):
            step.result(timeout=0.1)
        may_end.set()
        step.result(timeout=30)
    holding.remove()
    offload(torch.ones(2, 3)).sum().backward()  # which optimizer.step() must have come before
    optimizer.step()
    offload.close()
