"""What processes do on a simulated device: ``torch.distributed`` has none of its own for it.

Where a real device would have DDP's bucket filled by kernels that still run, a kernel of the simulated one
has just written it; where DDP or FSDP would read what came back by kernels, the current stream runs first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.codecs import parse
from gradwire.errors import GradwireError
from gradwire.fsdp import comms
from gradwire.plan import Plan
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated
from support import ddp_ranks, sharded
from support.interpreter import interpret
from support.saved_residuals import residuals_in

Path = Callable[[Simulated | None], list[torch.Tensor]]
STEPS = 2


def all_reduced(device: Simulated | None) -> list[torch.Tensor]:
    """Average tensors of several dtypes and layouts."""
    results = []
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        whole = torch.randn(6, 10, generator=torch.Generator().manual_seed(dist.get_rank())).to(dtype)
        tensor = whole.t()[1:]
        with _kernels(device, whole):
            gradwire.all_reduce(tensor, "quantize:8", timeout_s=5.0)
        if device is not None:
            device.current.run()
        results.append(whole.clone())
    return results


def ddp(device: Simulated | None, plan: Plan | None = None) -> list[torch.Tensor]:
    """Train with DDP; return the weights and this rank's residuals."""
    torch.set_num_threads(1)
    model = DistributedDataParallel(ddp_ranks.make_model(), **ddp_ranks.SMALL_BUCKETS)
    timeout_s = 5.0 if plan is None else 60.0  # kernels are interpreted, which takes its time
    attached = gradwire.attach(model, "quantize:4" if plan is None else plan, timeout_s=timeout_s)
    hook: Any = model._comm_hooks[0][1]
    reducer = hook.reducer
    take = reducer.take

    def on_device(bucket: Any, **how: bool) -> Any:
        with _kernels(device, bucket.buffer()):
            return take(bucket, **how)

    with mock.patch.object(reducer, "take", on_device):
        weights = ddp_ranks.train(model, range(STEPS))
    residuals = residuals_in(attached.state_dict())
    attached.close()
    if device is not None and attached.plan.encodes_on_device:
        total = attached.ledger.summary().total
        assert 0 < total.cost.device_nbytes < 2 * total.gradient_nbytes, "floats have crossed the bus"
    return [weights, *residuals.values()]


def fsdp(device: Simulated | None) -> list[torch.Tensor]:
    """Train with FSDP through lossy codecs: with shards, and with replicas of one shard."""
    entries = [(comms.GatherWeights, "__call__"), (comms.ShardedSteps, "reduce")]
    lossy = ("quantize:4", "bf16")
    with ExitStack() as stack:
        for owner, name in entries:
            replacement = _on_device(getattr(owner, name), device)
            stack.enter_context(mock.patch.object(owner, name, replacement))
        cases = [sharded.Case(lossy, STEPS), sharded.Case(lossy, STEPS, mesh=(2, 1))]
        return [shard for case in cases for shard in sharded.train(case).shards]


PATHS: dict[str, Path] = {"all_reduce": all_reduced, "DDP": ddp, "FSDP": fsdp}


def encoded(spec: str) -> list[list[torch.Tensor]]:
    """Train with a plan that encodes on devices, without any and with one; return weights and residuals.

    Triton interprets the kernels from now on, so this process is of no
    further use.
    """
    interpret()
    plan = Plan(parse(spec), encode_on="device")
    return [ddp(None, plan), ddp(Simulated(), plan)]


def on_cpu_and_device(name: str) -> tuple[list[torch.Tensor], list[torch.Tensor], dict[str, int]]:
    """Return the results on the CPU and on the device, and how many waits the latter took."""
    device = Simulated()
    return PATHS[name](None), PATHS[name](device), dict(device.waits)


def without(name: str, kind: str, number: int) -> list[torch.Tensor] | None:
    """Return the result where rank 0 leaves out this wait; None for an error."""
    try:
        return PATHS[name](Simulated(without=(kind, number) if dist.get_rank() == 0 else None))
    except (GradwireError, RuntimeError):
        return None


@contextmanager
def _kernels(device: Simulated | None, *tensors: torch.Tensor) -> Iterator[None]:
    """Let the device own these tensors, and a kernel that has just been queued write them."""
    if device is None:
        yield
        return
    with torch.no_grad(), Kernels(device):
        for tensor in tensors:
            device.own(tensor).mul_(1)
        yield


def _on_device(original: Callable[..., Any], device: Simulated | None) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        given = dict.fromkeys(each for each in (*args, *options.values()) if isinstance(each, torch.Tensor))
        with _kernels(device, *given):
            result = original(self, *args, **options)
        if device is not None:
            device.current.run()
        return result

    return call
