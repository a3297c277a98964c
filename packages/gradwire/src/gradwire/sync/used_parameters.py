"""The parameters that a step's backward passes use, on this rank and on any rank.

The rule is DDP's with ``find_unused_parameters``: where some ranks reach a parameter, the others count as 0
in its average; where none does, it has no gradient, so that no optimizer touches it.

A rank cannot know of the others, but it need not ask in every step. A parameter that nobody has reached is
averaged to 0, for every codec decodes zeros to zeros, and averages have the same bits on all ranks. So all
of them see alike where there is a question, and only then they exchange one number per such parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from gradwire.costs import ExchangeCost
from gradwire.errors import SpecError, TensorError, shown
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.flat import FlatGradients


class Reach:
    """One step's: made when backward has ended on this rank, and complete when ``agree`` has returned.

    ``gradients`` are those of the step, collected. ``own`` are the numbers of the parameters that this rank
    has not reached, ``absent`` those that no rank has, empty before ``agree``; a checkpoint may tell both.
    """

    def __init__(
        self, gradients: FlatGradients, own: Iterable[int] | None = None, absent: Iterable[int] = ()
    ) -> None:
        self._gradients = gradients
        self.own = frozenset(gradients.unreached() if own is None else own)
        self.absent = frozenset(absent)

    def parts(
        self, residual: torch.Tensor | None, numbers: Iterable[int] | None = None
    ) -> list[torch.Tensor]:
        """Return the parts of a whole gradient's residual that wait, of all parameters or these numbers."""
        if residual is None:
            return []
        among = self.own if numbers is None else self.own.intersection(numbers)
        return [self._gradients.part(each, residual) for each in sorted(among)]

    def agree(self, exchange: Exchange) -> ExchangeCost:
        """Learn what no rank has reached, once all of the gradient is averaged; return what that cost.

        All ranks call it at the same place between their exchanges. Raises ``ExchangeError``.
        """
        asked = self._gradients.silent()
        if not asked:
            return ExchangeCost()
        reached = self.told(asked)
        accounting = Exchange(exchange.link, Plan()).all_reduce(reached, average=False)
        self._hear(asked, reached)
        return _overhead(accounting)

    def send_up(self, exchange: Exchange) -> ExchangeCost:
        """Do what ``agree`` does by the reduce half of a star: for its rank 0, who is the one to step."""
        every = range(len(self._gradients.parameters))
        reached = self.told(every)
        accounting = Exchange(exchange.link, Plan(algorithm="star")).reduce(reached)
        self._hear(every, reached)
        return _overhead(accounting)

    def agree_on_all(self, exchange: Exchange, beside: torch.Tensor) -> ExchangeCost:
        """Do what ``agree`` does where a rank has no averages of all parameters; sum ``beside`` on the way.

        ``beside`` is 1-D float32 on the CPU. It is replaced by its sum over all ranks.
        """
        every = range(len(self._gradients.parameters))
        told = torch.cat([beside, self.told(every)])
        accounting = Exchange(exchange.link, Plan()).all_reduce(told, average=False)
        beside.copy_(told[: beside.numel()])
        self._hear(every, told[beside.numel() :])
        return _overhead(accounting)

    def told(self, asked: Sequence[int]) -> torch.Tensor:
        """Return a 0 for each of these parameters that this rank has not reached, else a 1; float32."""
        return torch.tensor(
            [float(each not in self.own) for each in asked], dtype=torch.float32, device="cpu"
        )

    def _hear(self, asked: Sequence[int], reached: torch.Tensor) -> None:
        self.absent = frozenset(
            each for each, count in zip(asked, reached.tolist(), strict=True) if count == 0
        )


def _overhead(accounting: ExchangeCost) -> ExchangeCost:
    """Return the cost of an exchange that carried no float of a gradient."""
    accounting.raw_nbytes = 0
    return accounting


# Clip the averaged gradient by its global norm, to the same bits on every rank.

_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_, so that scripts keep their results
_LANES = 1 << 16
"""The sums that are kept side by side: 512 kB, which stays in a cache. A power of two, to be halved."""


def check_max_norm(max_norm: float | None) -> float:
    """Return ``max_norm``, infinite where it is None. Raises ``SpecError`` unless it is above 0."""
    if max_norm is None:
        return math.inf
    if not isinstance(max_norm, int | float) or isinstance(max_norm, bool) or not max_norm > 0:
        raise SpecError(f"max_norm must be a number above 0, or None for no clipping, but is {max_norm!r}")
    return float(max_norm)


def clip(gradient: torch.Tensor, max_norm: float) -> None:
    """Scale ``gradient`` (1-D float32, in place) down to the 2-norm ``max_norm`` where it is longer.

    Ranks whose gradients have the same bits scale by the same factor, whatever their processors. A gradient
    whose norm is not finite is left as it is.
    """
    if math.isinf(max_norm):
        return
    norm = exact_order_norm(gradient)
    factor = max_norm / (norm + _EPSILON)
    if math.isfinite(norm) and factor < 1:
        gradient.mul_(factor)


def exact_order_norm(gradient: torch.Tensor) -> float:
    """Return the 2-norm of a 1-D float32 tensor, with the same bits on every machine.

    It is within 2^-38 of the exact one, relatively, for up to 2^31 elements.

    torch's own norms add in an order that depends on the instruction set and on the number of threads, and
    floats added in another order have other last bits. Here each operation has one possible result: the
    product of two float32 is exact in float64; elements are added to other elements, never along a vector,
    in an order that this text fixes; and float64 addition and square root round correctly everywhere (IEEE
    754). Widening a subnormal may flush it to 0 where a thread is set so; its square is below 2^-250.
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


# The values of a learning rate's schedule, kept beside a gradient until the gradient is applied.
#
# A pipelined gradient is applied some steps after it was computed. It takes the learning rate of its own step
# with it, so that a pipeline of one is synchronous SGD bit for bit under every schedule.

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


# Run the backward pass of one batch, whose loss a function of the caller's computes.


def backward(compute_loss: Callable[[], torch.Tensor], gradients: FlatGradients) -> float:
    """Fill ``gradients`` with those of one batch and return its loss. Raises ``TensorError``."""
    gradients.zero()
    loss = checked_loss(compute_loss())
    value = float(loss.detach())  # here an accelerator is waited for; what backward does it may do meanwhile
    run_backward(loss)
    gradients.collect()
    return value


def run_backward(loss: torch.Tensor) -> None:
    """Run the backward pass. Raises ``TensorError`` where ``compute_loss`` has done it already."""
    try:
        torch.autograd.backward(loss)
    except RuntimeError as error:
        if "second time" not in str(error):
            raise
        raise TensorError(
            "step runs the backward pass of the loss that compute_loss returns, but that was run before: "
            "leave backward to step, and compute the loss anew in each"
        ) from error


def checked_loss(loss: object) -> torch.Tensor:
    """Return the loss of ``compute_loss``. Raises ``TensorError`` unless backward can begin there."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else shown(loss)
        raise TensorError(
            f"compute_loss must return the loss, a tensor of one value, but returned {found}; write "
            "step(lambda: loss_of(model(x), y)), without backward"
        )
    if loss.is_complex():
        raise TensorError(
            f"compute_loss must return a real loss, but returned {loss.dtype}; take .real or .abs()"
        )
    if not loss.requires_grad:
        raise TensorError(
            "compute_loss must return a loss that depends on a trainable parameter, but this one has no "
            "graph; leave .detach(), .item() and no_grad out of it, and check that requires_grad is on "
            "somewhere"
        )
    return loss
