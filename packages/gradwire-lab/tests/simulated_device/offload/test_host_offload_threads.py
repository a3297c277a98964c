"""Threads that drive replicas: what they compute and add up is what one thread does, bit for bit.

The battery runs a script of steps twice, driven by threads and by one thread, and compares everything; where
the policy is exact, plain PyTorch computes it, too. ``GRADWIRE_OFFLOAD_STEPS`` sets how many steps it takes
with all policies together on the CPU; a tenth of them is added on simulated devices, where a missing wait is
a NaN.
"""

from __future__ import annotations

import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.devices import on_host
from gradwire.errors import SpecError
from gradwire.offload import sender
from gradwire.offload.awp import AWP
from gradwire.offload.carriers import Carrier
from gradwire.offload.host_offload import HostOffload
from gradwire.offload.policies import Oracle, Policy
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated

POLICIES: dict[str, Callable[[], Policy | str]] = {
    **{name: partial(str, name) for name in ("static:8", "static:16", "static:24", "static:32")},
    **{name: partial(str, name) for name in ("delta", "delta:fp32")},
    "oracle": lambda: Oracle({16: [(1.0, 0.5)], 8: [(2.0, 0.5)]}, accuracy=0.5),
    "awp": lambda: AWP(threshold=1.0, interval=3),
}
EXACT = ("static:32", "delta:fp32")
PLACES = 3
STEPS = math.ceil(int(os.environ.get("GRADWIRE_OFFLOAD_STEPS", "64")) / len(POLICIES))

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


class Net(nn.Module):
    """An expert for each device, so that a backward pass doesn't reach all parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.last = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        hidden = self.norm(self.first(x)).tanh()
        found: torch.Tensor = self.last(self.experts[expert % 2](hidden).tanh())
        return found


def make_model() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Net()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def part(step: int, number: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(100 * step + number))


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def values(model: nn.Module) -> list[torch.Tensor]:
    return [on_host(each).clone() for each in model.parameters()]


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [None if each.grad is None else each.grad.clone() for each in model.parameters()]


def within_backward(offload: HostOffload, place: int, call: Callable[[], Any]) -> Any:
    """Call something, in another thread, when the backward passes of a replica have come to its middle."""

    def hook(_: Any, __: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda _: in_thread(call) and None)  # type: ignore[no-untyped-call]

    return offload.replicas[place].get_submodule("norm").register_forward_hook(hook)


def in_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=30)


@pytest.fixture(autouse=True)
def _many_messages_and_switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sender, "_TOGETHER_NBYTES", 0)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Script:
    """What happens at a step, the same for whoever drives it."""

    def __init__(self, step: int, seed: str) -> None:
        found = random.Random(f"{seed} {step}")
        self.rounds = found.choice([1, 1, 2])
        self.hold = self.rounds == 2 and found.random() < 0.5
        self.held_by_main = found.random() < 0.5
        self.refresh = found.random() < 0.2
        self.write = found.choice(["", "", "all", "data", "one"])
        self.evaluate = found.random() < 0.5
        self.idle = found.choice([None, None, 0, 1, 2])  # a device without a part of this batch

    def places(self) -> list[int]:
        return [each for each in range(PLACES) if each != self.idle]

    def write_to(self, model: nn.Module) -> None:
        own = [*model.parameters()]
        with torch.no_grad():
            for each in own if self.write in ("all", "data") else own[2:3] if self.write else ():
                if self.write == "data":
                    each.data = each * 0.99
                else:
                    each.mul_(0.99)


def plain(steps: int, seed: str) -> list[Any]:
    """Train as documented: gradients of each round in the order of devices; held ones are a device's sum."""
    model = make_model()
    optimizer, found = make_optimizer(model), list[Any]()
    for step in range(steps):
        script = Script(step, seed)
        script.write_to(model)
        optimizer.zero_grad()
        held = dict[tuple[int, int], torch.Tensor]()
        for number in range(script.rounds):
            outputs = []
            for place in script.places():
                output = model(part(2 * step + number, place), place)
                outputs.append(output.detach())
                own = [*model.parameters()]
                loss = output.square().mean() / PLACES
                grads: Sequence[torch.Tensor | None] = torch.autograd.grad(loss, own, allow_unused=True)
                for index, (each, grad) in enumerate(zip(own, grads, strict=True)):
                    if grad is None:
                        continue
                    if script.hold and number == 0:
                        held[place, index] = grad
                        continue
                    grad = held.pop((place, index)) + grad if (place, index) in held else grad
                    each.grad = grad.clone() if each.grad is None else each.grad + grad
            found.append(outputs)
        found.append(gradients(model))
        optimizer.step()
        found.append(values(model))
        if script.evaluate:
            with torch.no_grad():
                found.append([model(part(2 * step, 9), place).clone() for place in (0, 1, 2, 0, 1, 2)])
    return found


def driven(
    steps: int, seed: str, policy: str, devices: Sequence[Simulated] | None, threads: bool
) -> tuple[list[Any], list[list[int]]]:
    """Do the same with HostOffload; return all that was computed, and the bits of each batch."""
    model = make_model()
    optimizer, found = make_optimizer(model), list[Any]()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2 * PLACES))
        if devices is not None:
            for each in devices:
                stack.enter_context(Kernels(each))
        names = [f"cpu:{number}" for number in range(PLACES)]
        offload = HostOffload(model, optimizer, POLICIES[policy](), device=devices or names)
        stack.callback(offload.close)

        def run(place: int, x: torch.Tensor, block: Any, train: bool) -> torch.Tensor:
            with ExitStack() as own:
                if devices is not None:
                    for each in devices:  # a thread that sends unpacks for others, too
                        own.enter_context(Kernels(each))
                    x = devices[place].own(x)
                own.enter_context(block())
                if not train:
                    with torch.no_grad():
                        return on_host(offload.replicas[place](x, place)).clone()
                output = offload.replicas[place](x, place)
                backward(output.square().mean() / PLACES)
                return on_host(output.detach()).clone()

        def together(calls: Sequence[Callable[[], torch.Tensor]]) -> list[torch.Tensor]:
            if not threads:
                return [call() for call in calls]
            start = threading.Barrier(len(calls))
            return [*pool.map(lambda call: (start.wait(30), call())[1], calls)]

        for step in range(steps):
            script = Script(step, seed)
            script.write_to(model)
            if script.refresh:
                offload.refresh()
            optimizer.zero_grad()
            for number in range(script.rounds):
                hold = script.hold and number == 0
                by_main = hold and script.held_by_main
                block = offload.no_sync if hold and not by_main else nullcontext
                with offload.no_sync() if by_main else nullcontext():
                    parts = [(place, part(2 * step + number, place)) for place in script.places()]
                    found.append(together([partial(run, *each, block, True) for each in parts]))
            found.append(gradients(model))
            optimizer.step()
            if script.evaluate:  # two threads for each replica
                x = [(place, part(2 * step, 9)) for place in (0, 1, 2, 0, 1, 2)]
                outputs = together([partial(run, *each, nullcontext, False) for each in x])
            found.append(values(model))
            if script.evaluate:
                found.append(outputs)
        return found, offload.bits_by_batch


def differences(found: Sequence[Any], wanted: Sequence[Any]) -> list[int]:
    """Return which of the lists of tensors differ."""
    assert len(found) == len(wanted)
    return [
        number
        for number, (some, others) in enumerate(zip(found, wanted, strict=True))
        if len(some) != len(others)
        or not all(
            a is b or (a is not None and b is not None and torch.equal(a, b))
            for a, b in zip(some, others, strict=True)
        )
    ]


@pytest.mark.parametrize("kind", ["cpu", "simulated"])
@pytest.mark.parametrize("policy", POLICIES)
def test_threads_train_to_the_bits_of_one_thread_and_of_plain_pytorch(policy: str, kind: str) -> None:
    steps, seed = STEPS if kind == "cpu" else max(2, STEPS // 10), f"{policy} {kind}"

    def run(threads: bool) -> tuple[list[Any], list[list[int]]]:
        devices = [Simulated() for _ in range(PLACES)] if kind == "simulated" else None
        return driven(steps, seed, policy, devices, threads)

    (found, bits), (wanted, wanted_bits) = run(True), run(False)
    assert differences(found, wanted) == []
    assert bits == wanted_bits
    if policy in EXACT:
        assert differences(found, plain(steps, seed)) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_second_thread_waits_until_weights_are_unpacked(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    offload = HostOffload(model, make_optimizer(model), POLICIES[policy](), device="cpu")
    x = part(0, 0)
    backward(offload(x, 0).sum())
    offload.optimizer.step()
    unpack, begun, second = Carrier.unpack, threading.Event(), threading.Event()

    def slow(own: Carrier, end: int) -> None:
        begun.set()
        second.wait(0.05)
        unpack(own, end)

    monkeypatch.setattr(Carrier, "unpack", slow)
    with ThreadPoolExecutor(1) as pool, torch.no_grad():
        first = pool.submit(lambda: offload(x, 0).detach())
        assert begun.wait(30)
        found = offload(x, 0)
        second.set()
        assert torch.equal(first.result(), offload(x, 0))
        assert torch.equal(found, offload(x, 0))
    offload.close()


def test_a_forward_pass_beside_anothers_backward_drops_no_gradient() -> None:
    model, expected = make_model(), make_model()
    offload = HostOffload(model, make_optimizer(model), "static:32", device=["cpu:0", "cpu:1"])
    losses = list[torch.Tensor]()

    hook = within_backward(offload, 0, lambda: losses.append(offload.replicas[1](part(0, 1), 1).sum()))
    backward(offload.replicas[0](part(0, 0), 0).sum())
    hook.remove()
    in_thread(lambda: backward(losses[0]))
    for number in range(2):
        backward(expected(part(0, number), number).sum())
    assert differences([gradients(model)], [gradients(expected)]) == []
    offload.close()


def test_a_backward_pass_that_fails_beside_another_leaves_that_one_alone() -> None:
    model, expected = make_model(), make_model()
    offload = HostOffload(model, make_optimizer(model), "static:32", device=["cpu:0", "cpu:1"])

    def failing() -> None:
        loss = offload.replicas[1](part(0, 1), 1)
        handle = offload.replicas[1].get_parameter("first.weight").register_hook(lambda _: 1 / 0)  # type: ignore[no-untyped-call]
        with pytest.raises(ZeroDivisionError):
            backward(loss.sum())
        handle.remove()

    hook = within_backward(offload, 0, failing)
    for _ in range(2):
        backward(offload.replicas[0](part(0, 0), 0).sum())
        backward(expected(part(0, 0), 0).sum())
    hook.remove()
    assert differences([gradients(model)], [gradients(expected)]) == []
    assert not offload._gradients._passes, "nobody keeps what failed"
    offload.close()


def test_an_error_is_every_threads_and_the_next_forward_pass_sends_everything() -> None:
    class Broken(AWP):
        def observe(self, norms: Sequence[float]) -> list[int]:
            if len(self.counts) and self.counts[0] == 1:
                self.counts[0] = 0
                raise ArithmeticError("no bits")
            return super().observe(norms)

    model = make_model()
    offload = HostOffload(model, make_optimizer(model), Broken(threshold=9.0, interval=9), device="cpu")
    for _ in range(2):
        backward(offload(part(0, 0), 0).sum())
        offload.optimizer.step()
    layers = offload._all[0].layers
    for _ in range(2):  # the second one is in the middle of a forward pass that has begun before
        with pytest.raises(ArithmeticError, match="no bits"):
            in_thread(lambda: offload._arrive(layers))
    found = offload(part(0, 0), 0)
    offload.refresh()
    assert torch.equal(found, offload(part(0, 0), 0))
    offload.close()


def test_blocks_without_synchronisation_are_a_threads_own() -> None:
    model, expected = make_model(), make_model()
    offload = HostOffload(model, make_optimizer(model), "static:32", device=["cpu:0", "cpu:1"])
    backward(offload.replicas[0](part(0, 0), 0).sum())  # this thread drives the first

    def beside() -> None:
        backward(offload.replicas[1](part(0, 1), 1).sum())

    with offload.no_sync():
        backward(offload.replicas[0](part(1, 0), 0).sum())
        before = gradients(model)
        in_thread(beside)
        assert differences([gradients(model)], [before]) == [0], "no block is around that one"
    backward(offload.replicas[0](part(1, 1), 1).sum())  # brings what was held there, of other experts, too
    for step, number in ((0, 0), (0, 1), (1, 0), (1, 1)):
        backward(expected(part(step, number), number).sum())
    for found, wanted in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad)
    offload.close()


def test_steps_within_backward_are_refused_to_two_threads_at_once() -> None:
    model = make_model()
    offload = HostOffload(model, make_optimizer(model), "static:32", device="cpu", step_in_backward=True)
    other = offload(part(0, 1), 1).sum()
    hook = within_backward(offload, 0, lambda: backward(other))
    loss = offload(part(0, 0), 0).sum()
    hook.remove()
    with pytest.raises(SpecError, match="backward passes from one thread at a time, got passes from two"):
        backward(loss)
    offload.optimizer.step()
    before = values(model)
    backward(offload(part(0, 0), 0).sum())
    assert not any(torch.equal(*each) for each in zip(before[:4], values(model)[:4], strict=True))
    offload.close()
