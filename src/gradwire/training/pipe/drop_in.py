"""``gradwire.PipeSGD``: Pipe-SGD around the model and the optimizer of an ordinary script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from gradwire.api import check_timeout, connect, member_group
from gradwire.codecs import Codec
from gradwire.errors import ExchangeError, SpecError, shown
from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.plan import Plan
from gradwire.training.gradients.clip import check_max_norm
from gradwire.training.gradients.flat import FlatGradients
from gradwire.training.ledger.ledger import Ledger
from gradwire.training.ledger.step_record import StepRecord
from gradwire.training.methods.schedule import note_step
from gradwire.training.methods.trained import check_model, check_optimizer, import_all_of_torch
from gradwire.training.pipe import pipe_sgd
from gradwire.training.pipe.checkpoint import PipeState, State, pack, unpack
from gradwire.training.pipe.correction import CORRECTIONS
from gradwire.training.replicas.compare import check_options, check_replicas
from gradwire.version import version

_PIPELINE = 2  # hides the network; more only adds staleness


class PipeSGD(pipe_sgd.PipeSGD):
    """Train with pipelined SGD in the processes of ``torch.distributed``; see ``training.pipe_sgd.PipeSGD``.

    All ranks make it together and then make the same calls in the same order. It connects with the group's
    other ranks by itself, so that its traffic never mixes with the script's own collectives, and the first
    step copies rank 0's weights and buffers to all ranks. Weights are the same bits on all ranks at every
    moment between two calls.

    As a context manager it drains and closes at the end of the block. A block that raised only closes.

    Parameters
    ----------
    model
        Dense float32 parameters on the CPU. Raises ``TensorError`` otherwise. The module itself: a
        ``DistributedDataParallel`` would average gradients, too.
    optimizer
        Any ``torch.optim`` optimizer of the model's parameters whose ``step`` needs no closure. The script
        does not call its ``step``; it calls the ``step`` of a learning rate scheduler as usual, once per
        step. A gradient is applied with the learning rate of the step that computed it.
    plan
        A plan, whose ``pipeline`` is K, how many steps may be under way at once. Or the file that
        ``Plan.save`` or the planner wrote: any path, or a string that ends with ``.json`` or holds a ``/``.
        Or a codec or its spec, for a ring with a pipeline of 2; by default the codec ``DEFAULT_CODEC`` of
        ``gradwire.api``.
    warmup_steps
        So many first steps are synchronous; the pipeline starts, empty, after them.
    max_norm
        The averaged gradient is scaled down to this 2-norm, over all parameters together, where it is longer;
        above 0. It is the same on all ranks, unlike a clipping of their own gradients. Own gradients of an
        eager pipeline are clipped to it, too, each by its own norm.
    on_average
        Called with the trained parameters when the averaged gradient is in their ``.grad`` (None where no
        rank's backward pass has reached one), before the clipping and the update. It may change or replace
        any ``.grad`` (another that is None then counts as 0), in the same way on all ranks. Own gradients of
        an eager pipeline do not come here.
    correction
        ``"eager"``: compute at weights where this rank's own gradients stand in for the averages that are
        still travelling, which learns about as fast as synchronous training. ``"none"``: the paper's
        pipeline, which computes at stale weights and saves the local update, its time and its memory.
    strict
        Whether a step raises ``LossyError`` on all ranks, instead of a warning on one, where encoding keeps
        taking most of a parameter's gradient away.
    group
        A group of ``torch.distributed`` that this process belongs to; None is the world. Or a ``Link``, such
        as one of ``gradwire.loopback`` in a test, which stays the caller's to close.
    timeout_s
        How long any single wait for a peer lasts before it is an error; above 0, at most 1e6 seconds.
    ledger
        Counts bytes and seconds by bucket and step; the caller closes it.

    Raises
    ------
    SpecError
        For a plan, a warm-up, a norm or a timeout that cannot be, for a DDP model, and for an optimizer of
        other parameters.
    ExchangeError
        When ``torch.distributed`` is not initialised, this process is not in the group, the other ranks do
        not come within the timeout or have other options.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: Plan | Codec | str | os.PathLike[str] | None = None,
        *,
        warmup_steps: int = 0,
        max_norm: float | None = None,
        on_average: Callable[[Sequence[Parameter]], object] = lambda _: None,
        correction: str = CORRECTIONS[0],
        strict: bool = False,
        group: dist.ProcessGroup | Link | None = None,
        timeout_s: float = 30.0,
        ledger: Ledger | None = None,
    ) -> None:
        chosen = Plan.of(plan, pipeline=_PIPELINE)
        longest = check_max_norm(max_norm)

        def treat(gradients: FlatGradients) -> None:
            on_average(gradients.parameters)
            gradients.collect()

        check_timeout(timeout_s)
        check_model(model, "PipeSGD")
        check_optimizer(optimizer, "PipeSGD")
        if not callable(on_average):
            raise SpecError(f"on_average must be a function of the parameters, but is {shown(on_average)}")
        import_all_of_torch()
        link = group if isinstance(group, Link) else _connect(group, timeout_s)
        self._own_link = None if link is group else link
        try:
            exchange = Exchange(link, chosen)
            options = f"{chosen.to_json()}, {warmup_steps=}, {max_norm=}, {correction=}, {strict=}"
            options += f", gradwire {version()}"
            check_options(options, exchange)
            super().__init__(
                model,
                optimizer,
                exchange,
                chosen.pipeline,
                warmup_steps,
                treat,
                ledger,
                correction,
                longest,
                strict,
            )
        except BaseException:
            self._close_own_link()
            raise

    @property
    def plan(self) -> Plan:
        """How gradients are exchanged."""
        return self.exchange.plan

    def step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch; see ``WorkerMethod.step``."""
        record = super().step(compute_loss)
        note_step(self._optimizer)
        return record

    @contextmanager
    def evaluating(self) -> Iterator[StepRecord]:
        """Drain, and keep the model in evaluation mode within a ``with`` block.

        Every module returns to the mode that it had, also one that was frozen in evaluation mode. The value
        of the ``with`` is what the drain cost. All ranks drain together, even if only some of them evaluate
        then. Raises what ``drain`` raises.
        """
        drained = self.drain()
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        try:
            yield drained
        finally:
            for module, training in modes.items():
                module.training = training

    def check_replicas(self) -> None:
        """Compare all ranks' weights and buffers, bit for bit; all ranks call it together, at any moment.

        Of buffers those that ``state_dict`` holds, but for the running statistics of normalisation layers,
        which are each rank's own while it trains. It waits for what is on the network and applies none of it.
        Raises ``StateError`` on every rank, naming the ranks that differ, and ``ExchangeError``.
        """
        self.check_open()
        self.settle()
        check_replicas(self.model, self.exchange)

    def state_dict(self, *, drain: bool = False) -> State:
        """Return what a checkpoint needs beside the states of model, optimizer and scheduler.

        Waits until the gradients that were handed over are averaged, and keeps them as they are, with the
        hyperparameters of their steps: the pipeline goes on as if nothing had been saved. So does one that
        loads the state, bit for bit. With ``drain`` they are applied first. All ranks call it together, for
        an eager pipeline gives rank 0's buffers to all of them; take the states of model and optimizer after
        this call.

        Returns
        -------
        dict
            Flat: texts and float32 CPU tensors, as ``checkpoint`` tells. Every rank's is its own.

        Raises
        ------
        ExchangeError
            What the exchange of a gradient in flight raised, or that of the buffers.
        """
        self.check_whole()
        if drain:
            self.drain()
        in_flight = self.in_flight()  # nothing is on the network from here on, so the residuals rest
        if not (drain or self.closed):
            self.agree_on_buffers()
        residuals = self.residuals.state_dict()["residuals"]
        link = self.exchange.link
        own = PipeState(link.rank, link.world, self.steps_done, in_flight, residuals)
        return pack(own, self.pipeline, self.count, self.own_count)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called on this rank, dropping what is in flight here.

        Model, optimizer and scheduler load their own states, in any order with this one. All ranks load.

        Raises ``StateError``, and changes nothing, for the state of another rank, another world or another
        model; ``gradwire.training.pipe.checkpoint.redivide`` makes states for another world.
        """
        self.check_open()
        link = self.exchange.link
        own = unpack(state, link.rank, link.world)
        self._grow()
        self.settle()
        self.check_fits(own.in_flight)
        self.residuals.load_state_dict(own.of_residuals())
        self.resume(own.steps_done, own.in_flight)

    def close(self) -> None:
        """Finish what is on the network, apply none of it, and close the connections; may be called twice.

        Raises ``LinkTimeoutError`` if the communication thread does not end.
        """
        try:
            super().close()
        finally:
            self._close_own_link()

    def _close_own_link(self) -> None:
        if self._own_link is not None:
            self._own_link.close()


def _connect(group: dist.ProcessGroup | None, timeout_s: float) -> Link:
    chosen = member_group(group, "make a PipeSGD", ", or give PipeSGD a Link as its group")
    return connect(chosen, timeout_s, ExchangeError, "; do all ranks of the group make a PipeSGD?")
