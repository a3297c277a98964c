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
        "bits": [[8, 8]] * 10 + [[8, 16]] * 10 if policy == "awp" else [[32, 32]],
        "norms": [],
        "threshold": 0.001 if policy == "awp" else None,
    }
