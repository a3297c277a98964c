"""Compare what all ranks must have in common: their weights, bit for bit, and their options."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan


def weights_sha256(model: nn.Module) -> bytes:
    """Return the SHA-256 of all parameters, frozen ones too, in their order, bit for bit; not of buffers."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def check_replicas(model: nn.Module, exchange: Exchange) -> None:
    """Compare the weights of all ranks; every rank calls it while no exchange of the link is under way.

    32 bytes per rank travel, exactly. Raises ``StateError`` on every rank, naming those whose weights are not
    those of the majority (of rank 0's side where there is none), and ``ExchangeError``.
    """
    different = _different(weights_sha256(model), exchange)
    if different is not None:
        raise StateError(
            f"replicas must agree bit for bit, but the weights of {different}; look for a checkpoint that "
            "only some ranks loaded, or for a change that depends on the rank, then call synchronise()"
        )


def check_options(options: str, exchange: Exchange) -> None:
    """Compare a text that must be equal on all ranks; otherwise like ``check_replicas``.

    Raises ``ExchangeError``, also where the texts differ.
    """
    different = _different(hashlib.sha256(options.encode()).digest(), exchange)
    if different is not None:
        raise ExchangeError(
            f"all ranks train alike, but the options of {different}; rank {exchange.link.rank} has {options}"
        )


def _different(own: bytes, exchange: Exchange) -> str | None:
    """Tell which ranks have other bytes than the majority; None where all have the same."""
    every = _gather(own, exchange)
    right = max(every, key=every.count)  # the first of equals: rank 0's side
    wrong = [rank for rank, bytes_ in enumerate(every) if bytes_ != right]
    return f"{_ranks(wrong)} differ from those of rank {every.index(right)}" if wrong else None


def _gather(own: bytes, exchange: Exchange) -> list[bytes]:
    """Return every rank's bytes: a row for each, as floats, and only the own row is not zero."""
    rows = torch.zeros(exchange.link.world, len(own))
    rows[exchange.link.rank] = torch.tensor(list(own), dtype=torch.float32)
    Exchange(exchange.link, Plan()).all_reduce(rows.view(-1), average=False)
    return [bytes(int(value) for value in row) for row in rows.tolist()]


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
