"""Comparisons of the state that all ranks must share: weights and buffers, bit for bit, and options."""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gradwire.codecs.spec import is_whole
from gradwire.errors import ExchangeError, SpecError, StateError, copied, shown
from gradwire.exchange import Exchange
from gradwire.sync.bucket.observe import BetweenSteps, StepObserver
from gradwire.sync.messages import gather
from gradwire.sync.replicas.shared import (
    cached_buffers,
    check_replicated,
    crc32c_of,
    kept_buffers,
    replica_hashes,
    sha256_of,
    shared_buffers,
    shared_parameters,
)
from gradwire.units import counted, ranks_in_words

_REMEDY = "load the same complete checkpoint on all ranks, and look for a change that depends on the rank"


def check_replicas(
    model: nn.Module, exchange: Exchange, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Compare all ranks' weights, buffers, and optimizer states.

    Every rank calls this while no exchange of the link is running. All buffers in ``state_dict`` are compared
    except the running statistics of normalisation layers, which differ between ranks in training. Every rank
    sends 96 bytes, without loss. Raises ``StateError`` on every rank, naming the ranks that differ from the
    majority (in a tie, from rank 0), and ``ExchangeError``.
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
    """Compare all ranks' hashes of the same parts of their replicas.

    Ranks may be up to ``timeout_s`` seconds late; None means the link's timeout. Raises the errors of
    ``check_replicas``.
    """
    for what, different in _differences(hashes, exchange, timeout_s).items():
        if different is not None:
            raise StateError(f"expected bit-identical replicas, but the {what} of {different}; {remedy}")


def check_in_flight(steps_done: int, in_flight: int, exchange: Exchange) -> None:
    """Raise ``StateError`` on every rank unless all ranks have resumed with equally many gradients in flight.

    All ranks call this in the first step after a load. Raises ``ExchangeError``.
    """
    every = [int.from_bytes(each, "big") for each in _gather(in_flight.to_bytes(4, "big"), exchange)]
    other = next((rank for rank, count in enumerate(every) if count != every[0]), None)
    if other is not None:
        raise StateError(
            f"expected all ranks to resume at step {steps_done} with {counted(every[0], 'gradient')} in "
            f"flight, as rank 0, got {every[other]} on rank {other}; load the same checkpoint on all ranks, "
            "and call drain on all ranks or on none"
        )


def check_layout(model: nn.Module, exchange: Exchange) -> bool:
    """Raise ``ExchangeError`` unless parameters and saved buffers have the same shapes on all ranks.

    Return whether the shapes of buffers with ``persistent=False`` are also the same. Every rank calls this
    while no exchange of the link is running.
    """
    parameters = [
        (tuple(each.shape), str(each.dtype), each.requires_grad) for each in shared_parameters(model)
    ]
    layouts = {
        "parameters": _digest(str(parameters)),
        "buffers": _digest(str(_shapes(kept_buffers(model)))),
        "caches": _digest(str(_shapes(cached_buffers(model)))),
    }
    found = _differences(layouts, exchange)
    for what in ("parameters", "buffers"):
        if found[what] is not None:
            raise ExchangeError(
                f"rank {exchange.link.rank}: expected the same model on all ranks, but the {what} of "
                f"{found[what]} in shape, dtype or requires_grad; create and freeze the model identically on "
                "all ranks"
            )
    return found["caches"] is None


def check_options(options: str, exchange: Exchange) -> None:
    """Raise ``ExchangeError`` unless the string ``options`` is equal on all ranks.

    Every rank calls this while no exchange of the link is running.
    """
    different = differing(options, exchange)
    if different is not None:
        raise ExchangeError(
            f"expected the same options on all ranks, but those of {different}; rank {exchange.link.rank} "
            f"has {options}; start all ranks with the same options"
        )


def differing(text: str, exchange: Exchange) -> str | None:
    """Return a phrase naming the ranks whose text differs from the majority's, or None."""
    return _differences({"text": _digest(text)}, exchange)["text"]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _differences(
    parts: Mapping[str, bytes], exchange: Exchange, timeout_s: float | None = None
) -> dict[str, str | None]:
    """Return, for each part, a phrase naming the ranks whose bytes differ from the majority's, or None."""
    every, start, found = _gather(b"".join(parts.values()), exchange, timeout_s), 0, dict[str, str | None]()
    for name, own in parts.items():
        values = [each[start : start + len(own)] for each in every]
        start += len(own)
        right = max(values, key=values.count)  # in a tie, the value of the lowest rank
        wrong = [rank for rank, value in enumerate(values) if value != right]
        phrase = f"{ranks_in_words(wrong)} differ from those of rank {values.index(right)}"
        found[name] = phrase if wrong else None
    return found


def _compared_buffers(model: nn.Module) -> list[torch.Tensor]:
    return shared_buffers(
        model,
        lambda module, name: (
            not isinstance(module, _NormBase) and name not in module._non_persistent_buffers_set
        ),
    )


def _shapes(buffers: Iterable[torch.Tensor]) -> list[tuple[object, ...]]:
    return [(tuple(each.shape), str(each.dtype)) for each in buffers]


def _gather(digests: bytes, exchange: Exchange, timeout_s: float | None = None) -> list[bytes]:
    """Return the bytes of all ranks, exchanged as floats."""
    return [bytes(map(int, row)) for row in gather(exchange, list(digests), timeout_s)]


class ReplicaWatch(StepObserver):
    """A check of the replicas at the beginning of some steps.

    Parameters
    ----------
    every
        The number of steps between checks, from the first step on; None for no regular checks.
    optimizer
        The optimizer whose state is compared in addition to the weights; None for only the weights.

    Raises
    ------
    SpecError
        For an invalid argument, and for an optimizer whose state is divided among the ranks.
    """

    def __init__(self, every: int | None = None, optimizer: torch.optim.Optimizer | None = None) -> None:
        if every is not None and not is_whole(every, 1, sys.maxsize):
            raise SpecError(
                "expected a whole number of at least 1, or None, for check_replicas_every, got "
                f"{shown(every)}; pass, for example, 1000"
            )
        if optimizer is not None:
            check_replicated(optimizer)
        self.every, self.optimizer = every, optimizer
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._is_requested = False

    def watch(self, model: nn.Module) -> None:
        """Compare the replicas of ``model``, a ``DistributedDataParallel``, as long as the model is alive."""
        self._model = weakref.ref(model)

    def ask(self) -> None:
        """Request a check by SHA-256 at the beginning of the next step."""
        self._is_requested = True

    def begin(self, step: int, sync: BetweenSteps) -> None:
        """Compare the replicas if due, except under ``join``: ranks without batches then have old weights."""
        model = self._model()
        module = getattr(model, "module", None)
        has_joined = getattr(getattr(model, "_join_config", None), "enable", False)
        if module is not None and self._is_requested:
            self._is_requested = False
            self.compare(sync)
        elif module is not None and self.is_due(step - 1) and not has_joined:
            compare_now(sync, replica_hashes(module, self.optimizer, crc32c_of))

    def compare(self, sync: BetweenSteps, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Compare the replicas now, by SHA-256, with ``optimizer`` or, by default, the watch's optimizer.

        All ranks call this between the same two steps. Raises ``SpecError`` for an optimizer whose state is
        divided among the ranks, and the errors of ``compare_now``.
        """
        if optimizer is not None:
            check_replicated(optimizer)
        module = getattr(self._model(), "module", None)
        if module is not None:
            compared = self.optimizer if optimizer is None else optimizer
            compare_now(sync, replica_hashes(module, compared, sha256_of))

    @property
    def facts(self) -> dict[str, str]:
        """The facts that must be equal on all ranks, because ranks check together."""
        what = "weights" if self.optimizer is None else "weights and optimizer"
        return {"check_replicas_every": str(self.every), "what is checked": what}

    def is_due(self, steps_done: int) -> bool:
        """Return whether the next step begins with a check."""
        return self.every is not None and steps_done % self.every == 0


def compare_now(sync: BetweenSteps, hashes: Mapping[str, bytes]) -> None:
    """Check that all replicas have equal hashes of each part. All ranks call this between two steps.

    Raises ``StateError`` on all ranks if hashes differ; the exchange can continue afterwards. Also raises
    ``ExchangeError``.
    """

    def compare(exchange: Exchange) -> BaseException | None:
        try:
            compare_hashes(hashes, exchange, sync.context.begin_timeout_s)
        except StateError as error:  # not a failure of the exchange
            return copied(error)
        return None

    found = sync.exchange_now("the hashes of the replicas", compare)
    try:
        if found is not None:
            raise found
    finally:
        del found  # because the error's traceback refers to this frame
