"""Compare what all ranks must have in common: their weights and buffers, bit for bit, and their options."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.training.replicas.hashes import replica_hashes, sha256_of
from gradwire.training.replicas.shared import shared_buffers, shared_parameters
from gradwire.units import counted, ranks_in_words

_REMEDY = "let all ranks load the same, whole checkpoint, and look for a change that depends on the rank"


def weights_sha256(model: nn.Module) -> bytes:
    """Return the SHA-256 of all shared parameters, frozen ones too, in their order; not of buffers."""
    return sha256_of(shared_parameters(model))


def kept_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the shared buffers that a state of the model holds, each once and without empty ones."""
    return shared_buffers(model, lambda module, name: name not in module._non_persistent_buffers_set)


def cached_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the others (``persistent=False``), which may differ in size."""
    return shared_buffers(model, lambda module, name: name in module._non_persistent_buffers_set)


def check_replicas(
    model: nn.Module, exchange: Exchange, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Compare all ranks' weights, buffers, and the state of their optimizer.

    Every rank calls it while no exchange of the link is under way. Of buffers those that ``state_dict``
    holds, but for the running statistics of normalisation layers, which are each rank's own while it trains.
    96 bytes per rank travel, exactly. Raises ``StateError`` on every rank, naming those that differ from the
    majority (from rank 0's side where there is none), and ``ExchangeError``.
    """
    hashes = replica_hashes(model, optimizer, sha256_of)
    hashes |= {"buffers": sha256_of(_compared_buffers(model))}
    remedy = "look for a checkpoint that only some ranks loaded, or for a change that depends on the rank"
    compare_hashes(hashes, exchange, None, f"{remedy}, then call synchronise() for weights and buffers")


def compare_hashes(
    hashes: Mapping[str, bytes],
    exchange: Exchange,
    timeout_s: float | None,
    remedy: str = _REMEDY,
) -> None:
    """Do what ``check_replicas`` does for hashes that every rank has computed of the same parts.

    Ranks may come ``timeout_s`` late, if it isn't None.
    """
    every = _gather(b"".join(hashes.values()), exchange, timeout_s)
    start = 0
    for what, own in hashes.items():
        different = _different([each[start : start + len(own)] for each in every])
        start += len(own)
        if different is not None:
            raise StateError(f"replicas must agree bit for bit, but the {what} of {different}; {remedy}")


def check_in_flight(steps_done: int, in_flight: int, exchange: Exchange) -> None:
    """Raise ``StateError`` on every rank unless all have resumed with as many gradients in flight.

    All ranks call it in the first step after a load. Raises ``ExchangeError``.
    """
    every = [int.from_bytes(each) for each in _gather(in_flight.to_bytes(4), exchange)]
    other = next((rank for rank, count in enumerate(every) if count != every[0]), None)
    if other is not None:
        raise StateError(
            f"rank 0 resumes at step {steps_done} with {counted(every[0], 'gradient')} in flight, but rank "
            f"{other} with {every[other]}; let all ranks load the same checkpoint, and drain all or none"
        )


def check_layout(model: nn.Module, exchange: Exchange) -> bool:
    """Raise ``ExchangeError`` unless all ranks have parameters and kept buffers of the same shapes, in order.

    Returns whether their caches have, too. Otherwise like ``check_replicas``.
    """
    parameters = [
        (tuple(each.shape), str(each.dtype), each.requires_grad) for each in shared_parameters(model)
    ]
    kept, cached = _shapes(kept_buffers(model)), _shapes(cached_buffers(model))
    own = [hashlib.sha256(str(each).encode()).digest() for each in (parameters, kept, cached)]
    every = _gather(b"".join(own), exchange)
    for what, part in (("parameters", slice(32)), ("buffers", slice(32, 64))):
        different = _different([each[part] for each in every])
        if different is not None:
            raise ExchangeError(
                f"rank {exchange.link.rank}: all ranks train the same model, but shapes, dtypes or "
                f"requires_grad of the {what} of {different}; make and freeze it alike on every rank"
            )
    return _different([each[64:] for each in every]) is None


def check_options(options: str, exchange: Exchange) -> None:
    """Compare a text that must be equal on all ranks; otherwise like ``check_replicas``.

    Raises ``ExchangeError``, also where the texts differ.
    """
    different = differing(options, exchange)
    if different is not None:
        raise ExchangeError(
            f"all ranks train alike, but the options of {different}; rank {exchange.link.rank} has {options}"
        )


def differing(text: str, exchange: Exchange) -> str | None:
    """Return which ranks have another text than the majority, as ``check_replicas`` does, or None."""
    return _different(_gather(hashlib.sha256(text.encode()).digest(), exchange))


def _different(every: list[bytes]) -> str | None:
    """Return which ranks have other bytes than the majority, or None if all have the same."""
    right = max(every, key=every.count)  # the first of equals: rank 0's side
    wrong = [rank for rank, bytes_ in enumerate(every) if bytes_ != right]
    return f"{ranks_in_words(wrong)} differ from those of rank {every.index(right)}" if wrong else None


def _compared_buffers(model: nn.Module) -> list[torch.Tensor]:
    return shared_buffers(
        model,
        lambda module, name: (
            not isinstance(module, _NormBase) and name not in module._non_persistent_buffers_set
        ),
    )


def _shapes(buffers: Iterable[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(tuple(each.shape), str(each.dtype)) for each in buffers]


def _gather(own: bytes, exchange: Exchange, timeout_s: float | None = None) -> list[bytes]:
    """Return every rank's bytes: a row for each, as floats, and only the own row is not zero."""
    rows = torch.zeros(exchange.link.world, len(own), dtype=torch.float32, device="cpu")
    rows[exchange.link.rank] = torch.tensor(list(own), dtype=torch.float32, device="cpu")
    Exchange(exchange.link, Plan()).all_reduce(rows.view(-1), average=False, timeout_s=timeout_s)
    return [bytes(int(value) for value in row) for row in rows.tolist()]
