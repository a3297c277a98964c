from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
import torch
from torch import nn

from gradwire.devices.base import CPU
from gradwire.errors import DeviceError, SpecError
from gradwire.offload import sender as sender_module
from gradwire.offload.carriers import BitpackCarrier, Bits
from gradwire.offload.host_offload import HostOffload
from gradwire.offload.layers import Layer, OffloadLedger, layers_of
from gradwire.offload.policies import Policy, policy_of
from gradwire.offload.replicas import DeviceEnd
from gradwire.offload.sender import Sender, _split


class Recorded(Policy):
    """Gives every layer the bits that it is told, and keeps the norms; 0 bits are an error."""

    wants_norms = True

    def __init__(self) -> None:
        self.norms: list[list[float]] = []
        self.bits = 32

    def observe(self, norms: Sequence[float]) -> list[int]:
        if not self.bits:
            raise ArithmeticError("no bits")
        self.norms.append([*norms])
        return [self.bits] * len(norms)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[nn.Module, list[Layer], Recorded, Sender]]:
    """A sender of three layers, each of which has a message of its own."""
    monkeypatch.setattr(sender_module, "_TOGETHER_NBYTES", 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    layers, policy = layers_of(model, copy.deepcopy(model)), Recorded()
    own = Sender([DeviceEnd(CPU, layers)], policy, OffloadLedger())
    yield model, layers, policy, own
    own.close()


def arrived(layer: Layer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(layer.masters, layer.replicas, strict=True))


def change(model: nn.Module) -> set[nn.Parameter]:
    with torch.no_grad():
        for each in model.parameters():
            each.add_(1)
    return {*model.parameters()}


def test_layers_arrive_when_they_are_wanted(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender],
) -> None:
    model, layers, policy, sender = parts
    every = change(model)
    sender.send(layers, observe=True, full=True, only=every)
    sender.arrive(layers[1:2])
    assert [arrived(each) for each in layers] == [False, True, False]
    sender.send(layers, observe=False, full=False, only={layers[0].masters[0]})
    assert [arrived(each) for each in layers] == [True, True, True], "what was on its way comes first"
    assert sender.bits_by_batch == [[32, 32]]
    weights = [model.get_parameter(name).detach() for name in ("0.weight", "2.weight")]
    assert policy.norms == [pytest.approx([math.sqrt(float((each**2).sum())) for each in weights])]


def test_an_error_is_raised_once_and_forgotten(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender],
) -> None:
    model, layers, policy, sender = parts
    policy.bits = 0
    sender.send(layers, observe=True, full=True, only=change(model))
    with pytest.raises(ArithmeticError, match="no bits"):
        sender.arrive(layers)
    with pytest.raises(ArithmeticError, match="no bits"):
        sender.join()
    sender.give_up()
    sender.join()
    policy.bits = 32
    sender.send(layers, observe=True, full=True, only=change(model))
    sender.arrive(layers)
    assert all(map(arrived, layers))


def test_two_places_get_what_is_packed_once_when_they_want_it() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    ends = [DeviceEnd(CPU, layers_of(model, copy.deepcopy(model))) for _ in range(2)]
    policy, ledger = Recorded(), OffloadLedger()
    sender = Sender(ends, policy, ledger)
    every = change(model)
    sender.send(ends[0].layers, observe=True, full=True, only=every)
    sender.arrive(ends[1].layers)
    assert [[arrived(each) for each in end.layers] for end in ends] == [[False] * 2, [True] * 2]
    sender.arrive(ends[0].layers)
    assert all(arrived(each) for each in ends[0].layers)
    assert len(policy.norms) == 1
    assert ledger.total.sent_nbytes == 2 * sum(each.nbytes for each in model.parameters())
    sender.close()


def test_deltas_are_decoded_before_anybody_waits_for_them() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    offload = HostOffload(model, optimizer, "delta", device="cpu")
    offload.wait()
    weight, decoded_s = offload.replica.get_parameter("weight"), offload.ledger.decode_s
    before = weight.clone()
    change(model)
    optimizer.step()
    deadline = time.monotonic() + 30
    while offload.ledger.decode_s == decoded_s:
        assert time.monotonic() < deadline, "nothing is decoded until somebody waits"
        time.sleep(0.001)
    assert torch.equal(weight, before), "a forward pass may still read it"
    offload.wait()
    assert torch.equal(offload.replica.get_parameter("weight"), model.weight.bfloat16().float())
    offload.close()


def test_only_layers_whose_bits_change_are_packed_twice(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layers, policy, sender = parts
    packs = list[int]()
    pack = BitpackCarrier.pack

    def counted(own: BitpackCarrier, bits: Bits, *, full: bool) -> int:
        packs.append(*{*bits.values()})
        return pack(own, bits, full=full)

    monkeypatch.setattr(BitpackCarrier, "pack", counted)
    for bits, expected in ((32, [32, 32, 32]), (32, [32]), (16, [16, 32, 16]), (16, [32])):
        policy.bits = bits
        sender.send(layers, observe=True, full=False, only=change(model))
        sender.arrive(layers)
        kept = -1 << 32 - bits
        for layer in layers:
            for master, replica in zip(layer.masters, layer.replicas, strict=True):
                cut = master.view(torch.int32) & (kept if master.dim() > 1 else -1)
                assert torch.equal(replica.view(torch.int32), cut)
        assert packs == expected, "the normalization has no bits of its own"
        packs.clear()


@pytest.mark.parametrize("foretold", [True, False])
@pytest.mark.parametrize("refused", [True, False])
def test_a_layer_whose_bits_are_known_leaves_before_the_norms_of_others_are(
    foretold: bool, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender_module, "_TOGETHER_NBYTES", 0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2), nn.Linear(2, 2))
    layers, policy = layers_of(model, copy.deepcopy(model)), Recorded()
    if foretold:  # that the second layer with weights changes
        monkeypatch.setattr(policy, "bits_for", lambda layer, _: 16 if layer == 1 else 32)
    sender = Sender([DeviceEnd(CPU, layers)], policy, OffloadLedger())
    sender.send(layers, observe=True, full=True, only=change(model))
    sender.arrive(layers)
    seen = list[str]()

    def observe(norms: Sequence[float]) -> list[int]:
        counts = sender._ledger.layers
        seen.extend(each.name for each in layers if counts[each.name].sends == 2)
        policy.norms.append([*norms])
        if refused:
            raise ArithmeticError("no norms like these")
        return [32, 16, 32]

    monkeypatch.setattr(policy, "observe", observe)
    sender.send(layers, observe=True, full=False, only=change(model))
    if refused:
        with pytest.raises(ArithmeticError, match="no norms like these"):
            sender.arrive(layers)
        sender.give_up()
    else:
        sender.arrive(layers)
        for layer, bits in zip(layers, (32, 32, 16, 32), strict=True):
            for master, replica in zip(layer.masters, layer.replicas, strict=True):
                kept = -1 << (32 - bits if master.dim() > 1 else 0)
                assert torch.equal(replica.view(torch.int32), master.view(torch.int32) & kept)
    assert seen == (["0", "1"] if foretold else []), "those behind one that waits stay in their order"
    weights = [model.get_parameter(f"{name}.weight").detach() for name in (0, 2, 3)]
    assert policy.norms[-1] == pytest.approx([math.sqrt(float((each**2).sum())) for each in weights])
    sender.close()


def send_foretold(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send for the first time; from then on, the policy foretells 32 bits for every layer."""
    model, layers, policy, sender = parts
    sender.send(layers, observe=True, full=True, only=change(model))
    sender.arrive(layers)
    monkeypatch.setattr(policy, "bits_for", lambda *_: 32)


def test_a_copy_that_fails_early_costs_the_policy_no_batch(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layers, policy, sender = parts
    send_foretold(parts, monkeypatch)

    def fail(*_: object) -> None:
        raise DeviceError("the device is lost")

    with monkeypatch.context() as patched:
        patched.setattr(sender, "_store", fail)
        sender.send(layers, observe=True, full=False, only=change(model))
        with pytest.raises(DeviceError, match="is lost"):
            sender.arrive(layers)
    sender.give_up()
    assert len(policy.norms) == len(sender.bits_by_batch) == 2
    sender.send(layers, observe=False, full=True, only={*model.parameters()})
    sender.arrive(layers)
    assert all(map(arrived, layers))


def test_a_policy_that_foretells_other_bits_than_it_gives_is_an_error(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, layers, policy, sender = parts
    send_foretold(parts, monkeypatch)
    policy.bits = 16
    sender.send(layers, observe=True, full=False, only=change(model))
    with pytest.raises(SpecError, match=r"Recorded\.observe: expected 32 bits for layer 0, as bits_for"):
        sender.arrive(layers)
    sender.give_up()


def test_a_layer_that_is_not_sent_is_looked_at_but_not_packed(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender],
) -> None:
    model, layers, policy, sender = parts
    sender.send(layers, observe=True, full=True, only=change(model))
    sender.arrive(layers)
    sent = sender._ledger.layers["0"].sends
    sender.send(layers, observe=True, full=False, only={model.get_parameter("2.weight")})
    sender.arrive(layers)
    assert policy.norms[0] == policy.norms[1]
    assert sender._ledger.packing_cpu_s > 0
    assert sender._ledger.layers["0"].sends == sent
    assert sender._ledger.layers["2"].sends == sent + 1


@pytest.mark.parametrize("foretold", [True, False])
def test_layers_of_one_message_have_norms_and_bits_of_their_own(
    foretold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    layers, policy, ledger = layers_of(model, copy.deepcopy(model)), Recorded(), OffloadLedger()
    own, wanted, packs = Sender([DeviceEnd(CPU, layers)], policy, ledger), [32, 32], list[Bits]()
    pack = BitpackCarrier.pack

    def counted(carrier: BitpackCarrier, bits: Bits, *, full: bool) -> int:
        packs.append(bits)
        return pack(carrier, bits, full=full)

    def observe(norms: Sequence[float]) -> list[int]:
        policy.norms.append([*norms])
        return [*wanted]

    monkeypatch.setattr(BitpackCarrier, "pack", counted)
    monkeypatch.setattr(policy, "observe", observe)
    if foretold:
        monkeypatch.setattr(policy, "bits_for", lambda layer, _: wanted[layer])
    for wanted, expected in (([32, 32], 1), ([32, 16], 1), ([32, 16], 0), ([8, 16], 1)):
        own.send(layers, observe=True, full=False, only=change(model))
        own.arrive(layers)
        for layer, bits in zip(layers, (wanted[0], 32, wanted[1]), strict=True):
            for master, replica in zip(layer.masters, layer.replicas, strict=True):
                kept = -1 << (32 - bits if master.dim() > 1 else 0)
                assert torch.equal(replica.view(torch.int32), master.view(torch.int32) & kept)
        assert len(packs) == expected, "once more, if one of them changes"
        weights = [model.get_parameter(f"{name}.weight").detach() for name in (0, 2)]
        assert policy.norms[-1] == pytest.approx([math.sqrt(float((each**2).sum())) for each in weights])
        packs.clear()
    change(model)
    own.send(layers, observe=True, full=False, only={layers[0].masters[0]})
    own.arrive(layers)
    assert [arrived(each) for each in layers] == [False, False, False], "8 bits, and what was not sent"
    weights = [model.get_parameter(f"{name}.weight").detach() for name in (0, 2)]
    assert policy.norms[-1] == pytest.approx([math.sqrt(float((each**2).sum())) for each in weights])
    own.close()


@pytest.mark.parametrize("counts", [[], [9], [3, 3, 3, 3], [1, 1, 99, 1, 1], [99, 99], [0, 5, 5, 5, 0, 0]])
def test_consecutive_layers_travel_together_while_they_are_small(counts: list[int]) -> None:
    parts = [*_split(counts, 40)]
    assert [number for each in parts for number in each] == [*range(len(counts))]
    sizes = [[4 * counts[number] for number in each] for each in parts]
    assert all(sum(each) <= 40 or len(each) == 1 for each in sizes)
    assert all(sum(a) + b[0] > 40 for a, b in pairwise(sizes)), "none could join"


@pytest.mark.parametrize("policy", ["delta", "delta:fp32", "static:24"])
def test_layers_that_travel_together_are_sent_counted_and_refused_as_if_alone(policy: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.LayerNorm(40), nn.Linear(40, 20))
    ends = [DeviceEnd(CPU, layers_of(model, copy.deepcopy(model))) for _ in range(2)]
    ledger = OffloadLedger()
    sender = Sender(ends, policy_of(policy), ledger)
    assert len(sender._groups) == 1
    layers, every = ends[0].layers, change(model)
    sender.send(layers, observe=True, full=True, only=every)
    sender.arrive(layers[2:])
    sender.arrive(ends[1].layers[:1])
    change(model)
    sender.send(layers[::-1], observe=True, full=False, only={*layers[2].masters})
    for end in ends:
        sender.arrive(end.layers)
    assert [row.sends for row in ledger.layers.values()] == [2, 2, 4]
    assert [row.float32_nbytes // row.sends for row in ledger.layers.values()] == [4960, 320, 3280]
    assert ledger.layers["1"].sent_nbytes == 2 * 320
    for end in ends:
        kept = [own.detach() - int(number < 2) for number, each in enumerate(layers) for own in each.masters]
        found = [own.detach() for each in end.layers for own in each.replicas]
        for number, (master, replica) in enumerate(zip(kept, found, strict=True)):
            assert torch.allclose(master, replica, atol=1e-6, rtol=2**-8 if master.dim() > 1 else 1e-6), (
                number
            )
    sender.close()


@pytest.mark.parametrize("policy", ["delta", "static:16"])
def test_a_message_that_cannot_be_sent_lets_no_thread_wait(policy: str) -> None:
    model = nn.Linear(4, 4)
    layers = layers_of(model, copy.deepcopy(model))
    sender = Sender([DeviceEnd(CPU, layers)], policy_of(policy), OffloadLedger())
    sender.close()
    with pytest.raises(RuntimeError, match="after shutdown"):
        sender.send(layers, observe=True, full=True, only={*model.parameters()})
    with pytest.raises(RuntimeError, match="after shutdown"):
        sender.arrive(layers)


def test_what_is_sent_in_full_replaces_what_failed(
    parts: tuple[nn.Module, list[Layer], Recorded, Sender],
) -> None:
    model, layers, policy, sender = parts
    policy.bits = 0
    sender.send(layers, observe=True, full=True, only=change(model))
    policy.bits = 32
    sender.send(layers, observe=True, full=True, only=change(model))
    sender.arrive(layers)
    assert all(map(arrived, layers))
