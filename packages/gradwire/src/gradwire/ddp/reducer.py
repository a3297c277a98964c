"""DDP's buckets, handed to ``GradientSync`` one by one during a backward pass, which ends with averages.

DDP calls a hook with its buckets in the order of their numbers, on all ranks, also where backward fills them
in another order (a bucket whose turn has not come waits: ``Reducer::mark_bucket_ready``), and after it has
cut the buckets anew (all ranks follow rank 0's bucket assignment).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch.autograd import Variable

from gradwire.ddp.join import count_active
from gradwire.errors import ExchangeError, TensorError
from gradwire.sync.buckets import float_count
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.ledger.lost import Layout
from gradwire.sync.work import GradientBucket


class DDPBucket(Protocol):
    """The part of ``torch.distributed.GradBucket`` that this room uses."""

    def index(self) -> int:
        """Return its number, from 0 up."""

    def is_last(self) -> bool:
        """Return whether it is the last one of its backward pass."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients, 1-D unless they are sparse."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters in the order of their gradients in the buffer."""


class BucketReducer:
    """Averages the buckets of one model's backward passes.

    Parameters
    ----------
    sync
        The model's.
    names
        The names of the model's parameters, by which residuals are kept.
    """

    def __init__(self, sync: GradientSync, names: Mapping[torch.Tensor, str]) -> None:
        self._sync, self._rank, self._names = sync, sync.context.rank, names
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._next = 0

    def take(
        self, bucket: DDPBucket, *, last_waits: bool, by_active: bool = False
    ) -> torch.futures.Future[torch.Tensor]:
        """Hand one bucket over and return its average; after the last one, backward ends when all are there.

        With ``last_waits`` that is waited for here, not in a callback of the autograd engine. With
        ``by_active``, the same on all ranks, averages are over the ranks that have not joined.
        """
        sync, index, last = self._sync, bucket.index(), bucket.is_last()
        sync.check()
        if index != self._next:
            raise self._out_of_turn(index)
        if index == 0:
            sync.begin(active=count_active(sync) if by_active else None)
        self._next = 0 if last else index + 1
        work = sync.start(GradientBucket(index, self._dense(bucket), last, self.layout_of(bucket)))
        if last and (last_waits or not _queued_in_engine(self._finish)):
            self._finish()
        return work.get_future()

    def layout_of(self, bucket: DDPBucket) -> Layout:
        """Return the layout of a bucket: residuals outlive DDP's cut of buckets."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key in self._layouts:
            return self._layouts[key]
        other = f"a parameter of bucket {bucket.index()}"
        names = tuple(self._names.get(each, other) for each in parameters)
        counts = tuple(float_count(each) for each in parameters)
        layout = Layout(names, counts, (frozenset(names),) * len(names))
        if other not in names:  # else another parameter may come to its place
            self._layouts[key] = layout
        elif self._sync.plan.keeps_residual:
            shape = tuple(parameters[names.index(other)].shape)
            raise self._sync.fail(
                TensorError(
                    f"rank {self._rank}: DDP averages a parameter of shape {shape} that the model "
                    "does not have any more, so its residual has no name; replace parameters before wrapping"
                )
            )
        return layout

    def _dense(self, bucket: DDPBucket) -> torch.Tensor:
        """Return the gradients of a bucket. Raises ``TensorError`` if they are sparse."""
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise self._sync.fail(
                TensorError(
                    f"rank {self._rank}: bucket {bucket.index()} holds sparse gradients, which "
                    "gradwire does not exchange; make its embedding with sparse=False"
                )
            )
        return buffer

    def _out_of_turn(self, index: int) -> BaseException:
        """Return why bucket ``index`` cannot be averaged now; the exchange has ended with it."""
        return self._sync.fail(
            ExchangeError(
                f"rank {self._rank}: DDP handed bucket {index} over where bucket {self._next} was "
                "next, so the ranks may be out of step; did an earlier backward pass end half-way?"
            )
        )

    def _finish(self) -> None:
        """Wait for the step's buckets; backward raises what this raises."""
        self._sync.collect()
        # After DDP's own end: an error before it would leave DDP in the middle of a pass, of no further use.
        if not _queued_in_engine(self._sync.end_step):
            self._sync.end_step()


def _queued_in_engine(callback: Callable[[], None]) -> bool:
    """Let autograd call this when backward has ended, before DDP's own end; False outside of a backward pass.

    DDP queues its own after the last bucket's hook has returned. It waits for the futures without a limit and
    would turn their exceptions into a ``RuntimeError`` about types.
    """
    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True
