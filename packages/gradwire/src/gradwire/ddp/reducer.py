"""The reducer of DDP's buckets, which passes each to ``GradientSync`` during a backward pass.

DDP calls a hook with its buckets in the order of their numbers, on all ranks, even if backward fills them in
a different order (a bucket waits for its turn: ``Reducer::mark_bucket_ready``), and after it has rebuilt the
buckets (all ranks follow rank 0's bucket assignment).
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
        """Return the bucket's number, from 0."""

    def is_last(self) -> bool:
        """Return whether this is the last bucket of its backward pass."""

    def buffer(self) -> torch.Tensor:
        """Return the gradients, 1-D unless they are sparse."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters in the order of their gradients in the buffer."""


class BucketReducer:
    """The reducer that averages the buckets of one model's backward passes.

    Parameters
    ----------
    sync
        The model's ``GradientSync``.
    names
        The names of the model's parameters, which are the keys of residuals.
    """

    def __init__(self, sync: GradientSync, names: Mapping[torch.Tensor, str]) -> None:
        self._sync, self._rank, self._names = sync, sync.context.rank, names
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._next = 0

    def take(
        self, bucket: DDPBucket, *, last_waits: bool, by_active: bool = False
    ) -> torch.futures.Future[torch.Tensor]:
        """Start the exchange of one bucket, and return the future of its average.

        After the last bucket, backward waits for all averages: in a callback of the autograd engine or, with
        ``last_waits``, in this call. With ``by_active``, the same on all ranks, averages are over the ranks
        that have not joined.
        """
        sync, index, last = self._sync, bucket.index(), bucket.is_last()
        sync.check()
        if index != self._next:
            raise self._out_of_turn(index)
        if index == 0:
            sync.begin(active=count_active(sync) if by_active else None)
        self._next = 0 if last else index + 1
        dense, layout = self._dense(bucket), self.layout_of(bucket)
        work = sync.start(GradientBucket(index, dense, last, layout, wants_future=True))
        if last and (last_waits or not _queued_in_engine(self._finish)):
            self._finish()
        return work.get_future()

    def layout_of(self, bucket: DDPBucket) -> Layout:
        """Return the layout of a bucket, by parameter names, because residuals outlive DDP's buckets."""
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        if key in self._layouts:
            return self._layouts[key]
        other = f"a parameter of bucket {bucket.index()}"
        names = tuple(self._names.get(each, other) for each in parameters)
        counts = tuple(float_count(each) for each in parameters)
        layout = Layout(names, counts, (frozenset(names),) * len(names))
        if other not in names:  # else its id may be reused by another parameter
            self._layouts[key] = layout
        elif self._sync.plan.keeps_residual:
            shape = tuple(parameters[names.index(other)].shape)
            raise self._sync.fail(
                TensorError(
                    f"rank {self._rank}: DDP averages a parameter of shape {shape} that the model no longer "
                    "has, so its residual has no name; replace parameters before wrapping the model"
                )
            )
        return layout

    def _dense(self, bucket: DDPBucket) -> torch.Tensor:
        """Return the gradients of a bucket. Raises ``TensorError`` if they are sparse."""
        buffer = bucket.buffer()
        if buffer.layout != torch.strided:
            raise self._sync.fail(
                TensorError(
                    f"rank {self._rank}: expected dense gradients in bucket {bucket.index()}, got sparse "
                    "ones; create its embedding with sparse=False"
                )
            )
        return buffer

    def _out_of_turn(self, index: int) -> BaseException:
        """End the exchange because of an unexpected bucket, and return the error to raise."""
        return self._sync.fail(
            ExchangeError(
                f"rank {self._rank}: expected bucket {self._next} from DDP, got bucket {index}, so the ranks "
                "may be out of step; look for an earlier backward pass that raised an error"
            )
        )

    def _finish(self) -> None:
        """Wait for the step's buckets; errors are raised by backward."""
        self._sync.collect()
        # After DDP's own callback: an earlier error would leave DDP unusable, in the middle of a pass.
        if not _queued_in_engine(self._sync.end_step):
            self._sync.end_step()


def _queued_in_engine(callback: Callable[[], None]) -> bool:
    """Queue a callback for the end of the backward pass; return whether one is running.

    DDP queues its own callback later, after the last bucket's hook has returned. That callback waits for the
    futures without a timeout, and would turn their exceptions into a ``RuntimeError`` about types.
    """
    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True
