"""Rows of the experiment a2dtwp, made up: times and errors that are easy to reckon with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def row(
    policy: str,
    batch_s: float,
    errors: Sequence[float],
    unlimited_s: float | None = None,
    **figures: float,
) -> dict[str, Any]:
    """Return a training of VGG with an evaluation every 10 batches, half of them timed on each link.

    A batch takes ``batch_s`` on x86, half as long on power, and ``unlimited_s`` on a link without limit, if
    there is one.
    """
    usual = {
        "transfer_s": 0.4,
        "to_host_s": 0.2,
        "compute_s": 0.5,
        "update_s": 0.1,
        "norm_s": 0.01,
        "pack_s": 0.02,
        "packing_cpu_s": 0.03,
        "decode_s": 0.0,
        "unpack_s": 0.03,
        "exposed_s": 0.1,
        "gradient_wait_s": 0.05,
        "sent_nbytes": 4e6,
    }
    timed = 5 * len(errors)
    cycles = {
        system: {name: [value] * timed for name, value in {**usual, **figures, "batch_s": seconds}.items()}
        for system, seconds in (("x86", batch_s), ("power", batch_s / 2), ("unlimited", unlimited_s))
        if seconds is not None
    }
    return {
        "model": "vgg",
        "policy": policy,
        "parameters": 1_000_000,
        "compute_s": 0.5,
        "errors": [[10 * number, error] for number, error in enumerate(errors, 1)],
        "cycles": cycles,
        "layers": ["0", "1"],
        "sizes": [600_000, 400_000],
        "bits": [[32, 32]],
    }


EVERY = 100
"""Batches between two evaluations of a training."""
AWP_BITS = [[1, [32, 32]], [200, [8, 8]], [260, [8, 16]], [300, [16, 16]], [410, [16, 24]], [520, [24, 24]]]
"""An epoch of 200 batches in 32 bits, then switches at four batches."""


def training(
    policy: str, errors: Sequence[float], seed: int = 1, model: str = "vgg", **others: Any
) -> dict[str, Any]:
    """Return a training of two layers, the first one of which has three times as many weights."""
    bits = {"bf16": 16, "fp32": 32}.get(policy) or int(policy.partition(":")[2] or 0)
    return {
        "kind": "training",
        "model": model,
        "policy": policy,
        "seed": seed,
        "images": "cifar10",
        "errors": [[EVERY * number, error] for number, error in enumerate(errors, 1)],
        "accuracy": 1 - sum(errors[-3:]) / 3,
        "bits": AWP_BITS if policy == "awp" else [[1, [bits, bits]]],
        "layers": ["0", "1"],
        "sizes": [3, 1],
        "threshold": -1e-4 if policy == "awp" else None,
        "epoch": 200,
        **others,
    }


def longer(accuracy: float = 0.6, model: str = "vgg") -> dict[str, Any]:
    """Return a longer training in float32."""
    return {"kind": "longer", "model": model, "accuracy": accuracy}


def batch(policy: str, batch_s: float, model: str = "vgg", **figures: float) -> dict[str, Any]:
    """Return batches in full size, half as long on power as on x86; a tenth is the transfer."""
    usual = {
        "transfer_s": batch_s / 10,
        "to_host_s": 0.2,
        "compute_s": 0.5,
        "update_s": 0.1,
        "norm_s": 0.01,
        "pack_s": 0.02,
        "packing_cpu_s": 0.075,
        "decode_s": 0.0,
        "unpack_s": 0.03,
        "exposed_s": 0.1,
        "gradient_wait_s": 0.05,
        "sent_nbytes": 4e6,
    }
    cycles = {
        system: {name: [value] * 3 for name, value in {**usual, "batch_s": seconds, **figures}.items()}
        for system, seconds in (("x86", batch_s), ("power", batch_s / 2))
    }
    return {
        "kind": "batch",
        "model": model,
        "policy": policy,
        "parameters": 400,
        "sizes": [100, 300],
        "cycles": cycles,
    }
