"""Training with ``DistributedDataParallel``: plain, with a torch hook, or with gradwire attached."""

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
from gradwire.costs import ExchangeCost
from gradwire.launch.rendezvous import in_words
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import PlanChoice, StepRecord


class OnDDP:
    """One rank's training steps on DDP, with the methods of a ``WorkerMethod``.

    The wait for communication begins when backward has computed the last gradient, and ends when backward
    returns. gradwire's ledger reports the time of codecs and network, and the bytes sent. PyTorch reports no
    bytes, so the bytes of a ring all-reduce are computed.

    ``hook`` is called with the DDP model to register a hook or to attach gradwire; None is plain DDP. A torch
    hook sends each float in ``float_nbytes`` bytes. Without ``bucket_mb``, DDP's default buckets are used:
    the first bucket has 1 MiB, and the other buckets have 25 MiB. ``timeout_s`` is the group's timeout, for
    error messages.
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
        """Train on one batch with a ``compute_loss`` that calls ``ddp``. ``drain`` returns the waits."""
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
    def decisions(self) -> list[tuple[int, PlanChoice]]:
        """The steps before which a run with ``auto`` chose a plan, each with the choice."""
        return self._hooked.decisions if isinstance(self._hooked, Attached) else []

    @property
    def chosen(self) -> Plan | None:
        """The last plan that a run with ``auto`` chose, or None."""
        return self.decisions[-1][1].plan if self.decisions else None

    def drain(self) -> StepRecord:
        """Return the waits and bytes of the steps since the last call. No exchange is left in flight."""
        waits, self._waits = self._waits, StepRecord()
        if isinstance(self._hooked, Attached):
            total = self._counted()
            cost, self._told = total - self._told, total
        else:
            floats = round(2 * (self._world - 1) / self._world * self._count) * waits.steps
            cost = ExchangeCost(raw_nbytes=4 * floats, wire_nbytes=self._float_nbytes * floats)
        return StepRecord.of_wait(waits.exposed_s, cost)

    def close(self) -> None:
        """Close gradwire, if it is attached. Repeated calls are allowed."""
        if isinstance(self._hooked, Attached):
            self._hooked.close()

    def _in_words(self) -> AbstractContextManager[None]:
        """Convert errors of torch's own exchange into ``LinkError``. Errors of gradwire pass through."""
        if isinstance(self._hooked, Attached):
            return nullcontext()
        return in_words(f"rank {dist.get_rank()} averaged gradients", self._timeout_s)

    def _counted(self) -> ExchangeCost:
        """Return the total cost in gradwire's ledger, or zeros without gradwire."""
        return (
            self._hooked.ledger.summary().total.cost if isinstance(self._hooked, Attached) else ExchangeCost()
        )

    def _note(self, _parameter: torch.Tensor) -> None:
        self._computed = perf_counter()


def bf16_hook(ddp: DistributedDataParallel) -> None:
    """Register torch's bfloat16 hook by another name: DDP rejects torch's name without NCCL."""
    ddp.register_comm_hook(ddp.process_group, _bf16_on_gloo)


def _bf16_on_gloo(state, bucket):  # type: ignore[no-untyped-def] # DDP wants annotations to be classes
    return default_hooks.bf16_compress_hook(state, bucket)
