"""Give all replicas rank 0's weights, or its buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.nn import Parameter

from gradwire.checksum import bytes_of
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.training.gradients.flat import FlatWeights, check_frozen
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.replicas.compare import cached_buffers, check_layout, kept_buffers
from gradwire.training.replicas.shared import shared_parameters

WEIGHTS = "weights"
"""What a ledger calls the weights that rank 0 sends."""
BUFFERS = "buffers"
"""What it calls the buffers."""


def begin_equal(model: nn.Module, exchange: Exchange, ledger: Ledger | None = None) -> ExchangeCost:
    """Copy rank 0's weights and buffers, exactly, into the model of every rank, as DDP does when it is made.

    Every rank must call this at the same point, while no other exchange of the link is under way. Caches
    (buffers with ``persistent=False``) stay local where their sizes differ between ranks. Raises
    ``TensorError`` for a model whose trained parameters are not dense float32 on one device, and
    ``ExchangeError``, also where models differ in shapes.
    """
    with_caches = check_layout(model, exchange)
    weights = broadcast_weights(model, exchange)
    count_weights(ledger, weights)
    buffers = _copy_bytes([*kept_buffers(model), *(cached_buffers(model) if with_caches else [])], exchange)
    count_buffers(ledger, buffers)
    return weights + buffers


def broadcast_weights(model: nn.Module, exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's weights, exactly, into the model of every rank of the exchange's link.

    All parameters travel, but for those that the model tells DDP to ignore; frozen ones go as bytes in their
    own dtype. No buffers do. Every rank must call this at the same point, while no other exchange of the
    link is under way. Whatever the plan says, the weights go out as a star, uncompressed: a ring's broadcast
    half would collect a piece of every rank's weights.

    Raises ``TensorError`` for a model whose trained parameters are not dense float32 on one device, and
    ``ExchangeError``.
    """
    return broadcast_parameters(shared_parameters(model), exchange)


def broadcast_parameters(parameters: Iterable[Parameter], exchange: Exchange) -> ExchangeCost:
    """Do what ``broadcast_weights`` does for these parameters, in the same order on every rank."""
    every = list(dict.fromkeys(parameters))
    accounting = ExchangeCost()
    trained = [each for each in every if each.requires_grad]
    if trained:
        weights = FlatWeights(trained)
        weights.gather()
        accounting += _broadcast(weights.buffer, exchange)
        weights.scatter()
    frozen = [each for each in every if not each.requires_grad and each.numel()]
    check_frozen(frozen)
    return accounting + _copy_bytes(frozen, exchange)


def broadcast_buffers(model: nn.Module, exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's buffers, of any dtype and bit for bit, into the model of every rank; otherwise as above.

    Those that ``state_dict`` holds: what a model only caches (``persistent=False``) may differ in size. A
    model without such buffers sends nothing. Raises ``ExchangeError``.
    """
    return _copy_bytes(kept_buffers(model), exchange)


@torch.no_grad()
def _copy_bytes(buffers: Sequence[torch.Tensor], exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's, of any dtype, to all ranks."""
    if not buffers:
        return ExchangeCost()
    flat = [bytes_of(on_host(buffer)) for buffer in buffers]
    counts = [each.numel() for each in flat]
    padding = torch.zeros(-sum(counts) % 4, dtype=torch.uint8, device="cpu")
    payload = torch.cat([*flat, padding])
    accounting = _broadcast(payload.view(torch.float32), exchange)
    accounting.nonfinite = 0  # bytes of whole numbers may look so, and masks are
    for buffer, own, values in zip(buffers, flat, torch.split(payload[: sum(counts)], counts), strict=True):
        if not torch.equal(own, values):
            # A clone begins where its dtype can begin; a part of the payload may not.
            buffer.copy_(values.clone().view(buffer.dtype).view(buffer.shape))
    return accounting


def _broadcast(flat: torch.Tensor, exchange: Exchange) -> ExchangeCost:
    return Exchange(exchange.link, Plan(algorithm="star")).broadcast(flat)


def count_weights(ledger: Ledger | None, accounting: ExchangeCost) -> None:
    """Count weights that went from rank 0 to all others; no gradient is in them."""
    if ledger is not None:
        ledger.exchanged(WEIGHTS, accounting, accounting.total_s, gradient_nbytes=0)


def count_buffers(ledger: Ledger | None, accounting: ExchangeCost) -> None:
    """Count buffers that went from rank 0 to all others, where there are any."""
    if ledger is not None and accounting.total_s:
        ledger.exchanged(BUFFERS, accounting, accounting.total_s, gradient_nbytes=0)
