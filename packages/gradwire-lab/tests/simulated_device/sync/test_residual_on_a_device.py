"""Residuals beside gradients that are encoded on a device."""

from __future__ import annotations

from typing import Any

import torch

from gradwire.codecs import parse
from gradwire.devices import CPU, device_of
from gradwire.plan import Plan
from gradwire.sync.bucket.residual import Residuals
from gradwire_lab.simulated_device.simulated import Simulated


def state(**values: list[float]) -> dict[str, Any]:
    """Return a state with these residuals."""
    tensors = {key: torch.tensor(content) for key, content in values.items()}
    return {"rank": 0, "world": 1, "residuals": tensors}


def contents(residuals: Residuals) -> dict[str, list[float]]:
    return {key: tensor.tolist() for key, tensor in residuals.state_dict()["residuals"].items()}


def test_a_residual_is_where_its_gradient_is_encoded() -> None:
    plan, device = Plan(parse("topk:0.2"), encode_on="device"), Simulated()
    gradient = device.zeros(2)
    residuals = Residuals(plan, 0, 1)
    residuals.load_state_dict(state(a=[1.0, 2.0], b=[3.0]))
    kept = residuals.of("a", 2, gradient)
    assert kept is not None
    assert device_of(kept) is device
    assert residuals.of("a", 2, gradient) is kept
    assert kept.isnan().all(), "the copy has taken effect, and nobody has waited"
    residuals.scale(2.0)
    assert contents(residuals) == {"a": [2.0, 4.0], "b": [6.0]}
    residuals.load_state_dict(state(b=[5.0]))
    assert contents(residuals) == {"a": [0.0, 0.0], "b": [5.0]}
    assert residuals.of("a", 2, gradient) is kept


def test_a_residual_is_on_the_host_where_its_gradient_is_encoded_there() -> None:
    kept = Residuals(Plan(parse("topk:0.2")), 0, 1).of("a", 2, Simulated().zeros(2))
    assert kept is not None
    assert device_of(kept) is CPU
