"""Give all replicas rank 0's weights, or its buffers."""

from __future__ import annotations

import torch
from torch import nn

from gradwire.exchange import Accounting, Exchange
from gradwire.plan import Plan
from gradwire.training.flat import FlatWeights
from gradwire.training.ledger import Ledger

WEIGHTS = "weights"
"""What a ledger calls the weights that rank 0 sends."""
BUFFERS = "buffers"
"""What it calls the buffers."""


def broadcast_weights(model: nn.Module, exchange: Exchange) -> Accounting:
    """Copy rank 0's weights, exactly, into the model of every rank of the exchange's link.

    All parameters travel, frozen ones too; buffers (a BatchNorm's running statistics) stay local. Every rank
    must call this at the same point, while no other exchange of the link is under way. Whatever the plan
    says, the weights go out as a star, uncompressed: a ring's broadcast half would collect a piece of every
    rank's weights.

    Raises ``TensorError`` for a model that is not dense float32 on the CPU, and ``ExchangeError``.
    """
    weights = FlatWeights(model.parameters())
    weights.gather()
    accounting = _broadcast(weights.buffer, exchange)
    weights.scatter()
    return accounting


@torch.no_grad()
def broadcast_buffers(model: nn.Module, exchange: Exchange) -> Accounting:
    """Copy rank 0's buffers, of any dtype and bit for bit, into the model of every rank; otherwise as above.

    Those that ``state_dict`` holds: what a model only caches (``persistent=False``) may differ in size. A
    model without such buffers sends nothing. Raises ``ExchangeError``.
    """
    buffers = _kept_buffers(model)
    if not buffers:
        return Accounting()
    flat = [buffer.detach().cpu().contiguous().view(-1).view(torch.uint8) for buffer in buffers]
    counts = [each.numel() for each in flat]
    padding = torch.zeros(-sum(counts) % 4, dtype=torch.uint8)
    payload = torch.cat([*flat, padding])
    accounting = _broadcast(payload.view(torch.float32), exchange)
    for buffer, own, values in zip(buffers, flat, torch.split(payload[: sum(counts)], counts), strict=True):
        if not torch.equal(own, values):
            # A clone begins where its dtype can begin; a part of the payload may not.
            buffer.copy_(values.clone().view(buffer.dtype).view(buffer.shape))
    return accounting


def _kept_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that a state of the model holds, each once and without empty ones."""
    kept = {
        id(buffer): buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set and buffer.numel()
    }
    return list(kept.values())


def _broadcast(flat: torch.Tensor, exchange: Exchange) -> Accounting:
    return Exchange(exchange.link, Plan(algorithm="star")).broadcast(flat)


def count_weights(ledger: Ledger | None, accounting: Accounting) -> None:
    """Count weights that went from rank 0 to all others; no gradient is in them."""
    if ledger is not None:
        ledger.exchanged(WEIGHTS, accounting, accounting.total_s, gradient_nbytes=0)


def count_buffers(ledger: Ledger | None, accounting: Accounting) -> None:
    """Count buffers that went from rank 0 to all others, where there are any."""
    if ledger is not None and accounting.total_s:
        ledger.exchanged(BUFFERS, accounting, accounting.total_s, gradient_nbytes=0)
