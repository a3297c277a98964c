"""Compare what all ranks must have in common: their weights and buffers, bit for bit, and their options."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gradwire.devices import on_host
from gradwire.errors import ExchangeError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.units import ranks_in_words


def weights_sha256(model: nn.Module) -> bytes:
    """Return the SHA-256 of all parameters, frozen ones too, in their order, bit for bit; not of buffers."""
    return _sha256(model.parameters())


def kept_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that a state of the model holds, each once and without empty ones."""
    return _buffers(model, lambda module, name: name not in module._non_persistent_buffers_set)


def cached_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the others (``persistent=False``), which may differ in size."""
    return _buffers(model, lambda module, name: name in module._non_persistent_buffers_set)


def check_replicas(model: nn.Module, exchange: Exchange) -> None:
    """Compare all ranks' weights and buffers; every rank calls it while no exchange of the link is under way.

    Buffers that ``state_dict`` holds, but for the running statistics of normalisation layers, which are each
    rank's own while it trains. 64 bytes per rank travel, exactly. Raises ``StateError`` on every rank, naming
    those whose weights or buffers are not those of the majority (of rank 0's side where there is none), and
    ``ExchangeError``.
    """
    own = weights_sha256(model) + _sha256(_compared_buffers(model))
    every = _gather(own, exchange)
    for what, part in (("weights", slice(32)), ("buffers", slice(32, None))):
        different = _different([each[part] for each in every])
        if different is not None:
            raise StateError(
                f"replicas must agree bit for bit, but the {what} of {different}; look for a checkpoint that "
                "only some ranks loaded, or for a change that depends on the rank, then call synchronise()"
            )


def check_weights(model: nn.Module, exchange: Exchange, timeout_s: float) -> None:
    """Do what ``check_replicas`` does for weights alone: DDP has a rule of its own for buffers.

    Ranks may come so late to it.
    """
    different = _different(_gather(weights_sha256(model), exchange, timeout_s))
    if different is not None:
        raise StateError(
            f"replicas must agree bit for bit, but the weights of {different}; let all ranks load the same, "
            "whole checkpoint, and look for a change that depends on the rank"
        )


def check_layout(model: nn.Module, exchange: Exchange) -> bool:
    """Raise ``ExchangeError`` unless all ranks have parameters and kept buffers of the same shapes, in order.

    Returns whether their caches have, too. Otherwise like ``check_replicas``.
    """
    parameters = [(tuple(each.shape), str(each.dtype), each.requires_grad) for each in model.parameters()]
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
    return _buffers(
        model,
        lambda module, name: (
            not isinstance(module, _NormBase) and name not in module._non_persistent_buffers_set
        ),
    )


def _buffers(model: nn.Module, wanted: Callable[[nn.Module, str], bool]) -> list[torch.Tensor]:
    found = {
        id(buffer): buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if wanted(module, name) and buffer.numel()
    }
    return list(found.values())


def _shapes(buffers: Iterable[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(tuple(each.shape), str(each.dtype)) for each in buffers]


def _sha256(tensors: Iterable[torch.Tensor]) -> bytes:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(on_host(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _gather(own: bytes, exchange: Exchange, timeout_s: float | None = None) -> list[bytes]:
    """Return every rank's bytes: a row for each, as floats, and only the own row is not zero."""
    rows = torch.zeros(exchange.link.world, len(own), dtype=torch.float32, device="cpu")
    rows[exchange.link.rank] = torch.tensor(list(own), dtype=torch.float32, device="cpu")
    Exchange(exchange.link, Plan()).all_reduce(rows.view(-1), average=False, timeout_s=timeout_s)
    return [bytes(int(value) for value in row) for row in rows.tolist()]
