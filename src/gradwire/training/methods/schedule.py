"""What a schedule of the learning rate sets, kept beside a gradient until the gradient is applied.

A pipelined gradient is applied some steps after it was computed. It takes with it the learning rate of its
own step, so that a pipeline of one is synchronous SGD bit for bit under every schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_SCHEDULED = ("lr", "momentum", "betas")  # what the schedulers of torch.optim change; no optimizer does


def scheduled(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the scheduled values of every parameter group, as they are now."""
    return [
        {name: _kept(group[name]) for name in _SCHEDULED if name in group} for group in optimizer.param_groups
    ]


@contextmanager
def in_force(values: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Put ``values`` in force within a ``with`` block; groups that were added since keep their own."""
    pairs = list(zip(optimizer.param_groups, values, strict=False))
    now = [{name: group[name] for name in old} for group, old in pairs]
    for group, old in pairs:
        group.update(old)
    try:
        yield
    finally:
        for (group, _), current in zip(pairs, now, strict=True):
            group.update(current)


def note_step(optimizer: torch.optim.Optimizer) -> None:
    """Tell the schedulers of ``torch.optim`` that a step is done.

    They warn of a scheduler that steps before its optimizer, but a pipeline's first steps have no update.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def _kept(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value  # schedulers fill tensors in place
