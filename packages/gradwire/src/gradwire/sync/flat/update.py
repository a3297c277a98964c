"""The update of weights with an averaged gradient: clipping, and the hyperparameters of the gradient's step.

A pipelined gradient is applied some steps after it was computed, with the learning rate of the step that
computed the gradient. A pipeline of one is therefore synchronous SGD bit for bit, under every schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from gradwire.errors import SpecError
from gradwire.fields import named, one_of, real, rows

_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_, so that scripts keep their results
_SUMS = 1 << 16
"""The number of parallel sums; a power of two, so that halves can be added. 512 kB of sums fit a cache."""


def check_max_norm(max_norm: float | None) -> float:
    """Return ``max_norm``, or infinity for None. Raises ``SpecError`` unless it is above 0."""
    if max_norm is None:
        return math.inf
    if not isinstance(max_norm, int | float) or isinstance(max_norm, bool) or not max_norm > 0:
        raise SpecError(
            f"expected a max_norm above 0, or None for no clipping, got {max_norm!r}; pass, for example, 1.0"
        )
    return float(max_norm)


def clip(gradient: torch.Tensor, max_norm: float) -> None:
    """Scale ``gradient`` (1-D float32, in place) down to the 2-norm ``max_norm`` if its norm is larger.

    Ranks whose gradients have the same bits scale by the same factor, on any processor. A gradient whose norm
    is not finite is unchanged.
    """
    if math.isinf(max_norm):
        return
    norm = exact_order_norm(gradient)
    factor = max_norm / (norm + _EPSILON)
    if math.isfinite(norm) and factor < 1:
        gradient.mul_(factor)


def exact_order_norm(gradient: torch.Tensor) -> float:
    """Return the 2-norm of a 1-D float32 tensor, with the same bits on every machine.

    The norm's relative error is at most 2^-38 for up to 2^31 elements.

    torch's norms depend on the instruction set and on the number of threads, which change the order of
    additions. Here each operation has one possible result. The product of two float32 is exact in float64.
    Additions are elementwise, in the order of this code. Float64 addition and square root are rounded
    correctly everywhere (IEEE 754). A thread may flush subnormals to 0, but their squares are below 2^-250.
    """
    sums = torch.zeros(_SUMS, dtype=torch.float64, device=gradient.device)
    squares = torch.empty_like(sums)
    for part in torch.split(gradient, _SUMS):
        square = squares[: part.numel()].copy_(part)
        sums[: part.numel()].add_(square.mul_(square))
    while sums.numel() > 1:
        low, high = sums.chunk(2)
        sums = low + high
    return math.sqrt(sums.item())


_SCHEDULED = ("lr", "momentum", "betas")
"""The hyperparameters that the schedulers of ``torch.optim`` change, but that no optimizer changes."""
_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
"""The dtypes of hyperparameters that are tensors, in a checkpoint."""


def scheduled(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the current scheduled hyperparameters of every parameter group."""
    return [
        {name: _kept(group[name]) for name in _SCHEDULED if name in group} for group in optimizer.param_groups
    ]


def written(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return scheduled hyperparameters as JSON values: tensors with their dtype, tuples as lists."""

    def write(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
        return [write(part) for part in value] if isinstance(value, tuple | list) else value

    return {name: write(value) for name, value in group.items()}


def understood(value: object) -> Any:
    """Return a scheduled hyperparameter from its JSON value, the inverse of ``written``."""
    if isinstance(value, Mapping):
        made = named(("tensor", "dtype"), ("tensor", "dtype"))(value)
        dtype = one_of(*_DTYPES)(made["dtype"])
        return torch.tensor(_nested(made["tensor"]), dtype=getattr(torch, dtype), device="cpu")
    return _nested(value)


def _nested(value: object) -> Any:
    return rows(_nested)(value) if isinstance(value, list) else real(finite=False)(value)


@contextmanager
def in_force(values: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Set hyperparameters to ``values`` within a ``with`` block; parameter groups added later keep theirs."""
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
    """Mark the optimizer as stepped, for the schedulers of ``torch.optim``.

    A scheduler warns if it steps before its optimizer, but a pipeline's first steps have no update.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def _kept(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value  # schedulers fill tensors in place
