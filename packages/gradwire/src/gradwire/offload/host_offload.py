"""``HostOffload``: keep the master weights and the optimizer on the host, and train replicas on devices.

After each step of the optimizer, the weights are sent to the devices in the bits that a policy chooses for
each layer. A thread packs a layer while the previous layer is copied, and a forward pass waits for a layer's
weights when it reaches the layer. Gradients return to the host while backward continues.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gradwire.checkpoints import SUM, check_sealed, sealed
from gradwire.deferred import outside_inference
from gradwire.devices import on_host
from gradwire.errors import DeviceError, SpecError, StateError
from gradwire.fields import Source, anything, one_of, optional, rows
from gradwire.offload.gradients import GradientReturn
from gradwire.offload.layers import Layer, OffloadLedger, WriteDetector, check_masters, check_optimizer
from gradwire.offload.policies import FORMATS, Policy, policy_of
from gradwire.offload.replicas import DeviceEnd, DeviceLike, Residents, replicas_of, split_layers
from gradwire.offload.sender import Sender
from gradwire.offload.sums import LayerSteps

if TYPE_CHECKING:
    from typing_extensions import Self

_VERSION = 1
_SOURCE = Source("the state of a HostOffload", "load a state saved with the same layers", StateError)


class HostOffload:
    """A model with its master weights on the host and a replica that trains on a device.

    Weights are sent to the device in reduced precision. ``offload(x)`` is a forward pass of the replica. When
    ``backward`` returns, the gradients are in ``model.parameters()``, so that clipping, accumulation,
    schedulers, and ``optimizer.step()`` work as without an offload. The optimizer's step sends the weights.
    ``model.state_dict()`` contains the masters and the replica's buffers; after ``model.load_state_dict()``,
    the next forward pass sends everything.

    Parameters
    ----------
    model
        Float32 parameters on the CPU: the masters.
    optimizer
        An optimizer of ``torch.optim``, made from the model's parameters.
    policy
        The policy for the number of bits in which weights are sent: ``"static:8"``, ``"static:16"``,
        ``"static:24"``, ``"static:32"``, ``"delta"`` (lossless bfloat16 deltas), ``"delta:fp32"``, or an
        object such as ``AWP``.
    device
        The device of the replica, such as ``"cuda"`` or a simulated device; or a list of devices, each of
        which gets a replica. The default is this machine's accelerator, or the CPU if there is none.
    blocks
        Names of modules, such as residual blocks. The policy treats all parameters of such a module as one
        layer.
    step_in_backward
        Whether to step the optimizer for each layer as soon as the layer's gradients have arrived, while
        backward continues. The gradients are then freed, so they can't be clipped or inspected. Still call
        ``optimizer.step()`` after each backward pass.
    timed
        Whether the ledger measures the seconds of copies.
    fraction
        The fraction of the model's weights, in bytes, whose masters and optimizer state are on the host. From
        the first layer on, each layer that fits into ``1 - fraction`` stays on the device with its
        masters and optimizer state, and none of its bytes are sent.
    pin_memory
        Whether copies use pinned host memory; by default, if the device is an accelerator.
    threads
        The number of threads that compute norms and pack weights; by default torch's number of threads.
    numa
        The NUMA node on whose CPUs these threads run; by default, the operating system chooses.

    Raises
    ------
    TensorError
        If the model isn't in float32 on the CPU, or the policy doesn't support the device.
    SpecError
        If the policy, a block, or a NUMA node is unknown, or if the optimizer belongs to a different model.
    DeviceError
        If a device has no memory left, or the host has no pinned memory left.

    Attributes
    ----------
    model, optimizer, policy
        The arguments.
    ledger
        The ``OffloadLedger``: how many bytes of each layer were moved, and the seconds of each phase.
    """

    @outside_inference
    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: Policy | str,
        *,
        device: DeviceLike | Sequence[DeviceLike] | None = None,
        blocks: Sequence[str] = (),
        step_in_backward: bool = False,
        timed: bool = False,
        fraction: float = 1.0,
        pin_memory: bool | None = None,
        threads: int | None = None,
        numa: int | None = None,
    ) -> None:
        self.policy = policy_of(policy)
        check_masters(model)
        check_optimizer(optimizer, model)
        self.model, self.optimizer, self.ledger = model, optimizer, OffloadLedger()
        self._all = replicas_of(model, device, blocks)
        self._layers, residents = split_layers(self._all[0].layers, fraction)
        if step_in_backward and (residents or len(self._all) > 1):
            raise SpecError(
                "step_in_backward=True: expected one device and all layers on the host, got "
                f"{len(self._all)} devices and {len(residents)} layers on a device; omit step_in_backward, "
                "or pass one device without fraction"
            )
        if residents and len(self._all) > 1:
            raise SpecError(
                f"fraction: expected one device, got {len(self._all)}; omit fraction, or pass one device"
            )
        names, pinned = {each.name for each in self._layers}, pin_memory is not False
        ends = [
            DeviceEnd(
                each.device, [layer for layer in each.layers if layer.name in names], pinned, bool(residents)
            )
            for each in self._all
        ]
        self._end = ends[0]
        self._sender = Sender(ends, self.policy, self.ledger, timed=timed, threads=threads, numa=numa)
        self._steps = LayerSteps(optimizer) if step_in_backward else None
        self._gradients = GradientReturn(ends, self.ledger, self._steps)
        try:
            with self._end.at_work("the optimizer's state"):
                self._residents = Residents(residents, optimizer, self._all[0].device)
        except BaseException:
            self._sender.close()
            raise
        self._lock = threading.RLock()  # held during sends, because several threads may run replicas
        self._stale, self._buffers_stale = True, False
        self._masters = [each for layer in self._layers for each in layer.masters]
        self._written, self._buffers_written = WriteDetector(self._masters), WriteDetector([*model.buffers()])
        self._hooks = [*self._register_hooks()]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the first replica's forward pass. Tensor arguments must be on the replica's device."""
        return self.replica(*args, **kwargs)

    @property
    def replicas(self) -> list[nn.Module]:
        """The model on each device, in the order in which the gradients of a backward pass are added."""
        return [each.module for each in self._all]

    @property
    def replica(self) -> nn.Module:
        """The first replica. ``DistributedDataParallel`` can wrap a replica."""
        return self._all[0].module

    @property
    def bits_by_batch(self) -> list[list[int]]:
        """The bits of each layer with weights, before the first batch and after each step so far."""
        self._join()  # the packing thread chooses the last step's bits
        return self._sender.bits_by_batch

    @property
    def layer_names(self) -> list[str]:
        """The names of the layers with weights, in the order of ``bits_by_batch``."""
        return [each.name for each in self._layers if each.weights]

    def train(self, mode: bool = True) -> Self:
        """Set the replicas and the model to training or evaluation mode."""
        for each in self.replicas:
            each.train(mode)
        self.model.train(mode)
        return self

    def eval(self) -> Self:
        """Set the replicas and the model to evaluation mode."""
        return self.train(False)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on the device within the block. The next backward pass returns their sum.

        A block affects the replicas that the block's thread runs. If the thread that made the offload runs no
        replica, its blocks affect the replicas of all threads.
        """
        with self._gradients.hold():
            yield

    @outside_inference
    def wait(self) -> None:
        """Update the replicas with all weights. Call this before reading a replica between forward passes."""
        self._begin()
        for each in self._all:
            self._arrive(each.layers)

    def refresh(self) -> None:
        """Send all weights in full before the next forward pass.

        Call this after you change a few weights through ``parameter.data`` or NumPy, because ``HostOffload``
        doesn't detect such changes.
        """
        self._stale = True

    @outside_inference
    def state_dict(self) -> dict[str, Any]:
        """Return the policy's state. The states of the model and the optimizer aren't included."""
        self._join()
        return sealed({"version": _VERSION, "bits": self._sender.bits, "policy": self.policy.state_dict()})

    @outside_inference
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a ``state_dict``. Raises ``StateError`` for an invalid state, which changes nothing."""
        given = _SOURCE.fields(state, "version", "bits", "policy", SUM)
        given.get("version", one_of(_VERSION))
        bits = given.get("bits", optional(rows(one_of(*FORMATS), len(self.layer_names))))
        policy = given.get("policy", anything)
        check_sealed(state, "the bits and the policy of a HostOffload")
        with self._lock:
            self._join()
            self.policy.load_state_dict(policy)
            self._sender.bits = None if bits is None else self.policy.allowed([*bits])
            self._stale = True

    @outside_inference
    def close(self) -> None:
        """Remove all hooks. The model keeps the masters and receives the first replica's buffers.

        Raises ``DeviceError`` if the device is lost, and with it the layers that stay on it.
        """
        for each in self._hooks:
            each.remove()
        self._gradients.close()
        self._sender.close()
        if self._steps is not None:
            self._steps.close()
        self._take_buffers()
        with self._end.at_work("the return of its layers to the host"):
            self._residents.close()

    def _register_hooks(self) -> Iterator[Any]:
        for number, each in enumerate(self._all):
            yield from each.hook(partial(self._begin_forward, number), self._arrive)
        yield self.optimizer.register_step_pre_hook(lambda *_: self._before_step())
        yield self.optimizer.register_step_post_hook(lambda *_: self._send_step())
        yield self.model.register_state_dict_pre_hook(lambda *_: self._take_buffers())  # type: ignore[no-untyped-call]
        yield self.model.register_load_state_dict_post_hook(lambda *_: self._loaded())  # type: ignore[no-untyped-call]

    @outside_inference
    def _begin_forward(self, number: int) -> None:
        self._gradients.begin(number)
        self._begin()

    def _begin(self) -> None:
        """Send the masters and buffers written since the last send; after an error, send all of them."""
        if not (self._stale or self._find_written() or self._buffers_written.find()):
            return
        with self._lock:  # another thread may have detected and sent the same changes
            if self._stale:
                self._refresh()
                return
            self._give_buffers(self._buffers_written.find())
            if written := self._find_written():
                with self._resending(), self._written.sending():
                    self._send(observe=False, full=False, only=written)
                    self._sender.join()  # the masters may be written again between forward passes

    def _find_written(self) -> set[nn.Parameter]:
        """Return the masters that were written since the last send, but none between backward and step()."""
        if self._steps is not None and self._steps.awaits_step:
            return set()  # optimizer.step() sends the layers that backward has stepped
        return {self._masters[number] for number in self._written.find()}

    @outside_inference
    def _before_step(self) -> None:
        if self._steps is not None:
            if self._steps.active:
                return
            self._steps.join()  # the layers stepped by a failed backward pass
        self._join()

    @outside_inference
    def _send_step(self) -> None:
        if self._steps is not None:
            if self._steps.active:
                return
            self._steps.stepped()
        self._gradients.sums.settle()
        groups = self.optimizer.param_groups
        updated = {each for group in groups for each in group["params"] if each.requires_grad}
        with self._lock:
            updated |= self._find_written()
            # The step is complete. If a device fails here, the next forward pass sends everything, and raises
            # the error if the device still fails.
            with suppress(DeviceError), self._resending(), self._written.sending():
                self._send(observe=True, full=self._stale, only=set() if self._stale else updated)

    def _refresh(self) -> None:
        """Send all weights in full: in the current bits or, before the first batch, in the first bits."""
        self._sender.give_up()
        buffers = len([*self.model.buffers()])
        self._give_buffers(range(buffers) if self._buffers_stale else self._buffers_written.find())
        with self._resending(), self._written.sending():
            self._send(observe=False, full=True, only={*self.model.parameters()})
            self._sender.join()
        self._stale = self._buffers_stale = False

    def _give_buffers(self, numbers: Collection[int]) -> None:
        if not numbers:
            return
        with self._buffers_written.sending(), torch.no_grad():
            for replica in self.replicas:
                pairs = zip(replica.buffers(), self.model.buffers(), strict=True)
                for number, (own, other) in enumerate(pairs):
                    if number in numbers:
                        own.copy_(other)

    def _send(self, *, observe: bool, full: bool, only: set[nn.Parameter]) -> None:
        sent = {*self._layers}
        order = [each for each in self._all[0].order if each in sent]
        self._sender.send(order, observe=observe, full=full, only=only)

    @outside_inference
    def _arrive(self, layers: Sequence[Layer]) -> None:
        with self._resending():
            self._sender.arrive(layers)

    def _join(self) -> None:
        """Wait until the sender has read the masters, so that they may change."""
        with self._lock, self._resending():
            self._sender.join()

    @contextmanager
    def _resending(self) -> Iterator[None]:
        """Run a ``with`` block. If it raises an error, schedule a full send before the next forward pass."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._sender.give_up()
                self._stale = True
            raise

    @outside_inference
    def _take_buffers(self) -> None:
        """Copy the first replica's buffers to the model; if the device fails, warn and keep the model's."""
        if self._buffers_stale:
            return
        try:
            self._give_buffers(self._buffers_written.find())
            found = [on_host(each) for each in self.replica.buffers()]
        except RuntimeError as error:
            warnings.warn(
                f"the model keeps its previous buffers, because {self._all[0].device} failed ({error})",
                stacklevel=2,
            )
            return
        with torch.no_grad():
            for own, other in zip(self.model.buffers(), found, strict=True):
                own.copy_(other)
        with self._buffers_written.sending():
            pass  # the replicas have these values

    def _loaded(self) -> None:
        self._stale = self._buffers_stale = True
        there = {*self.model.parameters()}
        lost = sum(each not in there for layer in self._all[0].layers for each in layer.masters)
        if lost:
            raise SpecError(
                f"expected the optimizer's parameters in the model, got {lost} new parameters; use "
                "load_state_dict without assign=True, or create the optimizer and the HostOffload "
                "afterwards"
            )
