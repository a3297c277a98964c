"""Synchronous SGD whose update is divided among the ranks, and whose weights travel without loss.

The gradient is reduced and scattered through the plan's codec; each rank steps its shard of exact weights,
with its share of the optimizer's state (ZeRO's first stage: Rajbhandari et al., SC 2020); and the others get
what the update has changed in the weights that they hold, entropy coded and bit for bit.
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

from gradwire.collectives import ring
from gradwire.collectives.frame_order import segments
from gradwire.costs import ExchangeCost
from gradwire.devices import on_host
from gradwire.entropy.delta import WordName, round_masters
from gradwire.errors import SpecError, StateError
from gradwire.exchange import Exchange
from gradwire.exchange.request import Half
from gradwire.plan import Plan, PlanLike
from gradwire.sync.checkpoint import RankState
from gradwire.sync.deltas import Deltas
from gradwire.sync.flat import FlatGradients
from gradwire.sync.ledger.counts import StepRecord
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.method import Group, WorkerMethod
from gradwire.sync.observe import BucketObserver
from gradwire.sync.replicas import count_weights
from gradwire.sync.trained import check_optimizer, strangers
from gradwire.sync.used_parameters import Reach, backward, check_max_norm

# One rank's shard of the weights: exact masters, and the optimizer that steps them.

_NAMES = ("ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
ELEMENTWISE = frozenset(getattr(torch.optim, name) for name in _NAMES)
"""Optimizers whose update of one weight depends on no other weight, so that any part can be stepped.

Adagrad's does, too, but its state exists before the first step, for whole parameters.
"""


class Shard:
    """One rank's share of the weights: ``start`` up to ``stop`` in the order of the flat gradient.

    The optimizer, which has no state yet, holds 1-D slices of ``masters`` instead of the parameters from now
    on, each in its parameter's group: its state is that of the shard alone. ``masters`` are the exact
    weights, 1-D float32 on the CPU, filled by the owner.
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
        """Give the optimizer the shard's gradient; None for the parameters whose numbers are ``absent``."""
        for number, (part, low, high) in self._slices.items():
            part.grad = None if number in absent else gradient[low:high]

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise ``SpecError`` if the optimizer has got parameters whose gradients are not averaged."""
        strange = strangers(optimizer, {id(part) for part, _, _ in self._slices.values()})
        if strange:
            raise SpecError(
                "expected an optimizer of this rank's share of the weights, but it got "
                f"{len(strange)} parameters since (the first of shape {tuple(strange[0].shape)}); make a new "
                "method and a new optimizer with them"
            )


def check_shardable(optimizer: torch.optim.Optimizer, parameters: Sequence[Parameter]) -> None:
    """Raise ``SpecError`` for an optimizer that cannot step a part of these weights."""
    if type(optimizer) not in ELEMENTWISE:
        raise SpecError(
            "a Sharded method steps each rank's part of the weights by itself, which needs an elementwise "
            f"optimizer ({', '.join(_NAMES)}), but this is a {type(optimizer).__name__}; use DSync with it"
        )
    if optimizer.state:
        raise SpecError(
            "a Sharded method divides the optimizer's state among the ranks, so it expects one that has not "
            "stepped yet; make it anew, and load its own state afterwards"
        )
    if strangers(optimizer, set(map(id, parameters))):
        raise SpecError(
            "the optimizer of a Sharded method holds its model's parameters only, but has others; "
            "make it from model.parameters()"
        )


ALGORITHM = "ring"
"""The one whose reduce half leaves every rank with the sum of a part of its own, of equal size."""
_BITS: Final = {torch.bfloat16: torch.int16, torch.float32: torch.int32}
_FIRST: Final = 0
"""The version of the words that all ranks read from a model or a state."""


class _SumOfShard(BucketObserver):
    """The end of the reduce half: ``average`` of this rank's shard, and ``norm`` of the whole gradient."""

    average: torch.Tensor
    norm: float

    def __init__(self, used: Reach, shard: Shard) -> None:
        self._used, self._shard = used, shard

    def after(self, values: torch.Tensor, exchange: Exchange) -> ExchangeCost:
        """Agree on the norm and on the parameters that no rank has used; return the cost."""
        link = exchange.link
        self.average = values[self._shard.start : self._shard.stop].div_(link.world)
        norms = torch.zeros(link.world, dtype=torch.float32, device="cpu")  # squares may be too large for it
        norms[link.rank] = torch.linalg.vector_norm(self.average, dtype=torch.float64)
        cost = self._used.agree_on_all(exchange, norms)
        self.norm = math.sqrt(sum(each * each for each in norms.tolist()))
        return cost


class Sharded(WorkerMethod):
    """Synchronous SGD in which each rank updates its share of the weights, and the changes are exchanged.

    Compared with ``DSync``, a rank keeps one share of the optimizer's state and of the exact weights, the
    gradient is encoded in the reduce half only, and the broadcast half carries the changes of the replicas,
    without loss: few bits a weight where learning rates are small. The replicas, ``model``, have the same
    bits on all ranks after every step: the exact weights, rounded to ``replicas``.

    Weights that are written between two steps, as ``model.load_state_dict`` does, are adopted; all ranks
    write the same. Writes through ``.data`` go unnoticed, and the next step undoes them: write within
    ``torch.no_grad()`` instead.

    Parameters
    ----------
    model
        Dense float32 parameters on one device. They are rounded before the first step. Raises ``TensorError``
        otherwise.
    optimizer
        An elementwise one of ``torch.optim`` that has not stepped yet. Its groups receive this rank's share.
    plan
        What ``Plan.of`` reads, with the algorithm ``ring`` and one bucket; its ``exchange`` is sharded and
        its ``pipeline`` 1, whatever it says.
    replicas
        ``"bf16"``, or ``"fp32"`` for weights that are not rounded.
    max_norm
        The largest 2-norm of an averaged gradient, scaled down to it otherwise; None for no clipping.
    strict, group, timeout_s, ledger
        See ``Method``.

    Raises
    ------
    SpecError
        For another optimizer, plan, or value.
    ExchangeError
        For ranks that differ in plan or options.
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
                f"a Sharded method expects a plan with the algorithm {ALGORITHM} and one bucket, but got "
                f"{chosen.algorithm} with bucket_nbytes={chosen.bucket_nbytes}; leave both out"
            )
        self._max_norm, self._optimizer = check_max_norm(max_norm), optimizer
        self._deltas = Deltas(replicas, ledger)
        sharded = replace(chosen, exchange="sharded", pipeline=1)
        replace(sharded, codec=self._deltas)  # do their frames fit?
        options = f"{sharded.to_json()}, {replicas=}, {max_norm=}, {strict=}"
        super().__init__(model, None, sharded, group, timeout_s, ledger, strict, options=options)

    def masters(self) -> dict[str, torch.Tensor]:
        """Return the exact weights of all ranks, by their names; all ranks call it together.

        Raises ``ExchangeError``.
        """
        self.check_open()
        if not self._synchronised:
            self.synchronise()
        self._read()
        flat = self._gradients.buffer
        flat[self._shard.start : self._shard.stop] = self._shard.masters
        count_weights(self.ledger, Exchange(self.exchange.link, Plan.of("identity")).broadcast(flat))
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
            "a Sharded method divides the weights once, but a parameter asks for a gradient since then; "
            "unfreeze it before, or make a new method and a new optimizer"
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
        self._gradients.detach()  # nothing of the gradient is left in it
        return StepRecord.of_wait(cost.total_s, cost).within(perf_counter() - started, loss=loss)

    def _reduce_gradients(self) -> ExchangeCost:
        """Give the optimizer the averages of its shard."""
        used = Reach(self._gradients)
        found = _SumOfShard(used, self._shard)
        cost = self._buckets.run(self._gradients, found, Half.REDUCE)
        if self._max_norm < found.norm < math.inf:
            found.average.mul_(self._max_norm / found.norm)
        self._shard.give(found.average, used.absent)
        return cost

    def _broadcast_weights(self) -> ExchangeCost:
        """Let the replicas follow the masters of all ranks."""
        shard, carrier = self._shard, self._gradients.buffer  # free until the next backward pass
        carrier[shard.start : shard.stop] = shard.masters
        cost = self.exchange.broadcast(carrier, self._deltas.over(carrier))
        round_masters(shard.masters, self._own_words())  # alone, a rank encodes nothing
        self._write()
        count_weights(self.ledger, cost)
        return cost

    def _own_words(self) -> torch.Tensor:
        return self._deltas.words[self._shard.start : self._shard.stop]

    @torch.inference_mode(mode=False)  # the words are changed again outside
    @torch.no_grad()
    def _read(self) -> None:
        """Adopt the model's weights, at first and where they were written since."""
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
        """Return a mark of each parameter that changes when it is written or its memory is replaced."""
        return [(each.data_ptr(), each._version) for each in self._gradients.parameters]

    def _state(self, drained: bool) -> RankState:
        if not self._between_steps:
            raise StateError(
                f"rank {self.exchange.link.rank} has updated its share of the weights in step "
                f"{self.steps_done + 1}, which failed before all ranks had the others' shares; go on from "
                "the last checkpoint"
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
                f"a Sharded method of {count} weights, {shard.masters.numel()} of them on this rank, "
                "expected its own state, got one of another model, method, rank, number of ranks, or kind of "
                "replicas; with other ranks, load the method.masters() of the old ones into the model"
            )
        super()._adopt(saved)
        self._shard.masters.copy_(masters)
        with torch.inference_mode(mode=False):  # as in ``_read``
            self._deltas.hold(words.clone().view(held), _FIRST)
        self._write()
        self._between_steps = True
        self._synchronised = saved.steps_done > 0  # before the first step ranks save different weights


def _bits(words: torch.Tensor) -> torch.Tensor:
    """Return words as whole numbers, as a state keeps them."""
    return words.view(_BITS[words.dtype])


def _are_rounded(masters: torch.Tensor, words: torch.Tensor) -> bool:
    rounded = torch.empty_like(words)
    round_masters(masters.contiguous(), rounded)
    return torch.equal(_bits(rounded), _bits(words))
