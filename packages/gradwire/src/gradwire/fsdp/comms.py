"""The replacements for FSDP2's collectives: exchanges that FSDP2 calls at its extension points.

``FSDPModule.set_custom_all_gather`` and ``set_custom_reduce_scatter`` accept objects that allocate memory and
communicate. Between the replicas of a hybrid mesh, FSDP calls ``torch.distributed.all_reduce`` on a process
group; ``ReplicaGroup`` implements such a group in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from gradwire.codecs import Bf16, Codec, Fp16, Identity
from gradwire.devices import Staged, device_of
from gradwire.exchange.feedback import is_finite
from gradwire.exchange.request import BucketRequest, Half
from gradwire.fsdp.sync_contexts import Purpose, SyncContexts
from gradwire.fsdp.units import UnitLayouts
from gradwire.sync.bucket.error_feedback import FlatResidual
from gradwire.sync.bucket.work import FLOATS, GradientBucket
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas.deltas import Deltas, over

_SUMS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)
_EXACT_HALVES: dict[torch.dtype, Codec] = {torch.bfloat16: Bf16(), torch.float16: Fp16()}


def residual_key(bucket: str, count: int) -> str:
    """Return the key of a bucket's residual; FSDP omits parameters without a gradient, so lengths vary."""
    return f"{bucket}/{count}"


class ShardedSteps:
    """The steps of one sharded model on one rank, shared by the exchanges of all units.

    A step begins when a backward pass reduces its first gradient, and ends with this pass. FSDP waits for
    each collective, so exchanges run on the calling thread. ``stand_in`` is None, or a function to call once
    per backward pass; while it is set, FSDP's own collectives run instead of exchanges, on all ranks.
    """

    def __init__(self, sync: GradientSync, contexts: SyncContexts, ledger: Ledger) -> None:
        self.sync, self.contexts, self.ledger = sync, contexts, ledger
        self.stand_in: Callable[[], None] | None = None
        self._backward = -1
        self._buckets = 0

    def forward(self, *_: object) -> None:
        """Set the exchanges' step: the next step if backward may follow, else the last complete step."""
        self.contexts.step = self.sync.context.step + torch.is_grad_enabled()

    def reduce(
        self,
        bucket: str,
        layouts: UnitLayouts,
        purpose: Purpose,
        group: dist.ProcessGroup,
        op: Any,
        tensor: torch.Tensor,
        result: torch.Tensor,
    ) -> bool:
        """Reduce a unit's gradients over a group, store this rank's result, and return True.

        With ``Purpose.SCATTER``, ``result`` gets the rank's shard, and ``tensor`` may be overwritten; with
        ``Purpose.REPLICATE``, ``result`` gets all reduced gradients. Return False if FSDP's own collective
        must reduce the gradients instead.
        """
        if self.stand_in is not None:
            if self._begins_pass():
                self.stand_in()
            return False
        if (reason := _why_not(tensor, op)) is not None:
            self.ledger.bypassed(reason, bucket, tensor.nbytes)
            return False
        self._begin()
        began, scatters = perf_counter(), purpose is Purpose.SCATTER
        with self.contexts.using(purpose, group, bucket) as member:
            values = Staged(tensor, staging=member.staging).floats()
            count = values.numel()
            work = self.sync.run(
                GradientBucket(
                    self._buckets,
                    tensor,
                    layout=layouts.scattered(count, member.world) if scatters else layouts.replicated(count),
                    name=bucket,
                    request=BucketRequest(Half.REDUCE if scatters else Half.ALL_REDUCE, average=False),
                    feedback=FlatResidual(self.sync.residuals.of(residual_key(bucket, count), count)),
                ),
                values,
                member.context,
            )
            found = member.own_shard(values) if scatters else values
            work.cost.nonfinite = int(not is_finite(found))
            _scale(found, op, member.world)
            member.staging.store(result, found)
            member.staging.order()
        self._buckets += 1
        self.sync.count(work, perf_counter() - began)
        return True

    def _begin(self) -> None:
        if not self._begins_pass():
            return
        self._buckets = 0
        Variable._execution_engine.queue_callback(self._end)
        self.contexts.step, plan = self.sync.context.step + 1, self.sync.plan
        self.sync.begin()
        if self.sync.plan is not plan:
            self.contexts.follow(self.sync.plan)

    def _begins_pass(self) -> bool:
        if (current := torch._C._current_graph_task_id()) in (-1, self._backward):
            return False
        self._backward = current
        return True

    def _end(self) -> None:
        self.sync.agree()
        self.sync.finish()


class _Comm:
    """FSDP's interface ``Comm`` for one unit. ``before``, the replaced object, allocates the buffers."""

    def __init__(self, bucket: str, steps: ShardedSteps, before: Any) -> None:
        self.before = before
        self._bucket, self.steps = bucket, steps

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return a communication buffer, allocated by the replaced object."""
        allocated: torch.Tensor = self.before.allocate(size, dtype=dtype, device=device)
        return allocated


class GatherWeights(_Comm):
    """The all-gather of one unit's weights: all members, including the owner, compute with decoded shards."""

    def __init__(self, bucket: str, steps: ShardedSteps, before: Any, codec: Codec) -> None:
        super().__init__(bucket, steps, before)
        self._codec = codec
        self._deltas: dict[torch.dtype, Deltas] = {}

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Fill ``output_tensor`` with the decoded shards of all members, in the order of the members."""
        before: Callable[..., dist.Work | None] = self.before
        if self.steps.stand_in is not None:
            return before(output_tensor, input_tensor, group, async_op)
        if output_tensor.dtype not in FLOATS:
            self.steps.ledger.bypassed(_not_float(output_tensor), self._bucket, output_tensor.nbytes)
            return before(output_tensor, input_tensor, group, async_op)
        began = perf_counter()
        with self.steps.contexts.using(Purpose.GATHER, group, self._bucket) as member:
            gathered = member.staging.stand_in(output_tensor)
            member.staging.load(member.own_shard(gathered), input_tensor).wait()
            codec = over(self._codec_for(output_tensor.dtype), gathered)
            cost = member.context.exchange.broadcast(gathered, codec)
            member.staging.store(output_tensor, gathered)
            member.staging.order()
        self.steps.sync.gathered(self._bucket, output_tensor.numel(), cost, perf_counter() - began)
        return None

    def _codec_for(self, dtype: torch.dtype) -> Codec:
        """Return the codec for a dtype: for 16-bit floats, an exact 16-bit codec instead of ``identity``."""
        if isinstance(self._codec, Identity):
            return _EXACT_HALVES.get(dtype, self._codec)
        if isinstance(self._codec, Deltas):
            if dtype not in self._deltas:
                words = "bf16" if dtype is torch.bfloat16 else self._codec.dtype
                self._deltas[dtype] = Deltas(words, self.steps.ledger, self._bucket)
            return self._deltas[dtype]
        return self._codec


class ScatterGradients(_Comm):
    """The reduce-scatter of one unit's gradients, encoded on every hop."""

    def __init__(self, bucket: str, steps: ShardedSteps, before: Any, layouts: UnitLayouts) -> None:
        super().__init__(bucket, steps, before)
        self._layouts = layouts

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Fill ``output_tensor`` with this rank's reduced shard. ``input_tensor`` may be overwritten."""
        if self.steps.reduce(
            self._bucket, self._layouts, Purpose.SCATTER, group, op, input_tensor, output_tensor
        ):
            return None
        own: dist.Work | None = self.before(output_tensor, input_tensor, group, op, async_op)
        return own


class ReplicaGroup(dist.ProcessGroup):
    """A process group between replicas with one collective: an all-reduce that encodes every hop."""

    def __init__(
        self, bucket: str, steps: ShardedSteps, group: dist.ProcessGroup, layouts: UnitLayouts
    ) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]  # torch's stub lacks it
        self.before = group
        self._bucket, self._steps, self._layouts = bucket, steps, layouts

    # To log a failed collective, torch looks up its group: equality makes the look-up succeed.

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.before

    def __hash__(self) -> int:
        return hash(self.before)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the backend name that torch prints for this group."""
        return "gradwire"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Replace the single tensor with its sum or average over the replicas."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        (tensor,) = tensors
        scope = self._bucket, self._layouts, Purpose.REPLICATE, self.before
        if not self._steps.reduce(*scope, op, tensor, tensor):
            dist.all_reduce(tensor, op, self.before)
        done: torch.futures.Future[list[torch.Tensor]] = device_of(tensor).future()
        done.set_result(tensors)
        make: Any = vars(torch._C._distributed_c10d)["_create_work_from_future"]  # torch's stub lacks it
        work: dist.Work = make(done)
        return work


def _why_not(tensor: torch.Tensor, op: Any) -> str | None:
    if tensor.dtype not in FLOATS:
        return _not_float(tensor)
    return None if _kind(op) in _SUMS else f"{_kind(op)} is neither a sum nor an average"


def _not_float(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} is none of float32, bfloat16 and float16"


def _kind(op: Any) -> Any:
    return getattr(op, "op", op)  # a ReduceOp with a kind, or the kind itself


def _scale(total: torch.Tensor, op: Any, world: int) -> None:
    if _kind(op) == dist.ReduceOp.AVG:
        total.div_(world)
    elif _kind(op) == dist.ReduceOp.PREMUL_SUM:
        total.mul_(op.__getstate__()[1])  # the factor has no other accessor
