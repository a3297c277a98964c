"""What FSDP2 calls instead of its own collectives: its extension points, filled with exchanges.

``FSDPModule.set_custom_all_gather`` and ``set_custom_reduce_scatter`` take objects that allocate memory and
communicate. Between the replicas of a hybrid mesh FSDP calls ``torch.distributed.all_reduce`` on a process
group, and a process group can be written in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from gradwire.autotune.pilot import Recorder
from gradwire.codecs import Bf16, Codec, Fp16, Identity
from gradwire.costs import ExchangeCost
from gradwire.devices import FLOATS, Staged, device_of
from gradwire.exchange.feedback import is_finite
from gradwire.fsdp.links import GroupLink, Links, Purpose
from gradwire.fsdp.steering import Steering
from gradwire.fsdp.units import UnitLayouts
from gradwire.plan import Plan
from gradwire.sync.deltas import Deltas, over
from gradwire.sync.ledger.ledger import Ledger, profiled
from gradwire.sync.ledger.lost import Layout
from gradwire.sync.ledger.meter import LostMeter, Measure
from gradwire.sync.residual import Residuals

_SUMS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PREMUL_SUM)
_EXACT_HALVES: dict[torch.dtype, Codec] = {torch.bfloat16: Bf16(), torch.float16: Fp16()}


class FsdpMeter(LostMeter):
    """Measures what is lost of all modules; a step ends with the backward pass that reduces gradients.

    Parameters
    ----------
    plan, ledger
        See ``LostMeter``.
    layouts
        Those of all modules, in an order that all ranks share.
    all_reduce
        Sums a few floats over all ranks, exactly; where ranks are to be strict.
    """

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        layouts: Sequence[UnitLayouts],
        all_reduce: Callable[[torch.Tensor], ExchangeCost] | None = None,
    ) -> None:
        names = [name for each in layouts for name in each.all_names()]
        super().__init__(dist.get_rank(), plan, names, ledger, strict=all_reduce is not None)
        self.steps_done = 0
        self._all_reduce = all_reduce
        self._backward = -1

    def measure(self, layout: Layout) -> Measure:
        """Return what measures an exchange in the step under way, where that is measured."""
        return Measure(layout if self.measures(self.steps_done + 1) else None)

    def begins(self, then: Callable[[], object]) -> bool:
        """Return whether the gradient at hand is the first that this backward pass reduces.

        The step ends with the pass: then this calls ``then``.
        """
        current = torch._C._current_graph_task_id()
        if current in (-1, self._backward):
            return False
        self._backward = current
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(partial(self._end, then))
        return True

    def _end(self, then: Callable[[], object]) -> None:
        verdict = Measure()
        if self._all_reduce is not None and self.agrees(self.steps_done + 1):
            accounting, verdict.verdict = self.agree_by(
                self._all_reduce, dist.get_rank(), dist.get_world_size()
            )
            self.count("verdicts", accounting, accounting.total_s, 0, verdict)
        self.steps_done += 1
        then()
        self.end_step()


@dataclass(frozen=True)
class Office:
    """What the communication of all modules shares on one rank."""

    links: Links
    ledger: Ledger
    residuals: Residuals
    meter: FsdpMeter
    steering: Steering | None = None
    recorders: list[Recorder] = field(default_factory=list)
    """One, from the first time on that somebody asks for an estimate."""

    def begin(self) -> None:
        """Begin a step, if the gradient at hand is the first of its backward pass."""
        if self.meter.begins(then=self._end):
            self.links.step = self.step + 1
            if self.steering is not None:
                self.steering.begin(self.meter.steps_done + 1)

    def forward(self, *_: object) -> None:
        """Let a forward pass that prepares a backward pass be part of the next step."""
        self.links.step = self.step + torch.is_grad_enabled()

    @property
    def step(self) -> int:
        """How many steps the run has taken, those before a checkpoint included."""
        return self.links.steps_before + self.meter.steps_done

    def resume(self, step: int) -> None:
        """Count on from the step that a checkpoint was written after; older ones do not say."""
        self.links.steps_before, self.links.step = step - self.meter.steps_done, step

    def _end(self) -> None:
        if self.steering is not None:
            self.steering.end()
        for recorder in self.recorders:
            recorder.took()

    def count(
        self,
        bucket: str,
        accounting: ExchangeCost,
        gradient: torch.Tensor,
        started: float,
        measure: Measure,
    ) -> None:
        """Count the exchange of a gradient that backward has waited for since ``started``."""
        waited_s = perf_counter() - started
        self.meter.note(measure)
        self.meter.count(bucket, accounting, waited_s, gradient.nbytes, measure)
        if self.steering is not None:
            self.steering.waited(waited_s)
        for recorder in self.recorders:
            recorder.waited(waited_s)

    @contextmanager
    def link(self, purpose: Purpose, group: dist.ProcessGroup, bucket: str) -> Iterator[GroupLink]:
        """Lend the link of a group for an exchange of a bucket, which a profile shows."""
        with profiled(bucket), self.links.using(purpose, group, bucket) as link:
            yield link

    def residual_of(self, bucket: str, gradient: torch.Tensor) -> torch.Tensor | None:
        """Return what this rank's encodings lost of a bucket, where the plan keeps it."""
        return self.residuals.of(f"{bucket}/{gradient.numel()}", gradient.numel())


class _Comm:
    """One module's side of FSDP's interface ``Comm``; memory comes from what FSDP had there before."""

    def __init__(self, bucket: str, office: Office, before: Any) -> None:
        self.before = before
        self._bucket = bucket
        self._office = office

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for a communication buffer."""
        allocated: torch.Tensor = self.before.allocate(size, dtype=dtype, device=device)
        return allocated


class GatherWeights(_Comm):
    """All-gathers one module's weights: each member publishes its shard, and all keep what was decoded.

    The owner of a shard, too, gathers the decoded values, so all ranks compute with identical weights, while
    the shards that the optimizer updates stay exact.
    """

    def __init__(self, bucket: str, office: Office, before: Any, codec: Codec) -> None:
        super().__init__(bucket, office, before)
        self._codec = codec
        self._deltas: dict[torch.dtype, Deltas] = {}

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Fill ``output_tensor`` with the members' ``input_tensor``, one after the other."""
        if output_tensor.dtype not in FLOATS:
            self._office.ledger.bypassed(_not_float(output_tensor), self._bucket, output_tensor.nbytes)
            work: dist.Work | None = self.before(output_tensor, input_tensor, group, async_op)
            return work
        started = perf_counter()
        with self._office.link(Purpose.GATHER, group, self._bucket) as link:
            gathered = link.staging.stand_in(output_tensor)
            link.staging.load(gathered.chunk(link.world)[link.place], input_tensor).wait()
            codec = over(self._codec_for(output_tensor.dtype), gathered)
            accounting = link.exchange.broadcast(gathered, codec)
            link.staging.store(output_tensor, gathered)
            link.staging.order()
        waited_s = perf_counter() - started
        self._office.ledger.exchanged(self._bucket, accounting, exposed_s=waited_s, gradient_nbytes=0)
        for recorder in self._office.recorders:
            recorder.gathered(output_tensor.numel())
            recorder.waited(waited_s)
        return None

    def _codec_for(self, dtype: torch.dtype) -> Codec:
        """Return the codec; for halves that are to stay as they are, one that does so in two bytes."""
        if isinstance(self._codec, Identity):
            return _EXACT_HALVES.get(dtype, self._codec)
        if isinstance(self._codec, Deltas):
            return self._deltas_of(dtype, self._codec)
        return self._codec

    def _deltas_of(self, dtype: torch.dtype, wanted: Deltas) -> Deltas:
        """Return the module's own deltas of weights of that dtype."""
        if dtype not in self._deltas:
            words = "bf16" if dtype is torch.bfloat16 else wanted.dtype
            self._deltas[dtype] = Deltas(words, self._office.ledger, self._bucket)
        return self._deltas[dtype]


class ScatterGradients(_Comm):
    """Reduce-scatters one module's gradients, every hop encoded."""

    def __init__(self, bucket: str, office: Office, before: Any, layouts: UnitLayouts) -> None:
        super().__init__(bucket, office, before)
        self._layouts = layouts

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Fill ``output_tensor`` with this rank's shard of the sum; ``input_tensor`` is used up."""
        reason = _why_not(input_tensor, op)
        if reason is not None:
            self._office.ledger.bypassed(reason, self._bucket, input_tensor.nbytes)
            work: dist.Work | None = self.before(output_tensor, input_tensor, group, op, async_op)
            return work
        self._office.begin()
        started = perf_counter()
        with self._office.link(Purpose.SCATTER, group, self._bucket) as link:
            gradient = Staged(input_tensor, staging=link.staging).floats()
            residual = self._office.residual_of(self._bucket, gradient)
            measure = self._office.meter.measure(self._layouts.scattered(gradient.numel(), link.world))
            steering = self._office.steering
            for recorder in self._office.recorders:
                recorder.scattered(gradient, input_tensor.device)
            sample = None if steering is None else steering.sample(gradient, self._layouts, link)
            accounting = link.exchange.reduce(gradient, residual, measure.norms)
            shard = gradient.chunk(link.world)[link.place]
            if sample is not None:
                accounting += sample.compare(shard)
            accounting.nonfinite = int(not is_finite(shard))
            _scale(shard, op, link.world)
            link.staging.store(output_tensor, shard)
            link.staging.order()
        self._office.count(self._bucket, accounting, gradient, started, measure)
        return None


def _work_of(done: torch.futures.Future[list[torch.Tensor]]) -> dist.Work:
    """Return a future as what collectives return; torch's stub does not know the function."""
    make: Any = vars(torch._C._distributed_c10d)["_create_work_from_future"]
    work: dist.Work = make(done)
    return work


class ReplicaGroup(dist.ProcessGroup):
    """Stands in for the group between the replicas of a hybrid mesh; its all-reduce encodes every hop.

    It knows the one collective that FSDP calls on it.
    """

    def __init__(self, bucket: str, office: Office, group: dist.ProcessGroup, layouts: UnitLayouts) -> None:
        super().__init__(group.rank(), group.size())  # type: ignore[call-arg]  # torch's stub lacks it
        self._layouts = layouts
        self.before = group
        self._bucket = bucket
        self._office = office

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return what torch prints for this group."""
        return "gradwire"

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Replace the only tensor by its sum or average over the replicas."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        (tensor,) = tensors
        reason = _why_not(tensor, op)
        if reason is None:
            self._exchange(tensor, op)
        else:
            self._office.ledger.bypassed(reason, self._bucket, tensor.nbytes)
            dist.all_reduce(tensor, op, self.before)
        done: torch.futures.Future[list[torch.Tensor]] = device_of(tensor).future()
        done.set_result(tensors)
        return _work_of(done)

    def _exchange(self, tensor: torch.Tensor, op: Any) -> None:
        self._office.begin()
        started = perf_counter()
        with self._office.link(Purpose.REPLICATE, self.before, self._bucket) as link:
            staged = Staged(tensor, staging=link.staging)
            gradient = staged.floats()
            residual = self._office.residual_of(self._bucket, gradient)
            measure = self._office.meter.measure(self._layouts.replicated(gradient.numel()))
            accounting = link.exchange.all_reduce(gradient, False, residual, measure.norms)
            _scale(gradient, op, link.world)
            staged.store().order()
        self._office.count(self._bucket, accounting, gradient, started, measure)


def _why_not(tensor: torch.Tensor, op: Any) -> str | None:
    """Return why a gradient cannot be reduced by an exchange, or None."""
    if tensor.dtype not in FLOATS:
        return _not_float(tensor)
    return None if _kind(op) in _SUMS else f"{_kind(op)} is neither a sum nor an average"


def _not_float(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} is none of float32, bfloat16 and float16"


def _kind(op: Any) -> Any:
    return getattr(op, "op", op)  # a ReduceOp, which holds its kind, or the kind alone


def _scale(total: torch.Tensor, op: Any, world: int) -> None:
    """Make of a sum what ``op`` asks for."""
    if _kind(op) == dist.ReduceOp.AVG:
        total.div_(world)
    elif _kind(op) == dist.ReduceOp.PREMUL_SUM:
        total.mul_(op.__getstate__()[1])  # the factor, which has no other way out
