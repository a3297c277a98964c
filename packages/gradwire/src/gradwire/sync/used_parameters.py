"""The parameters that a step's backward passes use, on this rank and on any rank.

The rule is that of DDP with ``find_unused_parameters``. If some ranks use a parameter, the other ranks'
gradients count as 0 in its average. If no rank uses the parameter, it has no gradient, so no optimizer
changes it.

The ranks need no exchange for this in most steps. The average of a parameter that no rank has used is 0,
because every codec decodes zeros to zeros, and averages have the same bits on all ranks. So all ranks see the
same candidates: the parameters with an average of 0. They exchange one number for each candidate, if there
are any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradwire.costs import ExchangeCost
from gradwire.errors import SpecError, TensorError, shown
from gradwire.exchange import Exchange
from gradwire.fields import named, one_of, real, rows
from gradwire.plan import Plan
from gradwire.sync.flat import FlatGradients


class Reach:
    """The unused parameters of one step, created after backward and complete once ``agree`` has returned.

    ``gradients`` has the step's collected gradients. ``unused`` has the numbers of the parameters that this
    rank has not used. ``absent`` has the numbers of the parameters that no rank has used, and is empty before
    ``agree``. A checkpoint may hold both.
    """

    def __init__(
        self, gradients: FlatGradients, unused: Iterable[int] | None = None, absent: Iterable[int] = ()
    ) -> None:
        self._gradients = gradients
        self.own = frozenset(gradients.unreached() if unused is None else unused)
        self.absent = frozenset(absent)

    def parts(
        self, residual: torch.Tensor | None, numbers: Iterable[int] | None = None
    ) -> list[torch.Tensor]:
        """Return the parts of a flat residual for the unused parameters.

        With ``numbers``, only these parameters are considered.
        """
        if residual is None:
            return []
        among = self.own if numbers is None else self.own.intersection(numbers)
        return [self._gradients.part(each, residual) for each in sorted(among)]

    def agree(self, exchange: Exchange) -> ExchangeCost:
        """Set ``absent`` by an exchange, once the whole gradient is averaged, and return the cost.

        All ranks call this at the same place between their exchanges. Raises ``ExchangeError``.
        """
        asked = self._gradients.silent()
        if not asked:
            return ExchangeCost()
        reached = self.told(asked)
        accounting = Exchange(exchange.link, Plan()).all_reduce(reached, average=False)
        self._hear(asked, reached)
        return _overhead(accounting)

    def send_up(self, exchange: Exchange) -> ExchangeCost:
        """Count each parameter's users at rank 0, by the reduce half of a star.

        ``absent`` is valid only on rank 0.
        """
        every = range(len(self._gradients.parameters))
        reached = self.told(every)
        accounting = Exchange(exchange.link, Plan(algorithm="star")).reduce(reached)
        self._hear(every, reached)
        return _overhead(accounting)

    def agree_on_all(self, exchange: Exchange, beside: torch.Tensor) -> ExchangeCost:
        """Set ``absent`` by an exchange over all parameters, for ranks that hold only some of the averages.

        ``beside``, 1-D float32 on the CPU, is replaced by its sum over all ranks in the same exchange.
        """
        every = range(len(self._gradients.parameters))
        told = torch.cat([beside, self.told(every)])
        accounting = Exchange(exchange.link, Plan()).all_reduce(told, average=False)
        beside.copy_(told[: beside.numel()])
        self._hear(every, told[beside.numel() :])
        return _overhead(accounting)

    def told(self, asked: Sequence[int]) -> torch.Tensor:
        """Return 1 for each of these parameters that this rank has used and 0 for the others, as float32."""
        return torch.tensor(
            [float(each not in self.own) for each in asked], dtype=torch.float32, device="cpu"
        )

    def _hear(self, asked: Sequence[int], reached: torch.Tensor) -> None:
        self.absent = frozenset(
            each for each, count in zip(asked, reached.tolist(), strict=True) if count == 0
        )


def _overhead(accounting: ExchangeCost) -> ExchangeCost:
    """Set ``raw_nbytes`` to 0, because the exchange carried no gradients, and return ``accounting``."""
    accounting.raw_nbytes = 0
    return accounting


# Clip the averaged gradient by its global norm, with the same bits on every rank.

_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_, so that scripts keep their results
_LANES = 1 << 16
"""The number of parallel sums: 512 kB, which fits a cache.

It is a power of two, so that it can be halved.
"""


def check_max_norm(max_norm: float | None) -> float:
    """Return ``max_norm``, or infinity for None. Raises ``SpecError`` unless it is above 0."""
    if max_norm is None:
        return math.inf
    if not isinstance(max_norm, int | float) or isinstance(max_norm, bool) or not max_norm > 0:
        raise SpecError(f"expected a max_norm above 0, or None for no clipping, got {max_norm!r}")
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

    Its relative error is at most 2^-38 for up to 2^31 elements.

    torch's norms add in an order that depends on the instruction set and on the number of threads, and a
    different order of additions gives different last bits. Here each operation has one possible result: the
    product of two float32 is exact in float64; additions are elementwise, never along a vector, in the order
    of this code; and float64 addition and square root are rounded correctly everywhere (IEEE 754). A
    subnormal may be flushed to 0, depending on the thread's settings, but its square is below 2^-250.
    """
    sums = torch.zeros(_LANES, dtype=torch.float64, device=gradient.device)
    squares = torch.empty_like(sums)
    for part in torch.split(gradient, _LANES):
        own = squares[: part.numel()].copy_(part)
        sums[: part.numel()].add_(own.mul_(own))
    while sums.numel() > 1:
        low, high = sums.chunk(2)
        sums = low + high
    return math.sqrt(sums.item())


# The scheduled hyperparameters of a gradient, stored until it is applied.
#
# A pipelined gradient is applied some steps after it was computed, with the learning rate of the step that
# computed it, so that a pipeline of one is synchronous SGD bit for bit under every schedule.

_SCHEDULED = ("lr", "momentum", "betas")  # changed by the schedulers of torch.optim, and by no optimizer


def scheduled(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the current scheduled hyperparameters of every parameter group."""
    return [
        {name: _kept(group[name]) for name in _SCHEDULED if name in group} for group in optimizer.param_groups
    ]


_DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


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
    """Set the hyperparameters to ``values`` within a ``with`` block. Groups added since are unchanged."""
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

    They warn if a scheduler steps before its optimizer, but a pipeline's first steps have no update.
    """
    optimizer._opt_called = True  # type: ignore[attr-defined]


def _kept(value: object) -> object:
    return value.clone() if isinstance(value, torch.Tensor) else value  # schedulers fill tensors in place


# Run the backward pass of one batch, whose loss the caller's function computes.


def backward(compute_loss: Callable[[], torch.Tensor], gradients: FlatGradients) -> float:
    """Compute the gradients of one batch into ``gradients``, and return its loss. Raises ``TensorError``."""
    gradients.zero()
    loss = checked_loss(compute_loss())
    value = float(loss.detach())  # waits for an accelerator before backward, which may run asynchronously
    run_backward(loss)
    gradients.collect()
    return value


def run_backward(loss: torch.Tensor) -> None:
    """Run the backward pass. Raises ``TensorError`` if ``compute_loss`` already ran it."""
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise TensorError(
            "expected compute_loss to return a loss without a backward pass, got one whose backward pass "
            "already ran; call no backward() in compute_loss, and compute a new loss in each step"
        ) from error


def checked_loss(loss: object) -> torch.Tensor:
    """Return the loss of ``compute_loss``. Raises ``TensorError`` unless backward can start from it."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else shown(loss)
        raise TensorError(
            f"expected compute_loss to return the loss, a tensor of one value, got {found}; write "
            "step(lambda: loss_of(model(x), y)), without backward()"
        )
    if loss.is_complex():
        raise TensorError(
            f"expected compute_loss to return a real loss, got one of {loss.dtype}; use .real or .abs()"
        )
    if not loss.requires_grad:
        raise TensorError(
            "expected compute_loss to return a loss that depends on a trainable parameter, got one without a "
            "graph; remove .detach(), .item() and no_grad, and check that some parameter requires a gradient"
        )
    return loss
