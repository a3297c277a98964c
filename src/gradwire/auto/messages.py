"""What ranks tell each other between two steps: rows of numbers, their mean, or a text from rank 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradwire.exchange import Exchange
from gradwire.plan import Plan


def gather(exchange: Exchange, row: Sequence[float], timeout_s: float) -> list[list[float]]:
    """Return the rows of all ranks, in their order, as float32; all ranks call it with rows of one length.

    Raises ``ExchangeError``.
    """
    link = exchange.link
    rows = torch.zeros(link.world, len(row), dtype=torch.float32, device="cpu")
    rows[link.rank] = torch.tensor(row, dtype=torch.float32, device="cpu")
    _sum(exchange, rows.view(-1), timeout_s)
    return rows.tolist()


def mean(exchange: Exchange, values: torch.Tensor, timeout_s: float) -> None:
    """Average 1-D float32 in place, to the same bits on all ranks. Raises ``ExchangeError``."""
    if values.numel():
        Exchange(exchange.link, Plan()).all_reduce(values, timeout_s=timeout_s)


def broadcast(exchange: Exchange, text: str, timeout_s: float) -> str:
    """Return the text of rank 0; all ranks call it. Raises ``ExchangeError``."""
    own = text.encode() if exchange.link.rank == 0 else b""
    length = int(gather(exchange, [len(own)], timeout_s)[0][0])
    letters = torch.zeros(length, dtype=torch.float32, device="cpu")
    if own:
        letters.copy_(torch.frombuffer(bytearray(own), dtype=torch.uint8))
    if length:
        _sum(exchange, letters, timeout_s)
    return bytes(letters.to(torch.uint8).tolist()).decode()


def _sum(exchange: Exchange, values: torch.Tensor, timeout_s: float) -> None:
    """Sum exactly: all but one of the terms of each value are 0."""
    Exchange(exchange.link, Plan()).all_reduce(values, average=False, timeout_s=timeout_s)
