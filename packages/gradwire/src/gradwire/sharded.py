"""Synchronous SGD with sharded updates and lossless weight deltas.

The gradient is reduce-scattered with the plan's codec. Each rank updates its shard of exact weights with its
shard of the optimizer's state (ZeRO's first stage: Rajbhandari et al., SC 2020). Then each rank sends the
changes of its shard, entropy-coded without loss, and all ranks apply these changes to their replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from time import perf_counter
from typing import Final

import torch
from torch import nn
from torch.nn import Parameter

from gradwire.codecs import Identity
from gradwire.collectives import ring
from gradwire.collectives.frame_order import segments
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.entropy.delta import WordName, round_masters
from gradwire.errors import SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.exchange.request import Half
from gradwire.plan import Plan, PlanLike
from gradwire.sync.bucket.observe import BucketObserver
from gradwire.sync.checkpoint import RankState
from gradwire.sync.flat.backward import backward
from gradwire.sync.flat.buckets import UsedParameters
from gradwire.sync.flat.gradients import FlatGradients
from gradwire.sync.flat.update import check_max_norm
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.replicas.broadcast import count_weights
from gradwire.sync.replicas.deltas import Deltas
from gradwire.sync.trained import check_optimizer, strangers

# One rank's shard of the weights: the exact masters, and the optimizer that updates these masters.

_NAMES = ("ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
ELEMENTWISE = frozenset(getattr(torch.optim, name) for name in _NAMES)
"""The optimizers whose update of a weight doesn't depend on other weights, so that they can update a shard.

Adagrad is also elementwise, but its constructor already creates state for whole parameters.
"""


class Shard:
    """One rank's shard of the weights: ``start`` up to ``stop`` in the order of the flat gradient.

    ``masters`` are the shard's exact weights, 1-D float32 on the CPU; the caller fills them. The constructor
    replaces the optimizer's parameters with 1-D slices of ``masters``, each in the group of its parameter.
    Therefore, the optimizer stores state only for the shard. The optimizer must not have stepped.
    """

    def __init__(
        self, parameters: Sequence[Parameter], optimizer: torch.optim.Optimizer, start: int, stop: int
    ) -> None:
        self.start, self.stop = start, stop
        self.masters = torch.zeros(stop - start, dtype=torch.float32, device="cpu")
        self._slices: dict[int, tuple[Parameter, int, int]] = {}
        starts = accumulate((each.numel() for each in parameters), initial=0)
        own = dict[int, Parameter]()
        for number, (each, first) in enumerate(zip(parameters, starts, strict=False)):
            low, high = max(first, start) - start, min(first + each.numel(), stop) - start
            if low < high:
                own[id(each)] = Parameter(self.masters[low:high])
                self._slices[number] = own[id(each)], low, high
        for group in optimizer.param_groups:
            group["params"] = [own[id(each)] for each in group["params"] if id(each) in own]

    def give(self, gradient: torch.Tensor, absent: Collection[int]) -> None:
        """Give the optimizer the shard's gradient; the parameters with numbers in ``absent`` get None."""
        for number, (part, low, high) in self._slices.items():
            part.grad = None if number in absent else gradient[low:high]

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ``SpecError`` if the optimizer has new parameters, whose gradients aren't averaged."""
        if strange := strangers(optimizer, {id(part) for part, _, _ in self._slices.values()}):
            raise SpecError(
                f"expected an optimizer of this rank's shard, got one with {len(strange)} new parameters "
                f"(the first of shape {tuple(strange[0].shape)}); create a new method and a new optimizer "
                "with these parameters"
            )


def check_shardable(optimizer: torch.optim.Optimizer, parameters: Sequence[Parameter]) -> None:
    """Raise ``SpecError`` if an optimizer cannot update a shard of these weights."""
    if type(optimizer) not in ELEMENTWISE:
        raise SpecError(
            f"Sharded: expected an elementwise optimizer ({', '.join(_NAMES)}), got "
            f"{type(optimizer).__name__}; use DSync with this optimizer"
        )
    if optimizer.state:
        raise SpecError(
            "Sharded: expected an optimizer without state, got one that has stepped; create a new "
            "optimizer, and load the method's state afterwards"
        )
    if strangers(optimizer, set(map(id, parameters))):
        raise SpecError(
            "Sharded: expected an optimizer of the model's parameters, got one with other parameters; "
            "create the optimizer from model.parameters()"
        )


ALGORITHM = "ring"
"""The all-reduce algorithm in whose reduce half every rank gets an equal part of the sum."""
_BITS: Final = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
_FIRST: Final = 0  # the version number of weights that come from a model or a saved state


class _SumOfShard(BucketObserver):
    """An observer of the reduce half: it computes this rank's ``average`` and the gradient's ``norm``."""

    average: torch.Tensor
    norm: float

    def __init__(self, used: UsedParameters, shard: Shard) -> None:
        self._used, self._shard = used, shard

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:
        """Compute the norm, agree with all ranks on the used parameters, and return the cost."""
        link = exchange.link
        self.average = values[self._shard.start : self._shard.stop].div_(link.world)
        norms = torch.zeros(link.world, dtype=torch.float32, device="cpu")  # squares may overflow float32
        norms[link.rank] = torch.linalg.vector_norm(self.average, dtype=torch.float64)
        cost = self._used.agree_on_all(exchange, norms)
        self.norm = math.sqrt(sum(each * each for each in norms.tolist()))
        return cost


class Sharded(WorkerMethod):
    """Synchronous SGD: each rank updates its shard of the weights, and sends the changes to all ranks.

    Compared with ``DSync``, a rank stores only a shard of the optimizer's state and of the exact weights. The
    gradient is encoded in the reduce half only. The broadcast half sends the changes of the weights
    losslessly, in few bits per weight if learning rates are small. After every step, ``model`` is a replica
    with the same bits on all ranks: the exact weights, rounded to ``replicas``.

    If the script writes weights between two steps, for example by ``model.load_state_dict``, the next step
    starts from these weights; all ranks must write the same values. Write within ``torch.no_grad()``, not
    through ``.data``: writes through ``.data`` aren't detected, and the next step undoes them.

    Parameters
    ----------
    model
        A model with dense float32 parameters on one device; any other model raises ``TensorError``. The
        parameters are rounded before the first step.
    optimizer
        An elementwise optimizer of ``torch.optim`` that hasn't stepped yet. The constructor replaces the
        parameters in its groups with this rank's shard.
    plan
        An argument of ``Plan.of``, with the algorithm ``ring`` and one bucket. ``Sharded`` sets the plan's
        ``exchange`` to ``"sharded"`` and its ``pipeline`` to 1.
    replicas
        The dtype of the weights in ``model``: ``"bf16"``, or ``"fp32"`` for weights that aren't rounded.
    max_norm
        The largest 2-norm of an averaged gradient. A gradient with a larger norm is scaled down to this norm;
        None for no clipping.
    strict, group, timeout_s, ledger
        See ``Method``.

    Raises
    ------
    SpecError
        If the optimizer, the plan, ``replicas``, or ``max_norm`` isn't supported.
    ExchangeError
        If ranks differ in plan or options.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: PlanLike = None,
        *,
        replicas: WordName = "bf16",
        max_norm: float | None = None,
        strict: bool = False,
        group: Group = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        check_optimizer(optimizer, "Sharded")
        chosen = Plan.of(plan, exchange="sharded")
        if chosen.algorithm != ALGORITHM or chosen.bucket_nbytes is not None:
            raise SpecError(
                f"Sharded: expected a plan with the algorithm {ALGORITHM} and one bucket, got "
                f"{chosen.algorithm} with bucket_nbytes={chosen.bucket_nbytes}; omit both"
            )
        self._max_norm, self._optimizer = check_max_norm(max_norm), optimizer
        self._deltas = Deltas(replicas, ledger)
        sharded = replace(chosen, exchange="sharded", pipeline=1)
        replace(sharded, codec=self._deltas)  # raises an error if frames of deltas would be too long
        options = f"{sharded.to_json()}, {replicas=}, {max_norm=}, {strict=}"
        super().__init__(model, None, sharded, group, timeout_s, ledger, strict, options=options)

    def masters(self) -> dict[str, torch.Tensor]:
        """Return the exact weights of the whole model, by parameter name. All ranks call this together.

        Raises ``ExchangeError``.
        """
        self.check_open()
        if not self._synchronised:
            self.synchronise()
        self._read()
        flat = self._gradients.buffer
        flat[self._shard.start : self._shard.stop] = self._shard.masters
        count_weights(self.ledger, self.exchange.broadcast(flat, Identity()))
        names = {id(each): name for name, each in self.model.named_parameters()}
        return {
            names[id(each)]: self._gradients.part(number, flat).view(each.shape).clone()
            for number, each in enumerate(self._gradients.parameters)
        }

    def _lay_out(self) -> None:
        parameters, link = self.trained.parameters, self.exchange.link
        check_shardable(self._optimizer, list(self.model.parameters()))
        self._gradients = FlatGradients(parameters)
        self._buckets = self._buckets_of(self._gradients)
        count, chunks = self._gradients.buffer.numel(), ring.chunks(link.world)
        (chunk,) = (each for each in range(chunks) if ring.owner(each, link.world) == link.rank)
        (own,) = segments(count, chunks, chunk, segment_count=max(count, 1))
        self._shard = Shard(parameters, self._optimizer, own.start, own.stop)
        self._written: list[tuple[int, int]] = []
        self._between_steps = True

    def _before_layout(self) -> StepRecord:
        raise SpecError(
            "Sharded: expected the same trainable parameters as at the start, got an unfrozen one; "
            "unfreeze parameters before you create the method, or create a new method and a new optimizer"
        )

    def _step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        started = perf_counter()
        self._shard.check(self._optimizer)
        self._read()
        loss = backward(compute_loss, self._gradients)
        cost = self._reduce_gradients()
        self._between_steps = False
        self._optimizer.step()
        cost += self._broadcast_weights()
        self._between_steps = True
        self._gradients.detach()  # the buffer now contains weights
        return StepRecord.of_wait(cost.total_s, cost).within(perf_counter() - started, loss=loss)

    def _reduce_gradients(self) -> ExchangeCost:
        """Give the optimizer the shard's averaged, clipped gradient; return the cost of the reduce half."""
        used = UsedParameters(self._gradients)
        found = _SumOfShard(used, self._shard)
        cost = self._buckets.run(self._gradients, found, Half.REDUCE)
        if self._max_norm < found.norm < math.inf:
            found.average.mul_(self._max_norm / found.norm)
        self._shard.give(found.average, used.absent)
        return cost

    def _broadcast_weights(self) -> ExchangeCost:
        """Update this rank's replica from all ranks' masters, and return the cost of the broadcast half."""
        shard, carrier = self._shard, self._gradients.buffer  # the gradient's buffer, free until backward
        carrier[shard.start : shard.stop] = shard.masters
        cost = self.exchange.broadcast(carrier, self._deltas.over(carrier))
        round_masters(shard.masters, self._own_words())  # a single rank has nothing to encode
        self._write()
        count_weights(self.ledger, cost)
        return cost

    def _own_words(self) -> torch.Tensor:
        return self._deltas.words[self._shard.start : self._shard.stop]

    @torch.inference_mode(mode=False)  # the words are changed outside of inference mode
    @torch.no_grad()
    def _read(self) -> None:
        """Copy the model's weights to the masters: in the first call, and after the script wrote weights."""
        if self._written and self._written == self._versions():
            return
        flat = torch.cat([on_host(each).reshape(-1) for each in self._gradients.parameters])
        words = torch.empty(flat.numel(), dtype=self._deltas.words.dtype, device="cpu")
        round_masters(flat, words)
        own, masters = slice(self._shard.start, self._shard.stop), self._shard.masters
        if self._written:  # unchanged masters stay exact
            changed = _bits(words[own]) != _bits(self._own_words())
            masters.copy_(torch.where(changed, flat[own], masters))
        else:
            masters.copy_(flat[own])
        self._deltas.hold(words, _FIRST)
        self._write()

    @torch.no_grad()
    def _write(self) -> None:
        for number, each in enumerate(self._gradients.parameters):
            each.copy_(self._gradients.part(number, self._deltas.words).view(each.shape))
        self._written = self._versions()

    def _versions(self) -> list[tuple[int, int]]:
        """Return each parameter's address and version, which change on reallocation and on writes."""
        return [(each.data_ptr(), each._version) for each in self._gradients.parameters]

    def _state(self, drained: bool) -> RankState:
        if not self._between_steps:
            raise StateError(
                f"rank {self.exchange.link.rank}: step {self.steps_done + 1} failed after the update of this "
                "rank's shard, so replicas are inconsistent; continue from the last checkpoint"
            )
        self._read()
        kept = {"masters": self._shard.masters, "words": _bits(self._deltas.words)}
        return replace(super()._state(drained), model=kept)

    def _adopt(self, saved: RankState) -> None:
        kept, shard, count = saved.model or {}, self._shard, self._gradients.buffer.numel()
        masters, words = kept.get("masters"), kept.get("words")
        held = self._deltas.words.dtype
        wanted = (shard.masters.shape, torch.float32, (count,), _BITS[held])
        if (
            masters is None
            or words is None
            or (masters.shape, masters.dtype, tuple(words.shape), words.dtype) != wanted
            or not _are_rounded(masters, words.view(held)[shard.start : shard.stop])
        ):
            raise StateError(
                f"Sharded, with {count} weights and a shard of {shard.masters.numel()}: expected this "
                "rank's state, got a state of another model, method, rank, number of ranks, or kind of "
                "replicas; to change the number of ranks, load the old method.masters() into the model"
            )
        super()._adopt(saved)
        self._shard.masters.copy_(masters)
        with torch.inference_mode(mode=False):  # see ``_read``
            self._deltas.hold(words.clone().view(held), _FIRST)
        self._write()
        self._between_steps = True
        self._synchronised = saved.steps_done > 0  # before the first step, ranks may save different weights


def _bits(words: torch.Tensor) -> torch.Tensor:
    """Return a view of words as integers, which is the format of a saved state."""
    return words.view(_BITS[words.dtype])


def _are_rounded(masters: torch.Tensor, words: torch.Tensor) -> bool:
    rounded = torch.empty_like(words)
    round_masters(masters.contiguous(), rounded)
    return torch.equal(_bits(rounded), _bits(words))
