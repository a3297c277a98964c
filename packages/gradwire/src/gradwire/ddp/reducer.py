"""The reducer of DDP's buckets, which passes each bucket to ``GradientSync`` during a backward pass.

On all ranks, DDP calls a hook with its buckets in the order of their numbers, even if backward fills them in
a different order (``Reducer::mark_bucket_ready`` holds a bucket back until its turn). The order is also the
same after DDP has rebuilt the buckets, because all ranks follow rank 0's bucket assignment.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Protocol

import torch
from torch import nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from gradwire.costs import ExchangeCost
from gradwire.errors import AttachError, ExchangeError, TensorError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.bucket.work import GradientBucket
from gradwire.sync.flat.gradients import float_count
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.layout import Layout
from gradwire.sync.replicas.compare import joins

# The number of ranks that still have batches under DDP's ``join``.
#
# A rank that has joined contributes zeros to the other ranks' collectives, and
# ``join(divide_by_initial_world_size=False)`` divides by the number of ranks that have not joined. DDP does
# not pass that number to hooks, so the ranks count themselves.

_SHADOWS = getattr(DistributedDataParallel, "_match_all_reduce_for_bwd_pass", None)
"""DDP's function that calls the hook on a rank that has joined, or None if this torch lacks it."""


def divides_by_active(model: nn.Module) -> bool:
    """Return whether a model divides its gradients by the number of ranks that still have batches.

    The result is the same on all ranks. In a ``Join`` of several models, DDP does this only for the first
    model.
    """
    is_first = getattr(getattr(model, "_join_config", None), "is_first_joinable", False)
    return joins(model) and is_first and not getattr(model, "_divide_by_initial_world_size", True)


def has_joined() -> bool:
    """Return whether DDP is calling the hook for a joined rank. Raises ``AttachError`` if this is unknown."""
    if _SHADOWS is None:
        raise AttachError(
            f"gradwire cannot detect joined ranks with torch {torch.__version__}; omit "
            "divide_by_initial_world_size=False from join, so that join divides by the number of all ranks"
        )
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not _SHADOWS.__code__:
        frame = frame.f_back
    return frame.f_code is _SHADOWS.__code__


def count_active(sync: GradientSync) -> int:
    """Wait until all ranks have begun the step, and return the number of ranks that still have batches.

    All ranks must call this function at the same point. The ledger counts the exchange. Raises
    ``ExchangeError``.
    """
    began = perf_counter()
    active = torch.tensor([float(not has_joined())], dtype=torch.float32, device="cpu")

    def count(exchange: Exchange) -> ExchangeCost:
        timeout_s = sync.context.begin_timeout_s
        return Exchange(exchange.link, Plan()).all_reduce(active, average=False, timeout_s=timeout_s)

    cost = sync.exchange_now("the count of ranks with batches, under join,", count)
    sync.context.count("join", cost, perf_counter() - began)
    return max(int(active.item()), 1)


class DDPBucket(Protocol):
    """The part of ``torch.distributed.GradBucket`` that this package uses."""

    def index(self) -> int:
        """Return the bucket's number, from 0."""

    def is_last(self) -> bool:
        """Return whether this is the last bucket of its backward pass."""

    def buffer(self) -> torch.Tensor:
        """Return the bucket's gradients as a 1-D tensor, or as a sparse tensor."""

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters in the order of their gradients in the buffer."""


class BucketReducer:
    """The reducer of one model's buckets. The parameters' ``names`` are the keys of their residuals."""

    def __init__(self, sync: GradientSync, names: Mapping[torch.Tensor, str]) -> None:
        self._sync, self._rank, self._names = sync, sync.context.rank, names
        self._layouts: dict[tuple[int, ...], Layout] = {}
        self._next = 0

    def take(
        self, bucket: DDPBucket, *, last_waits: bool, by_active: bool = False
    ) -> torch.futures.Future[torch.Tensor]:
        """Start the exchange of one bucket, and return the future of its average.

        After the last bucket, backward waits for all averages: in a callback of the autograd engine or, with
        ``last_waits``, in this call. With ``by_active``, averages are over the ranks that have not joined;
        the flag must be the same on all ranks.
        """
        sync, index, last = self._sync, bucket.index(), bucket.is_last()
        sync.check()
        if index != self._next:
            raise sync.fail(
                ExchangeError(
                    f"rank {self._rank}: expected bucket {self._next} from DDP, got bucket {index}; after an "
                    "error in backward, wrap the module in a new DistributedDataParallel, and attach that"
                )
            )
        if index == 0:
            sync.begin(active=count_active(sync) if by_active else None)
        self._next = 0 if last else index + 1
        if (buffer := bucket.buffer()).layout != torch.strided:
            raise sync.fail(
                TensorError(
                    f"rank {self._rank}: expected dense gradients in bucket {index}, got sparse gradients; "
                    "create the embedding with sparse=False"
                )
            )
        work = sync.start(GradientBucket(index, buffer, last, self.layout_of(bucket), wants_future=True))
        if last and (last_waits or not _queued_in_engine(self._finish)):
            self._finish()
        return work.get_future()

    def layout_of(self, bucket: DDPBucket) -> Layout:
        """Return a bucket's layout by names of parameters, because residuals outlive DDP's buckets."""
        parameters = bucket.parameters()
        if (key := tuple(map(id, parameters))) in self._layouts:
            return self._layouts[key]
        other = f"a parameter of bucket {bucket.index()}"
        names = tuple(self._names.get(each, other) for each in parameters)
        counts = tuple(float_count(each) for each in parameters)
        layout = Layout.of_bucket(names, counts)
        if other not in names:  # otherwise, a later parameter may reuse the unknown parameter's id
            self._layouts[key] = layout
        elif self._sync.plan.keeps_residual:
            shape = tuple(parameters[names.index(other)].shape)
            raise self._sync.fail(
                TensorError(
                    f"rank {self._rank}: expected only parameters of the model in a bucket, got one of shape "
                    f"{shape} that the model no longer has; replace parameters before wrapping the model"
                )
            )
        return layout

    def _finish(self) -> None:
        self._sync.collect()
        # An error before DDP's own callback would leave DDP in the middle of a pass, and unusable.
        if not _queued_in_engine(self._sync.end_step):
            self._sync.end_step()


def _queued_in_engine(callback: Callable[[], None]) -> bool:
    """Queue a callback for the end of the backward pass, and return whether a backward pass is running.

    DDP queues its own callback later, after the last bucket's hook has returned. That callback waits for the
    futures without a timeout, and would turn their exceptions into a ``RuntimeError`` about types.
    """
    try:
        Variable._execution_engine.queue_callback(callback)
    except RuntimeError:
        return False
    return True
