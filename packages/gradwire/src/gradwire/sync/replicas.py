"""Comparisons of replicas, and broadcasts of rank 0's weights and buffers to all replicas."""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.modules.batchnorm import _NormBase

from gradwire.checkpoints import bytes_of
from gradwire.codecs.spec import is_whole
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.errors import ExchangeError, SpecError, StateError, copied, shown
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.flat import FlatWeights, check_frozen
from gradwire.sync.group import gather
from gradwire.sync.hashes import check_replicated, crc32c_of, replica_hashes, sha256_of
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.observe import BetweenSteps, StepObserver
from gradwire.sync.trained import Trained, shared_buffers, shared_parameters
from gradwire.units import counted, ranks_in_words

# Compare the state that all ranks must share: weights and buffers, bit for bit, and options.

_REMEDY = "load the same complete checkpoint on all ranks, and look for a change that depends on the rank"


def weights_sha256(model: nn.Module) -> bytes:
    """Return the SHA-256 of all shared parameters, including frozen ones, in order, without buffers."""
    return sha256_of(shared_parameters(model))


def kept_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the nonempty shared buffers in the model's ``state_dict``, each once."""
    return shared_buffers(model, lambda module, name: name not in module._non_persistent_buffers_set)


def cached_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the nonempty shared buffers with ``persistent=False``, whose sizes may differ between ranks."""
    return shared_buffers(model, lambda module, name: name in module._non_persistent_buffers_set)


def check_replicas(
    model: nn.Module, exchange: Exchange, optimizer: torch.optim.Optimizer | None = None
) -> None:
    """Compare all ranks' weights, buffers, and optimizer states.

    Every rank calls this while no exchange of the link is running. The buffers are those in ``state_dict``
    except the running statistics of normalisation layers, which differ between ranks in training. Each rank
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
    """Compare hashes that every rank has computed of the same parts.

    Ranks may be up to ``timeout_s`` seconds late; None means the link's timeout. Raises the errors of
    ``check_replicas``.
    """
    every = _gather(b"".join(hashes.values()), exchange, timeout_s)
    start = 0
    for what, own in hashes.items():
        different = _different([each[start : start + len(own)] for each in every])
        start += len(own)
        if different is not None:
            raise StateError(f"expected bit-identical replicas, but the {what} of {different}; {remedy}")


def check_in_flight(steps_done: int, in_flight: int, exchange: Exchange) -> None:
    """Raise ``StateError`` on every rank unless all have resumed with the same number of gradients in flight.

    All ranks call this in the first step after a load. Raises ``ExchangeError``.
    """
    every = [int.from_bytes(each, "big") for each in _gather(in_flight.to_bytes(4, "big"), exchange)]
    other = next((rank for rank, count in enumerate(every) if count != every[0]), None)
    if other is not None:
        raise StateError(
            f"expected all ranks to resume at step {steps_done} with {counted(every[0], 'gradient')} in "
            f"flight, as rank 0, got {every[other]} on rank {other}; load the same checkpoint on all ranks, "
            "and drain all or none"
        )


def check_layout(model: nn.Module, exchange: Exchange) -> bool:
    """Raise ``ExchangeError`` unless parameters and saved buffers have the same shapes on all ranks.

    Return whether the shapes of buffers with ``persistent=False`` are also the same. The conditions are those
    of ``check_replicas``.
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
                f"rank {exchange.link.rank}: expected the same model on all ranks, but the {what} of "
                f"{different} in shape, dtype or requires_grad; create and freeze the model identically on "
                "all ranks"
            )
    return _different([each[64:] for each in every]) is None


def check_options(options: str, exchange: Exchange) -> None:
    """Compare a string that must be equal on all ranks, under the conditions of ``check_replicas``.

    Raises ``ExchangeError``, including if the strings differ.
    """
    different = differing(options, exchange)
    if different is not None:
        raise ExchangeError(
            f"expected the same options on all ranks, but those of {different}; rank {exchange.link.rank} "
            f"has {options}; start all ranks with the same options"
        )


def differing(text: str, exchange: Exchange) -> str | None:
    """Return a phrase naming the ranks whose text differs from the majority's, or None."""
    return _different(_gather(hashlib.sha256(text.encode()).digest(), exchange))


def _different(every: list[bytes]) -> str | None:
    """Return a phrase naming the ranks whose bytes differ from the majority's, or None."""
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


def _gather(digests: bytes, exchange: Exchange, timeout_s: float | None = None) -> list[bytes]:
    """Return the bytes of all ranks, exchanged as floats."""
    return [bytes(map(int, row)) for row in gather(exchange, list(digests), timeout_s)]


WEIGHTS = "weights"
"""The ledger's name for the weights that rank 0 sends."""
BUFFERS = "buffers"
"""The ledger's name for the buffers that rank 0 sends."""


def begin_equal(model: nn.Module, exchange: Exchange, ledger: Ledger | None = None) -> ExchangeCost:
    """Copy rank 0's weights and buffers, exactly, into every rank's model, as DDP's constructor does.

    Every rank must call this at the same point, while no other exchange of the link is running. Buffers with
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

    All parameters are sent, except those that the model makes DDP ignore. Frozen parameters are sent as bytes
    in their own dtype. Buffers are not sent. Every rank must call this at the same point, while no other
    exchange of the link is running. For every plan, the weights are broadcast over a star, uncompressed: a
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
        accounting += _broadcast(weights.buffer, exchange)
        weights.scatter()
    frozen = [each for each in every if not each.requires_grad and each.numel()]
    check_frozen(frozen)
    return accounting + _copy_bytes(frozen, exchange)


def broadcast_buffers(model: nn.Module, exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's buffers, of any dtype and bit for bit, into the model of every rank.

    Only buffers in ``state_dict`` are copied, because others (``persistent=False``) may differ in size. A
    model without such buffers sends nothing. Raises ``ExchangeError``.
    """
    return _copy_bytes(kept_buffers(model), exchange)


@torch.no_grad()
def _copy_bytes(buffers: Sequence[torch.Tensor], exchange: Exchange) -> ExchangeCost:
    """Copy rank 0's buffers, of any dtype, to all ranks."""
    if not buffers:
        return ExchangeCost()
    flat = [bytes_of(on_host(buffer)) for buffer in buffers]
    counts = [each.numel() for each in flat]
    padding = torch.zeros(-sum(counts) % 4, dtype=torch.uint8, device="cpu")
    payload = torch.cat([*flat, padding])
    accounting = _broadcast(payload.view(torch.float32), exchange)
    accounting.nonfinite = 0  # bytes of integers and masks may look like non-finite floats
    for buffer, own, values in zip(buffers, flat, torch.split(payload[: sum(counts)], counts), strict=True):
        if not torch.equal(own, values):
            # A clone is aligned for its dtype; a part of the payload may not be.
            buffer.copy_(values.clone().view(buffer.dtype).view(buffer.shape))
    return accounting


def _broadcast(flat: torch.Tensor, exchange: Exchange) -> ExchangeCost:
    return Exchange(exchange.link, Plan(algorithm="star")).broadcast(flat)


def count_weights(ledger: Ledger | None, accounting: ExchangeCost) -> None:
    """Count a broadcast of weights from rank 0 to all other ranks, which carries no gradient."""
    if ledger is not None:
        ledger.exchanged(WEIGHTS, accounting, accounting.total_s, gradient_nbytes=0)


def count_buffers(ledger: Ledger | None, accounting: ExchangeCost) -> None:
    """Count a broadcast of buffers from rank 0 to all other ranks, if it sent any."""
    if ledger is not None and accounting.total_s:
        ledger.exchanged(BUFFERS, accounting, accounting.total_s, gradient_nbytes=0)


# The check of replicas that a run repeats every few steps.


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
                f"{shown(every)}"
            )
        if optimizer is not None:
            check_replicated(optimizer)
        self.every, self.optimizer = every, optimizer
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._is_asked = False

    def watch(self, model: nn.Module) -> None:
        """Compare the replicas of this ``DistributedDataParallel`` while it is alive."""
        self._model = weakref.ref(model)

    def ask(self) -> None:
        """Request a check by SHA-256 at the beginning of the next step."""
        self._is_asked = True

    def begin(self, step: int, sync: BetweenSteps) -> None:
        """Compare the replicas if due, but not under ``join``.

        There, ranks without batches have older weights.
        """
        model = self._model()
        module = getattr(model, "module", None)
        has_joined = getattr(getattr(model, "_join_config", None), "enable", False)
        if module is not None and self._is_asked:
            self._is_asked = False
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
    """Compare hashes of the same parts of all replicas, between two steps. All ranks call this together.

    Raises ``StateError`` on all ranks if they differ, after which the exchange can continue, and
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
        del found  # the error holds this frame


# Parameters added during training: all ranks add the same ones, with the same weights.


def welcome(trained: Trained, exchange: Exchange, ledger: Ledger | None) -> ExchangeCost:
    """Add all parameters that require a gradient to ``trained``, starting with rank 0's weights.

    All ranks call this before the same step, while no other exchange is running. Raises ``ExchangeError``,
    including if ranks do not train the same parameters.
    """
    newcomers = trained.grow()
    remedy = "unfreeze the same ones on all ranks, before the same step"
    try:
        different = differing(trained.layout(), exchange)
    except ExchangeError as error:  # another rank may run another exchange
        own = exchange.link.name_of(exchange.link.rank)
        raise ExchangeError(
            f"{own}: {len(newcomers)} parameters were unfrozen on this rank, but the comparison with the "
            f"other ranks failed ({error}); {remedy}"
        ) from error
    if different is not None:
        raise ExchangeError(
            f"rank {exchange.link.rank}: expected the same trained parameters on all ranks, but those of "
            f"{different}; {remedy}"
        )
    if not newcomers:
        return ExchangeCost()
    cost = broadcast_parameters(newcomers, exchange)
    count_weights(ledger, cost)
    return cost
