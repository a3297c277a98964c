"""HostOffload against plain training on the CPU, on a device that is as late as a device may be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.devices import on_host
from gradwire.errors import SpecError, StateError, TensorError, VersionError
from gradwire.offload import sender
from gradwire.offload.awp import AWP
from gradwire.offload.host_offload import HostOffload
from gradwire.offload.policies import Policy
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated

Optimizers = Callable[[nn.Module], torch.optim.Optimizer]
STEPS = 6
OPTIMIZERS: dict[str, Optimizers] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.05),
}


class Net(nn.Module):
    """Buffers, a shared weight, attention that reads a weight of a module it doesn't call, a frozen layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight
        self.unreached = nn.Parameter(torch.ones(3, 2))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        mixed, _ = self.attention(hidden, hidden, hidden, need_weights=False)
        mixed = self.norm(mixed.transpose(1, 2)).transpose(1, 2)
        logits: torch.Tensor = self.head(self.frozen(hidden + mixed).tanh())
        return logits


def make_model() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Net()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return tuple(torch.randint(9, (4, 5), generator=generator) for _ in range(2))  # type: ignore[return-value]


def backward(loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def loss_of(run: Callable[..., torch.Tensor], step: int, device: Simulated | None) -> torch.Tensor:
    x, y = batch(step)
    if device is not None:
        x, y = device.own(x), device.own(y)
    return nn.functional.cross_entropy(run(x).flatten(0, 1), y.flatten())


@contextmanager
def offloaded(
    policy: Policy | str, device: Simulated | None, make: Optimizers = OPTIMIZERS["SGD"], **options: Any
) -> Iterator[HostOffload]:
    model = make_model()
    with nullcontext() if device is None else Kernels(device):
        offload = HostOffload(model, make(model), policy, device=device or "cpu", **options)
        try:
            yield offload
        finally:
            offload.close()


def step(offload: HostOffload, number: int, device: Simulated | None, max_norm: float | None = None) -> None:
    offload.optimizer.zero_grad()
    backward(loss_of(offload, number, device))
    if max_norm is not None:
        nn.utils.clip_grad_norm_(offload.model.parameters(), max_norm)
    offload.optimizer.step()


def plain(make: Optimizers, max_norm: float | None = None) -> list[torch.Tensor]:
    model = make_model()
    optimizer = make(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for number in range(STEPS):
        optimizer.zero_grad()
        backward(loss_of(model, number, None))
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        schedule.step()
    return values(model)


def weight(model: nn.Module) -> torch.Tensor:
    return model.get_parameter("embed.weight")


def values(model: nn.Module) -> list[torch.Tensor]:
    return [each.clone() for each in model.state_dict().values()]


def pairs(offload: HostOffload) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the replica's parameters, on the host, beside the masters."""
    replicas = [on_host(each) for each in offload.replica.parameters()]
    return [*zip(replicas, (each.detach() for each in offload.model.parameters()), strict=True)]


def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


DEVICES = pytest.mark.parametrize("device", [lambda: None, Simulated], ids=["cpu", "simulated"])


@DEVICES
@pytest.mark.parametrize("policy", ["static:32", "delta:fp32"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_without_loss_it_trains_to_the_bits_of_the_cpu(
    make: Optimizers, policy: str, device: Callable[[], Simulated | None]
) -> None:
    there = device()
    for max_norm in (None, 0.1):
        with offloaded(policy, there, make) as offload:
            schedule = torch.optim.lr_scheduler.ExponentialLR(offload.optimizer, 0.9)
            for number in range(STEPS):
                step(offload, number, there, max_norm)
                schedule.step()
            assert same(values(offload.model), plain(make, max_norm))


@DEVICES
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_steps_within_backward_have_the_same_bits(
    make: Optimizers, device: Callable[[], Simulated | None]
) -> None:
    there = device()
    with offloaded("static:32", there, make, step_in_backward=True) as offload:
        schedule = torch.optim.lr_scheduler.ExponentialLR(offload.optimizer, 0.9)
        for number in range(STEPS):
            step(offload, number, there)
            assert all(each.grad is None for each in offload.model.parameters())
            schedule.step()
        assert same(values(offload.model), plain(make))
        assert len(offload.bits_by_batch) == STEPS + 1
        backward(loss_of(offload, 0, there))
        with pytest.raises(SpecError, match=r"expected optimizer.step\(\) after each backward pass"):
            backward(loss_of(offload, 0, there))


@DEVICES
@pytest.mark.parametrize("bits", [8, 16, 24])
def test_the_device_has_the_upper_bytes_of_the_masters_and_biases_as_they_are(
    bits: int, device: Callable[[], Simulated | None]
) -> None:
    there = device()
    with offloaded(f"static:{bits}", there) as offload:
        for number in range(2):
            step(offload, number, there)
            offload.wait()
            for own, master in pairs(offload):
                kept = -1 << 32 - (bits if master.dim() > 1 else 32)
                assert torch.equal(own.view(torch.int32), master.view(torch.int32) & kept)


@DEVICES
def test_with_deltas_the_device_has_the_rounded_masters_after_every_step(
    device: Callable[[], Simulated | None],
) -> None:
    there = device()
    with offloaded("delta", there) as offload:
        for number in range(STEPS):
            step(offload, number, there)
            offload.wait()
            for own, master in pairs(offload):
                rounded = master.bfloat16().float() if master.dim() > 1 else master
                assert torch.equal(own, rounded)
        assert offload.bits_by_batch == [[16] * len(offload.layer_names)] * (STEPS + 1)


@pytest.mark.parametrize("messages", [2, 1])
def test_it_needs_each_of_its_waits(messages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_TOGETHER_NBYTES", 1 << 20 if messages == 1 else 0)
    x, y = torch.randn(6, 5), torch.randn(6, 2)

    def trained(device: Simulated) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
        with Kernels(device):
            offload = HostOffload(model, OPTIMIZERS["SGD"](model), "static:16", device=device)
            for _ in range(3):
                loss = nn.functional.mse_loss(offload(device.own(x.clone())), device.own(y.clone()))
                offload.optimizer.zero_grad()
                backward(loss)
                offload.optimizer.step()
            offload.close()
        return values(model)

    complete = Simulated()
    expected = trained(complete)
    needed = {
        (kind, number)
        for kind, count in complete.waits.items()
        for number in range(count)
        if not same(trained(Simulated(without=(kind, number))), expected)
    }
    # Each backward pass has four gradients. A stream's last copy has ended after those before it, and the two
    # gradients of a layer are computed together. What is sent then waits for nothing that hasn't ended.
    follows = {("follow", first + number) for first in (1, 6, 11) for number in (0, 2)}
    last = {("wait", 3 + number * (4 + messages)) for number in range(3)}
    assert needed == {("order", n) for n in range(3 * messages)} | last | follows


def test_weights_are_not_sent_while_the_device_unpacks_those_before() -> None:
    def found(device: Simulated, without: int | None = None) -> bool:
        with offloaded("static:16", device) as offload:
            offload.wait()
            offload.refresh()
            device.waits.clear()
            device.without = None if without is None else ("follow", without)
            offload.wait()
            device.synchronize()
            return bool(on_host(weight(offload.replica)).isnan().any())

    assert not found(Simulated())
    assert found(Simulated(), 0)


def test_gradients_accumulate_on_either_side() -> None:
    def gradients(held: bool, device: Simulated) -> list[torch.Tensor]:
        with offloaded("static:32", device) as offload:
            with offload.no_sync() if held else nullcontext():
                backward(loss_of(offload, 0, device))
                assert held == all(each.grad is None for each in offload.model.parameters())
            backward(loss_of(offload, 1, device))
            found = [each.grad for each in offload.model.parameters()]
            assert offload.ledger.total.sends == 6
            return [each.clone() for each in found if each is not None]

    model = make_model()
    for number in range(2):
        backward(loss_of(model, number, None))
    expected = [each.grad for each in model.parameters() if each.grad is not None]
    for held in (False, True):
        assert same(gradients(held, Simulated()), expected)


@pytest.mark.parametrize("policy", ["static:16", "delta", "awp"])
def test_an_interrupted_run_goes_on_bit_for_bit(policy: str) -> None:
    def chosen() -> Policy | str:
        return AWP(threshold=0.0, interval=2) if policy == "awp" else policy

    def parts(offload: HostOffload) -> dict[str, Any]:
        return {"model": offload.model, "optimizer": offload.optimizer, "offload": offload}

    there, saved = Simulated(), dict[str, Any]()
    with offloaded(chosen(), there) as offload:
        for number in range(STEPS):
            if number == STEPS // 2:
                saved = copy.deepcopy({name: each.state_dict() for name, each in parts(offload).items()})
            step(offload, number, there)
        expected, bits = values(offload.model), offload.bits_by_batch
    there = Simulated()
    with offloaded(chosen(), there) as offload:
        loss_of(offload, 7, there)
        for name, each in parts(offload).items():
            each.load_state_dict(saved[name])
        for number in range(STEPS // 2, STEPS):
            step(offload, number, there)
        assert same(values(offload.model), expected)
        assert offload.bits_by_batch[-1] == bits[-1]
    assert set(saved["model"]) == set(make_model().state_dict())
    if policy == "awp":
        assert bits[0] != bits[-1]


def test_awp_sees_every_batch_and_its_bits_travel() -> None:
    policy = AWP(threshold=1.0, interval=2)
    with offloaded(policy, None) as offload:
        for number in range(STEPS):
            step(offload, number, None)
        offload.wait()
        layers = len(offload.layer_names)
        assert offload.bits_by_batch == [[bits] * layers for bits in (8, 8, 16, 16, 24, 24, 32)]
        assert offload.layer_names == ["", "embed", "attention", "attention.out_proj", "frozen"]
        frozen, embed = offload.ledger.layers["frozen"], offload.ledger.layers["embed"]
        assert (frozen.sends, frozen.gradient_nbytes) == (1, 0), "what no step changes travels once"
        assert (embed.sends, embed.gradient_nbytes) == (STEPS + 1, STEPS * 4 * 72)
        packed = [-(-72 * bits // 8) + (bits == 8) for bits in (8, 8, 16, 16, 24, 24, 32)]
        assert (embed.sent_nbytes, embed.float32_nbytes) == (sum(packed), 7 * 4 * 72)
        assert offload.ledger.ratio > 1


def test_blocks_are_one_layer_for_the_policy() -> None:
    with offloaded(AWP(threshold=0.0, interval=1), None, blocks=["attention"]) as offload:
        step(offload, 0, None)
        assert offload.layer_names == ["", "embed", "attention", "frozen"]


def test_a_paced_link_takes_its_time_and_the_ledger_measures_it() -> None:
    device = Simulated(nbytes_per_s=1e5)
    with offloaded("static:32", device, timed=True) as offload:
        step(offload, 0, device)
        offload.wait()
        offload.state_dict()
        assert offload.ledger.transfer_s >= offload.ledger.total.sent_nbytes / 1e5


def test_what_was_changed_by_hand_is_sent() -> None:
    with offloaded("static:32", None) as offload:
        step(offload, 0, None)
        with torch.no_grad():
            weight(offload.model).fill_(2)
        offload.refresh()
        offload.eval()
        offload(batch(0)[0])
        assert (weight(offload.replica) - 2).norm().item() == 0
        assert not offload.model.training


def test_after_an_error_everything_is_sent_again() -> None:
    with offloaded("delta", None) as offload:
        step(offload, 0, None)
        offload.wait()  # what is under way has been decoded
        parts = [(each, part) for each in offload._sender._groups for part in each.layers]
        route, embed = next((route, part) for route, part in parts if part.layer.name == "embed")
        route.carrier._receivers[0].decoders[embed.masters.start].version = 99  # type: ignore[attr-defined]
        step(offload, 1, None)
        with pytest.raises(VersionError, match="send a full copy"):
            offload.wait()
        offload.wait()
        assert torch.equal(weight(offload.replica), weight(offload.model).bfloat16().float())

        class Stop(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x.register_hook(self.fail)  # type: ignore[no-untyped-call]
                return x

            def fail(self, _: torch.Tensor) -> None:
                raise ValueError("stop")

        before = values(offload.model)
        with pytest.raises(ValueError, match="stop"):
            backward(Stop()(offload(batch(0)[0])).sum())
        assert same(values(offload.model)[:3], before[:3])
        step(offload, 1, None)


def test_an_error_of_the_policy_reaches_the_training_thread() -> None:
    class Broken(AWP):
        def observe(self, norms: Any) -> list[int]:
            raise ArithmeticError(f"{len(norms)} norms")

    with offloaded(Broken(threshold=0.0, interval=1), None) as offload:
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="5 norms"):
                offload(batch(0)[0])


def test_mistakes_are_one_sentence_and_leave_the_model_alone() -> None:
    model, other = make_model(), make_model()
    sgd = OPTIMIZERS["SGD"]
    with pytest.raises(SpecError, match="expected a policy such as 'static:8'"):
        HostOffload(model, sgd(model), "static:9")
    with pytest.raises(
        SpecError, match=r"of another model, of shape \(3, 2\); create the optimizer from model"
    ):
        HostOffload(model, sgd(other), "delta")
    with pytest.raises(TensorError, match="expected master weights on the host, got weight on meta"):
        HostOffload(nn.Linear(1, 1, device="meta"), sgd(other), "delta")
    with pytest.raises(SpecError, match="the replica cannot be moved to the device 'abacus'"):
        HostOffload(model, sgd(model), "delta", device="abacus")
    with pytest.raises(SpecError, match="got 'layer9'"):
        HostOffload(model, sgd(model), "delta", device="cpu", blocks=["layer9"])
    assert not model._forward_pre_hooks
    assert not model._state_dict_pre_hooks


def test_a_state_of_another_model_is_refused() -> None:
    with offloaded("static:8", None) as offload:
        step(offload, 0, None)
        with pytest.raises(StateError, match=r"expected .* in the state of a HostOffload, got"):
            offload.load_state_dict({"version": 1, "bits": [8], "policy": {}})
        with pytest.raises(StateError, match=r"expected .* in the state of a HostOffload, got"):
            offload.load_state_dict({"bits": [8] * 5})
