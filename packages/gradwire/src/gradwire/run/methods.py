"""The script's models: how gradwire attaches to them, and the methods that average their gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gradwire.attached import Attached
from gradwire.ddp.attach import attach, hook_state
from gradwire.ddp.checks import own_hooks
from gradwire.ddp.reducer import DDPBucket
from gradwire.errors import AttachError
from gradwire.fsdp.attach import attach_fsdp, steps_of
from gradwire.fsdp.units import units_of, world_group
from gradwire.run.comparison import ATTACHED, BF16, PLAIN
from gradwire.run.settings import RunSettings
from gradwire.script.steps import after_backward
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.ledger.sinks import StepCounts

Passed = Callable[[str], None]
"""A function that is called at the end of a step, with the method that averaged it."""


class StepSink:
    """A ledger's sink that reports the end of each step that gradwire averaged."""

    def __init__(self, passed: Passed) -> None:
        self._passed = passed

    def write(self, step: StepCounts) -> None:
        """Report the end of a step that gradwire averaged."""
        if step.complete:
            self._passed(ATTACHED)

    def close(self) -> None:
        """Do nothing."""


class DdpModel:
    """A ``DistributedDataParallel`` that the script has made, to which gradwire attaches."""

    methods: tuple[str, ...] = (PLAIN, BF16, ATTACHED)

    def __init__(self, module: DistributedDataParallel) -> None:
        self._module = weakref.ref(module)  # the script may delete it
        self.name = f"DistributedDataParallel {type(module.module).__name__!r}"

    @property
    def module(self) -> DistributedDataParallel:
        """The script's module, which must still exist."""
        module = self._module()
        assert module is not None, "the model begins training, or ends a step"
        return module

    @property
    def group(self) -> dist.ProcessGroup:
        """The ranks that train the model."""
        group: dist.ProcessGroup = self.module.process_group
        return group

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return next(each.device for each in self.module.parameters() if each.requires_grad)

    def refusal(self) -> str:
        """Return the reason why gradwire can't attach to this model, or an empty string if it can."""
        if hook_state(self.module) is not None:
            return "the script attaches gradwire itself"
        hooks = own_hooks(self.module)
        return f"the script registers the communication hook {', '.join(hooks)}" if hooks else ""

    def attach(self, settings: RunSettings, ledger: Ledger) -> Attached:
        """Attach gradwire on all ranks. Raises ``GradwireError``."""
        return attach(self.module, settings.plan, timeout_s=settings.timeout_s, ledger=ledger)

    def give_up(self, attached: Attached) -> None:  # noqa: ARG002
        """Train without gradwire from now on, but keep its hook, because DDP cannot remove a hook."""
        self.use(PLAIN, lambda _way: None)

    def use(self, method: str, passed: Passed) -> None:
        """Average the next steps with ``method``; call ``passed`` after each step without gradwire."""
        module = self._module()
        state = None if module is None else hook_state(module)
        if state is not None:  # None if the script has deleted the model
            averaged = partial(self._averaged, method, passed)
            state.stand_in = None if method == ATTACHED else averaged

    def _averaged(self, method: str, passed: Passed, bucket: DDPBucket) -> Future:
        if bucket.is_last():
            after_backward(partial(passed, method))
        return _HOOKS[method](self.module, bucket)


Future = torch.futures.Future[torch.Tensor]


def plain_hook(model: DistributedDataParallel, bucket: Any) -> Future:
    """Average a bucket as DDP does without a hook, with the same bits unless gradients stay views of buckets.

    DDP multiplies gradients by the inverse of the world size, as this hook does. But DDP divides gradients
    that are views of a bucket and are not reset to None. The last bits may then differ, unless the world size
    is a power of two.
    """
    group, gradients = model.process_group, bucket.buffer()
    gradients.mul_(1.0 / group.size())
    work: Any = dist.all_reduce(gradients, group=group, async_op=True)
    future: torch.futures.Future[Any] = work.get_future()
    return future.then(lambda done: done.value()[0])


def _bf16(model: DistributedDataParallel, bucket: Any) -> Future:
    return default_hooks.bf16_compress_hook(model.process_group, bucket)


_HOOKS: Mapping[str, Callable[[DistributedDataParallel, Any], Future]] = {PLAIN: plain_hook, BF16: _bf16}


class FsdpModel:
    """The outermost module that the script has sharded by ``fully_shard``, with ``DdpModel``'s interface."""

    methods: tuple[str, ...] = (PLAIN, ATTACHED)

    def __init__(self, module: Any) -> None:
        self.module, self.group = module, world_group()
        self.name = f"FSDP2 {type(module).__name__.removeprefix('FSDP')!r}"

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return torch.device(next(self.module.parameters()).device.type)

    def refusal(self) -> str:
        """Return the reason why gradwire can't attach to this model, or an empty string if it can."""
        try:
            steps = steps_of(self.module)
        except AttachError as error:
            return str(error)
        return "" if steps is None else "the script attaches gradwire itself"

    def attach(self, settings: RunSettings, ledger: Ledger) -> Attached:
        """Attach gradwire on all ranks. Raises ``GradwireError``."""
        outside = next((unit.name for unit in units_of(self.module) if not unit.is_on_world), None)
        if outside is not None:
            raise AttachError(
                f"expected FSDP2 modules on a mesh of all ranks, got {outside!r} on a smaller mesh; call "
                "gradwire.attach_fsdp in the script"
            )
        return attach_fsdp(self.module, settings.plan, timeout_s=settings.timeout_s, ledger=ledger)

    def give_up(self, attached: Attached) -> None:
        """Restore FSDP's collectives."""
        attached.close()

    def use(self, method: str, passed: Passed) -> None:
        """Average the next steps with ``method``; call ``passed`` after each step without gradwire."""
        steps = steps_of(self.module)
        assert steps is not None, "the model is attached"
        stand_in = partial(after_backward, partial(passed, method))
        steps.stand_in = None if method == ATTACHED else stand_in


AttachableModel = DdpModel | FsdpModel
"""A model of the script that gradwire attaches to, before its first training pass."""
