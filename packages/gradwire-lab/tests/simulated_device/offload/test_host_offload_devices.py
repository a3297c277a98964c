"""Several devices, layers that live on one, and options of the host: the bits are those of plain training."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.devices import device_of, on_host
from gradwire.errors import SpecError, StateError
from gradwire.offload.host_offload import HostOffload
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated
from support.noise import likely, undisturbed

STEPS, PARTS = 5, 4


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 2)
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def part(step: int, number: int) -> torch.Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(PARTS * step + number))


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def values(model: nn.Module) -> list[torch.Tensor]:
    return [on_host(each).clone() for each in model.parameters()]


def same(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def plain(steps: int = STEPS) -> list[torch.Tensor]:
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(PARTS):
            backward(model(part(step, number)).square().mean() / PARTS)
        optimizer.step()
    return values(model)


@contextmanager
def offloaded(
    devices: Sequence[Simulated], policy: str = "static:32", **options: Any
) -> Iterator[HostOffload]:
    model = make_model()
    with ExitStack() as stack:
        for each in devices:
            if not each.prompt:
                stack.enter_context(Kernels(each))
        offload = HostOffload(model, make_optimizer(model), policy, device=devices, **options)
        stack.callback(offload.close)
        yield offload


def parts_of(offload: HostOffload) -> dict[str, Any]:
    return {"model": offload.model, "optimizer": offload.optimizer, "offload": offload}


def run(offload: HostOffload, devices: Sequence[Simulated], steps: Sequence[int]) -> None:
    """Give the parts of a batch to the devices in turn."""
    for step in steps:
        offload.optimizer.zero_grad()
        for number in range(PARTS):
            place = number % len(devices)
            x = devices[place].own(part(step, number))
            backward(offload.replicas[place](x).square().mean() / PARTS)
        offload.optimizer.step()


@pytest.mark.parametrize("policy", ["static:32", "delta:fp32"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_any_number_of_devices_trains_to_the_bits_of_one_cpu(count: int, policy: str) -> None:
    devices = [Simulated() for _ in range(count)]
    with offloaded(devices, policy) as offload:
        run(offload, devices, range(STEPS))
        assert same(values(offload.model), plain())
        offload.wait()
        for replica in offload.replicas:
            assert same(values(replica), values(offload.model))


def test_what_is_packed_once_goes_to_each_device() -> None:
    devices = [Simulated() for _ in range(3)]
    with offloaded(devices, "static:8") as offload:
        offload.wait()
        for row in offload.ledger.layers.values():
            assert row.sends == 3
        assert len(offload.bits_by_batch) == 1
        assert same(values(offload.replicas[1]), values(offload.replicas[0]))


@pytest.mark.parametrize("policy", ["static:16", "delta"])
def test_a_run_goes_on_with_another_number_of_devices_bit_for_bit(policy: str) -> None:
    saved, found = dict[str, Any](), []
    for counts in ((2, 2), (1, 4), (4, 2)):
        for half, count in enumerate(counts):
            devices = [Simulated() for _ in range(count)]
            with offloaded(devices, policy) as offload:
                parts = parts_of(offload)
                if half:
                    for name, each in parts.items():
                        each.load_state_dict(saved[name])
                run(offload, devices, range(half * 2, half * 2 + 2))
                saved = copy.deepcopy({name: each.state_dict() for name, each in parts.items()})
                last = values(offload.model)
        found.append(last)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.0])
def test_layers_on_the_device_train_to_the_same_bits_and_do_not_travel(fraction: float) -> None:
    device = Simulated()
    with offloaded([device], fraction=fraction) as offload:
        run(offload, [device], range(STEPS))
        resident = [each for each in offload.model.parameters() if device_of(each) is device]
        assert len(resident) == {1.0: 0, 0.5: 4, 0.0: 8}[fraction]
        for each in resident:
            assert device_of(offload.optimizer.state[each]["exp_avg"]) is device
        assert same(values(offload.model), plain())
        offload.wait()
        assert same(values(offload.replica), plain())
        assert list(offload.ledger.layers) == {1.0: ["0", "2", "3", "5"], 0.5: ["3", "5"], 0.0: []}[fraction]
        model = offload.model
    assert not any(device_of(each) is device for each in model.parameters())
    assert same(values(model), plain())


def test_a_run_with_layers_on_the_device_goes_on_bit_for_bit() -> None:
    device, saved = Simulated(), dict[str, Any]()
    for steps in (range(2), range(2, STEPS)):
        with offloaded([device], fraction=0.6) as offload:
            parts = parts_of(offload)
            if saved:
                for name, each in parts.items():
                    each.load_state_dict(saved[name])
            run(offload, [device], steps)
            model = {name: on_host(each).clone() for name, each in offload.model.state_dict().items()}
            saved = {"model": model, "offload": offload.state_dict()}
        saved["optimizer"] = copy.deepcopy(offload.optimizer.state_dict())
    assert same([saved["model"][name] for name, _ in make_model().named_parameters()], plain())


def test_options_of_the_host_leave_the_bits_alone() -> None:
    device = Simulated()
    with offloaded([device], pin_memory=False, threads=1) as offload:
        run(offload, [device], range(STEPS))
        assert same(values(offload.model), plain())
        assert not device.allocations["pinned"]


def losses_of(offload: HostOffload, devices: Sequence[Simulated], step: int) -> Iterator[torch.Tensor]:
    for number, (device, replica) in enumerate(zip(devices, offload.replicas, strict=True)):
        yield replica(device.own(part(step, number))).square().mean() / PARTS


def test_one_backward_pass_over_all_losses_has_the_bits_of_one_after_the_other() -> None:
    devices = [Simulated() for _ in range(PARTS)]
    with offloaded(devices) as offload:
        for number in range(STEPS):
            offload.optimizer.zero_grad()
            torch.autograd.backward([*losses_of(offload, devices, number)])
            offload.optimizer.step()
        assert same(values(offload.model), plain())


@pytest.mark.parametrize("way", ["one backward pass", "threads"])
def test_copies_of_several_devices_take_the_time_of_one(way: str) -> None:
    rate, count = 2.7e3, PARTS  # so that the gradients of one device take a quarter of a second

    def step_s(way: str) -> tuple[float, float]:
        """Return the seconds of a step, and those that one device's gradients take on its link."""
        devices = [Simulated(prompt=True) for _ in range(count)]
        with offloaded(devices) as offload, ThreadPoolExecutor(count) as pool:
            torch.autograd.backward([*losses_of(offload, devices, 0)])  # with weights that came at once
            returned = offload.ledger.total.gradient_nbytes / count
            for each in devices:
                each.pace(None, rate)
            begin = time.perf_counter()
            losses = losses_of(offload, devices, 1)
            if way == "loop":
                for loss in losses:
                    backward(loss)
            elif way == "threads":
                list(pool.map(backward, losses))
            else:
                torch.autograd.backward([*losses])
            return time.perf_counter() - begin, returned / rate

    def attempt() -> None:
        together_s, link_s = step_s(way)
        assert together_s >= link_s
        likely(together_s < count / 2 * link_s, way, together_s, link_s)

    undisturbed(attempt)
    loop_s, link_s = step_s("loop")
    assert loop_s >= count * link_s, "each backward pass waits for its gradients"


def test_what_does_not_go_together_is_refused() -> None:
    model, devices = make_model(), [Simulated(), Simulated()]
    for options in ({"device": devices}, {"device": devices[0], "fraction": 0.5}):
        with pytest.raises(
            SpecError, match="step_in_backward=True: expected one device and all layers on the host"
        ):
            HostOffload(model, make_optimizer(model), "static:8", step_in_backward=True, **options)
    with pytest.raises(SpecError, match="fraction: expected one device, got 2"):
        HostOffload(model, make_optimizer(model), "static:8", device=devices, fraction=0.5)
    with offloaded([devices[0]], fraction=0.6) as offload:
        state = offload.state_dict()
    with offloaded([devices[0]]) as offload, pytest.raises(StateError, match="expected a list of 3 for bits"):
        offload.load_state_dict(state | {"bits": [32]})
