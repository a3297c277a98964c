"""Broadcasts of rank 0's weights and buffers to all replicas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn import Parameter

from gradwire.checkpoints import bytes_of
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.flat.gradients import FlatWeights, check_frozen
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas.compare import cached_buffers, check_layout, kept_buffers, shared_parameters

WEIGHTS = "weights"  # the ledger's name for the weights that rank 0 sends
BUFFERS = "buffers"  # the ledger's name for the buffers that rank 0 sends
_STAR = Plan(algorithm="star")


def begin_equal(model: nn.Module, exchange: Exchange, ledger: Ledger | None = None) -> ExchangeCost:
    """Copy rank 0's weights and buffers, exactly, into every rank's model, as DDP's constructor does.

    All ranks call this together, while no other exchange of the link is running. Buffers with
    ``persistent=False`` are not copied if their sizes differ between ranks. Raises ``TensorError`` for a
    model whose trained parameters are not dense float32 on one device, and ``ExchangeError``, including if
    models differ in shapes.
    """
    with_caches = check_layout(model, exchange)
    weights = broadcast_weights(model, exchange)
    count_weights(ledger, weights)
    buffers = _copy_bytes([*kept_buffers(model), *(cached_buffers(model) if with_caches else [])], exchange)
    count_buffers(ledger, buffers)
    return weights + buffers


def broadcast_weights(model: nn.Module, exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's weights, exactly, into the model of every rank of the exchange's link.

    All parameters are sent, except parameters that the model makes DDP ignore. Frozen parameters are sent as
    bytes in their own dtype. Buffers are not sent. Every rank must call this at the same point, while no
    other exchange of the link is running. Whatever the plan, a star broadcasts the weights uncompressed: a
    ring's broadcast half would gather a piece of every rank's weights.

    Raises ``TensorError`` for a model whose trained parameters are not dense float32 on one device, and
    ``ExchangeError``.
    """
    return broadcast_parameters(shared_parameters(model), exchange)


def broadcast_parameters(parameters: Iterable[Parameter], exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's values of these parameters to every rank, like ``broadcast_weights``, in this order."""
    every = list(dict.fromkeys(parameters))
    accounting = ExchangeCost()
    trained = [each for each in every if each.requires_grad]
    if trained:
        weights = FlatWeights(trained)
        weights.gather()
        accounting += Exchange(exchange.link, _STAR).broadcast(weights.buffer)
        weights.scatter()
    frozen = [each for each in every if not each.requires_grad and each.numel()]
    check_frozen(frozen)
    return accounting + _copy_bytes(frozen, exchange)


def broadcast_buffers(model: nn.Module, exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's buffers, of any dtype and bit for bit, into the model of every rank.

    Only buffers in ``state_dict`` are copied, because buffers with ``persistent=False`` may differ in size
    between ranks. Raises ``ExchangeError``.
    """
    return _copy_bytes(kept_buffers(model), exchange)


@torch.no_grad()
def _copy_bytes(buffers: Sequence[torch.Tensor], exchange: Exchange) -> ExchangeCost:
    if not buffers:
        return ExchangeCost()
    flat = [bytes_of(on_host(buffer)) for buffer in buffers]
    counts = [each.numel() for each in flat]
    padding = torch.zeros(-sum(counts) % 4, dtype=torch.uint8, device="cpu")
    payload = torch.cat([*flat, padding])
    accounting = Exchange(exchange.link, _STAR).broadcast(payload.view(torch.float32))
    accounting.nonfinite = 0  # bytes of integers and masks may look like non-finite floats
    for buffer, own, values in zip(buffers, flat, torch.split(payload[: sum(counts)], counts), strict=True):
        if not torch.equal(own, values):
            # A clone is aligned for its dtype; a part of the payload may not be.
            buffer.copy_(values.clone().view(buffer.dtype).view(buffer.shape))
    return accounting


def count_weights(ledger: Ledger | None, accounting: ExchangeCost) -> None:
    """Count a broadcast of weights, which carries no gradient."""
    if ledger is not None:
        ledger.exchanged(WEIGHTS, accounting, accounting.total_s, gradient_nbytes=0)


def count_buffers(ledger: Ledger | None, accounting: ExchangeCost) -> None:
    """Count a broadcast of buffers, unless there were no buffers."""
    if ledger is not None and accounting.total_s:
        ledger.exchanged(BUFFERS, accounting, accounting.total_s, gradient_nbytes=0)
