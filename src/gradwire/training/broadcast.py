"""Make all replicas begin with the same weights."""

from __future__ import annotations

from torch import nn

from gradwire.exchange import Accounting, Exchange
from gradwire.plan import Plan
from gradwire.training.flat import FlatWeights
from gradwire.training.ledger import Ledger

WEIGHTS = "weights"
"""What a ledger calls the weights that rank 0 sends."""


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
    accounting = Exchange(exchange.link, Plan(algorithm="star")).broadcast(weights.buffer)
    weights.scatter()
    return accounting


def count_weights(ledger: Ledger | None, accounting: Accounting) -> None:
    """Count weights that went from rank 0 to all others; no gradient is in them."""
    if ledger is not None:
        ledger.exchanged(WEIGHTS, accounting, accounting.total_s, gradient_nbytes=0)
