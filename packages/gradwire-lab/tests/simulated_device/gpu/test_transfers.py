"""Chunks of a simulated device: encoded before they cross the bus, with one event a payload."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from gradwire.codecs import TABLE, Codec, parse
from gradwire.devices import on_host
from gradwire.errors import MissingPackageError, PayloadError, TensorError
from gradwire.gpu.table import PLACES, format_of
from gradwire_lab.simulated_device.simulated import Simulated
from support import gpu_cases

SPECS = [
    row.codec.EXAMPLES[0]
    for row in TABLE
    if getattr(parse(row.codec.EXAMPLES[0]), "compiled", ("",))[0] in PLACES
]


def check_codec(spec: str) -> None:
    codec, x, acc = parse(spec), gpu_cases.gradients_of_layers(700), gpu_cases.gradient(700)
    device = Simulated()
    wanted = codec.encode(x)
    payload = codec.encode(device.own(x.clone()))
    assert payload.tolist() == wanted.tolist()
    assert device.waits == {"wait": 1}, "an event for the payload, and nothing else"
    expected, here = acc.clone(), device.own(acc.clone())
    codec.decode_add(wanted, expected)
    codec.decode_add(payload, here)
    gpu_cases.assert_same_bits(on_host(here), expected, spec)
    codec.decode(wanted, expected)
    codec.decode(payload, here)
    gpu_cases.assert_same_bits(on_host(here), expected, spec)
    check_waits(codec, x, wanted)
    check_malformed(codec, x, wanted)


def check_waits(codec: Codec, x: torch.Tensor, wanted: torch.Tensor) -> None:
    """Without its one wait, an encoding is poison, and a decoding can't say that all is well."""
    device = Simulated(without=("wait", 0))
    with suppress(OverflowError, RuntimeError, IndexError):  # a size that is poison
        assert codec.encode(device.own(x.clone())).tolist() != wanted.tolist()
    device = Simulated(without=("wait", 0))
    with pytest.raises((PayloadError, IndexError)):
        codec.decode(wanted, device.own(x.clone()))


def check_malformed(codec: Codec, x: torch.Tensor, valid: torch.Tensor) -> None:
    device = Simulated()
    here = device.own(x.clone())
    with pytest.raises(PayloadError, match="use the same codec on all ranks"):
        codec.decode(valid[:-1], here)
    gpu_cases.assert_same_bits(on_host(here), x, "a refused payload")
    with pytest.raises(
        TensorError, match=r"a 1-D contiguous torch.float32 tensor .* for x, got a torch.float64"
    ):
        codec.encode(device.own(x.double()))


@pytest.mark.parametrize("spec", SPECS)
def test_chunks_of_a_device_cross_the_bus_encoded(interpreted: Callable[..., Any], spec: str) -> None:
    interpreted(check_codec, spec)


def test_without_triton_one_sentence_names_the_host_s_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradwire.gpu.cast", None)
    x = Simulated().own(torch.zeros(4))
    format_of.cache_clear()
    with pytest.raises(MissingPackageError, match=r"needs the package triton.*or encode on the host"):
        parse("bf16").encode(x)
