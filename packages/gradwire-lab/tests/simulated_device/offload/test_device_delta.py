"""Deltas that a device applies: a simulated one, whose kernels Triton interprets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradwire.devices import on_host
from gradwire.entropy import DeltaEncoder
from gradwire.errors import PayloadError, VersionError
from gradwire.offload.carriers import DeviceDeltaDecoder
from gradwire_lab.simulated_device.simulated import Simulated
from support import gpu_cases


def carried(device: Simulated, payload: torch.Tensor) -> torch.Tensor:
    return device.own(payload.clone())


def check_all() -> None:
    check_weights_and_versions()
    check_refusals()


def check_weights_and_versions() -> None:
    device, masters = Simulated(), gpu_cases.gradients_of_layers(400)
    encoder, decoder = DeltaEncoder(masters), DeviceDeltaDecoder()
    weights = device.own(torch.zeros(400, dtype=torch.bfloat16))
    for version in range(1, 4):
        payload = encoder.encode(masters, version, checked=version == 3)
        assert decoder.apply(carried(device, payload), payload, weights) == decoder.version == version
        if version < 3:  # a hash has waited for the words
            assert bool((weights.view(torch.int16) == -1).all()), "no kernel has been waited for"
        found = on_host(weights)
        assert torch.equal(found.view(torch.int16), masters.bfloat16().view(torch.int16))
        masters = masters * (1 + 2**-8)


def check_refusals() -> None:
    device, masters = Simulated(), gpu_cases.gradients_of_layers(400)
    encoder, decoder = DeltaEncoder(masters), DeviceDeltaDecoder()
    weights = device.own(torch.zeros(400, dtype=torch.bfloat16))
    full, delta = (
        encoder.encode(masters * scale, version).clone() for version, scale in ((1, 1.0), (2, 1.5))
    )
    assert refused(decoder, device, delta, weights, VersionError) == "send a full copy"
    decoder.apply(carried(device, full), full, weights)
    before = on_host(weights)
    broken = delta.clone()
    broken[28 + 16] = 9  # a mode of a block
    decoder.apply(carried(device, broken), broken, weights)
    assert torch.equal(on_host(weights).view(torch.int16), before.view(torch.int16))
    third = encoder.encode(masters, 3).clone()
    assert refused(decoder, device, third, weights, PayloadError) == "send a full copy"
    assert refused(decoder, device, third, weights, VersionError) == "send a full copy"
    full = encoder.encode(masters, 4, full=True).clone()
    assert decoder.apply(carried(device, full), full, weights) == 4
    assert torch.equal(on_host(weights).view(torch.int16), masters.bfloat16().view(torch.int16))


def refused(
    decoder: DeviceDeltaDecoder,
    device: Simulated,
    payload: torch.Tensor,
    weights: torch.Tensor,
    kind: type[Exception],
) -> str:
    """Return what the error says to do."""
    try:
        decoder.apply(carried(device, payload), payload, weights)
    except kind as error:
        return str(error).rpartition("; ")[2]
    return "nothing was refused"


def test_a_device_applies_what_the_host_announces(interpreted: Callable[..., Any]) -> None:
    interpreted(check_all)
