"""``HostOffload``: the master weights and the optimizer stay on the host, and a replica trains on the device.

After each step of the optimizer the weights travel to the device in the bits that a policy gives each layer.
A thread packs a layer while the one before is copied, and a forward pass waits for a layer's weights when it
comes to that layer. Gradients come back while backward goes on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import nn

from gradwire.devices import Device, Simulated, device_of, on_host
from gradwire.errors import SpecError, StateError, shown
from gradwire.training.offload.gradients import GradientReturn
from gradwire.training.offload.layer_steps import LayerSteps
from gradwire.training.offload.layers import Layer, check_masters, check_optimizer, layers_of
from gradwire.training.offload.ledger import OffloadLedger
from gradwire.training.offload.policies import Policy, policy_of
from gradwire.training.offload.sender import Sender

_VERSION = 1


class HostOffload:
    """Train a replica of ``model`` on a device, with weights that travel in fewer bits.

    ``offload(x)`` is a forward pass of the replica. When ``backward`` returns, the gradients are in
    ``model.parameters()``, so that clipping, accumulation, schedulers, and ``optimizer.step()`` work as
    without an offload. The optimizer's step sends the weights. ``model.state_dict()`` has the masters, and
    the replica's buffers; after ``model.load_state_dict()``, the next forward pass sends everything.

    Parameters
    ----------
    model
        Float32 parameters on the CPU: the masters.
    optimizer
        Any of ``torch.optim``, made from the model's parameters.
    policy
        In how many bits weights travel: ``"static:8"``, ``"static:16"``, ``"static:24"``, ``"static:32"``,
        ``"delta"`` (lossless changes of bfloat16), ``"delta:fp32"``, or an object such as ``AWP``.
    device
        Where the replica lives, such as ``"cuda"``, or a simulated device. The default is this machine's
        accelerator, or the CPU where there is none.
    blocks
        Names of modules, such as residual blocks, whose parameters are one layer for the policy.
    step_in_backward
        Step the optimizer for each layer as soon as its gradients have come, while backward goes on. The
        gradients are gone then, so that nothing can clip or inspect them. Still call ``optimizer.step()``
        after each backward pass.
    timed
        Measure the seconds of the copies for the ledger.

    Raises
    ------
    TensorError
        The model isn't in float32 on the CPU, or the policy can't serve the device.
    SpecError
        The policy is unknown, the optimizer belongs to another model, or a block isn't there.

    Attributes
    ----------
    model, optimizer, policy
        As given.
    replica
        The model on the device, which ``DistributedDataParallel`` can wrap.
    ledger
        What was moved, for each layer.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: Policy | str,
        *,
        device: torch.device | str | Simulated | None = None,
        blocks: Sequence[str] = (),
        step_in_backward: bool = False,
        timed: bool = False,
    ) -> None:
        self.policy = policy_of(policy)
        check_masters(model)
        check_optimizer(optimizer, model)
        self.model, self.optimizer, self.ledger = model, optimizer, OffloadLedger()
        self.replica, home = _replicate(model, device)
        self._layers = layers_of(model, self.replica, blocks)
        self._sender = Sender(self._layers, self.policy, home, self.ledger, timed=timed)
        self._steps = LayerSteps(optimizer) if step_in_backward else None
        self._gradients = GradientReturn(self._layers, home, self.ledger, self._steps)
        self._order, self._read_late = self._layers, list[Layer]()
        self._called: list[nn.Module] | None = []
        self._stale, self._buffers_stale = True, False
        self._hooks = [*self._hook_replica(), *self._hook_masters()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the replica makes of these, which are on the device."""
        return self.replica(*args, **kwargs)

    @property
    def bits_by_batch(self) -> list[list[int]]:
        """The bits of each layer with weights, before the first batch and after each."""
        return self._sender.bits_by_batch

    @property
    def layer_names(self) -> list[str]:
        """The names of the layers with weights, in the order of ``bits_by_batch``."""
        return [each.name for each in self._layers if each.weights]

    def train(self, mode: bool = True) -> Self:
        """Set the replica, and the model, to training or evaluation."""
        self.replica.train(mode)
        self.model.train(mode)
        return self

    def eval(self) -> Self:
        """Set both to evaluation."""
        return self.train(False)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within the block, leave gradients on the device; the next backward pass after it brings the sum."""
        before, self._gradients.held = self._gradients.held, True
        try:
            yield
        finally:
            self._gradients.held = before

    def wait(self) -> None:
        """Let the replica have all weights; call this to read them outside of a forward pass."""
        if self._stale:
            self._refresh()
        self._arrive(self._layers)

    def refresh(self) -> None:
        """Send all weights in full before the next forward pass: the masters were changed by hand."""
        self._stale = True

    def state_dict(self) -> dict[str, Any]:
        """Return the policy's state; the model and the optimizer have their own."""
        self._join()
        return {"version": _VERSION, "bits": self._sender.bits, "policy": self.policy.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the bits of a ``state_dict``. Raises ``StateError``, and is then as before."""
        layers = len(self.layer_names)
        bits = state.get("bits") if state.get("version") == _VERSION else 0
        if bits is not None and not (isinstance(bits, list) and len(bits) == layers):
            raise StateError(
                f"the state of a HostOffload with {layers} layers is wanted, but {shown(dict(state))} came"
            )
        self._join()
        self.policy.load_state_dict(state["policy"])
        self._sender.bits = bits
        self._stale = True

    def close(self) -> None:
        """Let the model and the optimizer go; the model keeps the masters and takes the replica's buffers."""
        self._take_buffers()
        for each in self._hooks:
            each.remove()
        self._gradients.close()
        self._sender.close()
        if self._steps is not None:
            self._steps.close()

    def _hook_replica(self) -> Iterator[Any]:
        yield self.replica.register_forward_pre_hook(lambda *_: self._enter())
        yield self.replica.register_forward_hook(lambda *_: self._leave())
        for module in {reader: None for layer in self._layers for reader in layer.readers}:
            yield module.register_forward_pre_hook(lambda module, _: self._reach(module))

    def _hook_masters(self) -> Iterator[Any]:
        yield self.optimizer.register_step_pre_hook(lambda *_: self._before_step())
        yield self.optimizer.register_step_post_hook(lambda *_: self._send_step())
        yield self.model.register_state_dict_pre_hook(lambda *_: self._take_buffers())  # type: ignore[no-untyped-call]
        yield self.model.register_load_state_dict_post_hook(lambda *_: self._loaded())  # type: ignore[no-untyped-call]

    def _enter(self) -> None:
        """Begin a forward pass; the first one waits for all weights, and sees which modules are called."""
        self._gradients.begin()
        if self._stale:
            self._refresh()
        self._arrive(self._layers if self._called is not None else self._read_late)

    def _reach(self, module: nn.Module) -> None:
        if self._called is not None:
            self._called.append(module)
        else:
            self._arrive([each for each in self._layers if module in each.readers])

    def _leave(self) -> None:
        """End the first forward pass: from now on layers travel in the order in which they are needed.

        A layer with a module that isn't called, whose parameters another one reads, is needed at the start.
        """
        if self._called is None:
            return
        place = {module: number for number, module in reversed([*enumerate(self._called)])}
        self._called = None
        self._read_late = [
            each for each in self._layers if not all(reader in place for reader in each.readers)
        ]
        first = {
            id(each): -1 if each in self._read_late else min(place[reader] for reader in each.readers)
            for each in self._layers
        }
        self._order = sorted(self._layers, key=lambda each: first[id(each)])

    def _before_step(self) -> None:
        if self._steps is None or not self._steps.active:
            self._join()

    def _send_step(self) -> None:
        if self._steps is not None:
            if self._steps.active:
                return
            self._steps.stepped()
        groups = self.optimizer.param_groups
        updated = {each for group in groups for each in group["params"] if each.requires_grad}
        with self._resending():
            self._sender.send(self._order, observe=True, full=False, only=set() if self._stale else updated)

    def _refresh(self) -> None:
        """Send everything in full, in the bits known, or in those that the policy begins with."""
        self._sender.give_up()
        if self._buffers_stale:
            with torch.no_grad():
                for own, other in zip(self.replica.buffers(), self.model.buffers(), strict=True):
                    own.copy_(other)
        self._sender.send(self._order, observe=False, full=True, only={*self.model.parameters()})
        self._stale = self._buffers_stale = False

    def _arrive(self, layers: Sequence[Layer]) -> None:
        with self._resending():
            self._sender.arrive(layers)

    def _join(self) -> None:
        """Let the masters be read, so that they may change."""
        with self._resending():
            self._sender.join()

    @contextmanager
    def _resending(self) -> Iterator[None]:
        """After an error, send everything again before the next forward pass."""
        try:
            yield
        except BaseException:
            self._sender.give_up()
            self._stale = True
            raise

    def _take_buffers(self) -> None:
        if self._buffers_stale:
            return
        with torch.no_grad():
            for own, other in zip(self.model.buffers(), self.replica.buffers(), strict=True):
                own.copy_(on_host(other))

    def _loaded(self) -> None:
        self._stale = self._buffers_stale = True


def _replicate(model: nn.Module, device: torch.device | str | Simulated | None) -> tuple[nn.Module, Device]:
    replica = copy.deepcopy(model)
    for each in replica.parameters():
        each.grad = None
    if isinstance(device, Simulated):
        return device.adopt(replica), device
    try:
        replica.to(_accelerator() if device is None else torch.device(device))
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SpecError(f"the replica can't live on the device {shown(device)}: {error}") from error
    return replica, device_of(next(replica.parameters()))


def _accelerator() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")
