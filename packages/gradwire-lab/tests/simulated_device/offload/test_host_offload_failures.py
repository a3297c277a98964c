"""A device without memory, one that is lost, and pinned memory that is refused: the masters survive."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import DeviceError
from gradwire.offload.host_offload import HostOffload
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Linear(9, 2))


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(step: int) -> torch.Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step))


def step(offload: HostOffload, device: Simulated, number: int, lose_at: str = "") -> None:
    def at(moment: str) -> None:
        if lose_at == moment:
            device.lose()

    offload.optimizer.zero_grad()
    x = device.own(batch(number))
    at("forward")
    loss = offload(x).square().mean()
    at("backward")
    if lose_at == "within backward":
        loss.register_hook(lambda _: device.lose())
    loss.backward()
    at("step")
    offload.optimizer.step()
    at("end")


def steps_until_it_fails(offload: HostOffload, device: Simulated, lose_at: str) -> None:
    step(offload, device, 1, lose_at)
    step(offload, device, 2)


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the buffers of a lost device
        return copy.deepcopy(
            {"model": dict(model.named_parameters()), "optimizer": optimizer.state_dict()["state"]}
        )


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def trained(steps: int) -> dict[str, Any]:
    model = make_model()
    optimizer = make_optimizer(model)
    for number in range(steps):
        optimizer.zero_grad()
        model(batch(number)).square().mean().backward()
        optimizer.step()
    return everything(model, optimizer)


@pytest.mark.parametrize("policy", ["static:16", "delta"])
def test_any_allocation_that_fails_leaves_the_masters_as_they_were(policy: str) -> None:
    def run(device: Simulated, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        with Kernels(device):
            offload = HostOffload(model, optimizer, policy, device=device)
            try:
                offload(device.own(batch(0))).square().mean().backward()
            finally:
                offload.close()

    complete = Simulated()
    run(complete, (model := make_model()), make_optimizer(model))
    assert set(complete.allocations) == {"adopt", "zeros", "pinned"}
    for name, count in complete.allocations.items():
        for number in range(count):
            model = make_model()
            optimizer = make_optimizer(model)
            before = everything(model, optimizer)
            with pytest.raises(DeviceError, match=r"not fit|not have enough memory|pass pin_memory=False"):
                run(Simulated(refused=(name, number)), model, optimizer)
            assert_same(everything(model, optimizer), before)
            assert not model._state_dict_pre_hooks
            assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize("moment", ["forward", "backward", "within backward", "step", "end"])
def test_a_device_lost_at_any_moment_leaves_masters_that_train_on(moment: str) -> None:
    model, device = make_model(), Simulated()
    optimizer = make_optimizer(model)
    with Kernels(device):
        offload = HostOffload(model, optimizer, "static:32", device=device)
        step(offload, device, 0)
        with pytest.raises(RuntimeError, match="the device is lost") as raised:
            steps_until_it_fails(offload, device, moment)
        if moment in ("forward", "step", "end"):
            assert isinstance(raised.value, DeviceError)
            assert "close this HostOffload, and create a HostOffload on another device" in str(raised.value)
        done = 2 if moment in ("step", "end") else 1
        assert_same(everything(model, optimizer), trained(done))
        with pytest.warns(UserWarning, match="the model keeps its previous buffers, because a simulated"):
            state = model.state_dict()
        assert state.keys() == make_model().state_dict().keys()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            offload.close()
    device = Simulated()
    with Kernels(device):
        offload = HostOffload(model, optimizer, "static:32", device=device)
        for number in range(done, 3):
            step(offload, device, number)
        offload.close()
    assert_same(everything(model, optimizer), trained(3))


def test_with_layers_on_a_lost_device_the_errors_ask_for_the_last_checkpoint() -> None:
    model, device = make_model(), Simulated()
    with Kernels(device):
        offload = HostOffload(model, make_optimizer(model), "static:32", device=device, fraction=0.5)
        step(offload, device, 0)
        device.lose()
        offload.refresh()
        advice = "load the last checkpoint, because layers that fraction keeps on the device are lost"
        with pytest.raises(DeviceError, match=advice):
            offload.wait()
        with pytest.raises(DeviceError, match=advice), pytest.warns(UserWarning, match="previous buffers"):
            offload.close()


def test_a_failed_backward_adds_nothing_to_gradients_that_were_there() -> None:
    model, device = make_model(), Simulated()
    with Kernels(device):
        offload = HostOffload(model, make_optimizer(model), "static:32", device=device)
        offload(device.own(batch(0))).square().mean().backward()
        before = [each.grad.clone() for each in model.parameters() if each.grad is not None]
        loss = offload(device.own(batch(1))).square().mean()
        loss.register_hook(lambda _: device.lose())
        with pytest.raises(RuntimeError, match="lost"):
            loss.backward()
        after = [each.grad for each in model.parameters() if each.grad is not None]
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            offload.close()


def test_pinned_memory_that_is_refused_in_backward_is_not_needed_without_it() -> None:
    made = Simulated()
    model = make_model()
    with Kernels(made):
        HostOffload(model, make_optimizer(model), "static:16", device=made).close()
    allocated = made.allocations["pinned"]
    device = Simulated(refused=("pinned", allocated))
    for options, works in (({}, False), ({"pin_memory": False}, True)):
        model = make_model()
        with Kernels(device):
            offload = HostOffload(model, make_optimizer(model), "static:16", device=device, **options)  # type: ignore[arg-type]
            run: Callable[[], None] = lambda offload=offload: step(offload, device, 0)  # type: ignore[misc] # noqa: E731
            if works:
                run()
            else:
                with pytest.raises(DeviceError, match="pass pin_memory=False"):
                    run()
            offload.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("gradwire")]
