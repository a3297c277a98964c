"""Training over ``DistributedDataParallel``, with one of its hooks or gradwire's: what people have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gradwire.attached import Attached
from gradwire.autotune.decision import Decision
from gradwire.costs import ExchangeCost
from gradwire.launch.rendezvous import in_words
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import StepRecord


class OnDDP:
    """One rank's training loop body on DDP, with the calls of a ``WorkerMethod``.

    The wait for communication begins when backward has computed the last gradient and ends when backward
    returns. gradwire's ledger says how codec and network share it, and how many bytes travelled. PyTorch
    counts no bytes: what stands here is what a ring all-reduce sends.

    ``hook`` is called with the DDP model, to register a hook or to attach gradwire; None leaves DDP as it is.
    It sends a number in ``float_nbytes`` bytes. Without ``bucket_mb``, DDP cuts its buckets as it comes: its
    first one ends at 1 MiB, and the others at 25. ``timeout_s`` is the group's, for messages.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        hook: Callable[[DistributedDataParallel], object] | None = None,
        group: dist.ProcessGroup | None = None,
        *,
        bucket_mb: float | None = None,
        float_nbytes: int = 4,
        timeout_s: float = 60.0,
    ) -> None:
        self.ddp = DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
        )
        self._optimizer, self._float_nbytes, self._timeout_s = optimizer, float_nbytes, timeout_s
        self._hooked = None if hook is None else hook(self.ddp)
        self._world = dist.get_world_size(group)
        self._count = sum(each.numel() for each in model.parameters())
        self._computed = 0.0
        for each in model.parameters():
            each.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]
        self._waits = StepRecord()
        self._told = self._counted()

    def step(self, compute_loss: Callable[[], torch.Tensor]) -> StepRecord:
        """Train on one batch; ``compute_loss`` calls ``ddp``. ``drain`` returns the waits."""
        began = perf_counter()
        self._optimizer.zero_grad()
        loss = compute_loss()
        with self._in_words():
            loss.backward()  # type: ignore[no-untyped-call]
        averaged = perf_counter()
        self._optimizer.step()
        wait_s = averaged - self._computed
        self._waits += StepRecord(exposed_s=wait_s, steps=1)
        compute_s = perf_counter() - began - wait_s
        return StepRecord(loss=loss.item(), compute_s=compute_s, steps=1)

    @property
    def decisions(self) -> list[tuple[int, Decision]]:
        """The steps before which the run has chosen a plan, where it chooses, and what was decided."""
        return self._hooked.decisions if isinstance(self._hooked, Attached) else []

    @property
    def chosen(self) -> Plan | None:
        """The plan that the run has chosen last, where it chooses."""
        return self.decisions[-1][1].plan if self.decisions else None

    def drain(self) -> StepRecord:
        """Return the waits of the steps since the last call; nothing is under way."""
        waits, self._waits = self._waits, StepRecord()
        if isinstance(self._hooked, Attached):
            total = self._counted()
            cost, self._told = total - self._told, total
        else:
            floats = round(2 * (self._world - 1) / self._world * self._count) * waits.steps
            cost = ExchangeCost(raw_nbytes=4 * floats, wire_nbytes=self._float_nbytes * floats)
        return StepRecord.of_wait(waits.exposed_s, cost)

    def close(self) -> None:
        """Close what gradwire attached; may be called twice."""
        if isinstance(self._hooked, Attached):
            self._hooked.close()

    def _in_words(self) -> AbstractContextManager[None]:
        """Turn what torch's own exchange raises into a ``LinkError``; gradwire's errors say enough."""
        if isinstance(self._hooked, Attached):
            return nullcontext()
        return in_words(f"rank {dist.get_rank()} averaged gradients", self._timeout_s)

    def _counted(self) -> ExchangeCost:
        """Return the counts of gradwire's ledger since the beginning, if there is one."""
        return (
            self._hooked.ledger.summary().total.cost if isinstance(self._hooked, Attached) else ExchangeCost()
        )

    def _note(self, _parameter: torch.Tensor) -> None:
        self._computed = perf_counter()


def bf16_hook(ddp: DistributedDataParallel) -> None:
    """Register torch's own bfloat16 hook, which DDP refuses without NCCL by its name, though Gloo sums it."""
    ddp.register_comm_hook(ddp.process_group, _bf16_on_gloo)


def _bf16_on_gloo(state, bucket):  # type: ignore[no-untyped-def] # DDP wants annotations to be classes
    return default_hooks.bf16_compress_hook(state, bucket)
