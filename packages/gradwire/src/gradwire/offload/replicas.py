"""Replicas: copies of the model on devices, whose forward passes wait for the weights of each layer."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from gradwire.codecs.spec import is_real
from gradwire.devices import Device, device_of, on_host
from gradwire.devices.base import CPU
from gradwire.errors import DeviceError, GradwireError, SpecError, refuse, shown
from gradwire.offload.layers import Layer, layers_of

DeviceLike: TypeAlias = "torch.device | str | Device"
"""A device in any form that users may pass."""


@dataclass(frozen=True)
class DeviceEnd:
    """A device with a replica; an error of a lost or full device becomes a ``DeviceError``."""

    device: Device
    layers: Sequence[Layer]  # the layers to copy, in the same order at every end
    pinned: bool = True  # whether copies use pinned memory of the host
    has_residents: bool = False  # whether the masters of other layers are on the device

    @property
    def masters(self) -> list[nn.Parameter]:
        """The layers' parameters on the host, in the order of the layers."""
        return [each for layer in self.layers for each in layer.masters]

    @property
    def replicas(self) -> list[nn.Parameter]:
        """The layers' parameters on the device, in the order of ``masters``."""
        return [each for layer in self.layers for each in layer.replicas]

    def host_memory(self, count: int) -> torch.Tensor:
        """Return host memory for copies of ``count`` float32. Raises ``DeviceError`` if there is none."""
        if not self.pinned:
            return CPU.pinned(count)
        try:
            return self.device.pinned(count)
        except RuntimeError as error:
            raise DeviceError(
                f"HostOffload: expected {4 * count} bytes of pinned memory for copies to {self.device}, "
                f"got none ({_line(error)}); pass pin_memory=False, or free pinned memory"
            ) from error

    @contextmanager
    def at_work(self, doing: str) -> Iterator[None]:
        """Run a ``with`` block, named ``doing`` in errors; raise ``DeviceError`` if its device fails."""
        try:
            yield
        except GradwireError:
            raise
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"{self.device} does not have enough memory for {doing} ({_line(error)}); pass another "
                "device or a larger fraction (the master weights are unchanged)"
            ) from error
        except RuntimeError as error:
            remedy = (
                "save the master weights and the optimizer's state, which are intact on the host, close this "
                "HostOffload"
            )
            if self.has_residents:
                remedy = "load the last checkpoint, because layers that fraction keeps on the device are lost"
            what = f"{self.device} failed during {doing} ({_line(error)})"
            raise DeviceError(f"{what}; {remedy}, and create a HostOffload on another device") from error


def _line(error: BaseException) -> str:
    """Return the first line of an error. In torch's errors, advice for torch's developers follows."""
    return str(error).partition("\n")[0].strip(" .")


class _ArrivingParameters(dict[str, Any]):
    """A module's parameters: its layers arrive when a parameter is read, even if the module isn't called."""

    def __init__(self, module: nn.Module, arrive: Callable[[], None]) -> None:
        super().__init__(module._parameters)
        self._module, self._arrive = module, arrive
        module._parameters = self

    def __getitem__(self, name: str) -> Any:
        self._arrive()
        return super().__getitem__(name)

    def items(self) -> Any:
        """Return the names and parameters, as ``Module.parameters`` reads them."""
        self._arrive()
        return super().items()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)  # nothing arrives in a copy of the replica

    def remove(self) -> None:
        """Make reads independent of the layers again, as hooks are removed."""
        self._module._parameters = dict(self)


class Replica:
    """A copy of the model on one device, and its layers in the ``order`` of the first forward pass."""

    def __init__(self, model: nn.Module, device: DeviceLike | None, blocks: Sequence[str]) -> None:
        self.module, self.device = _replicate(model, device)
        self.layers = layers_of(model, self.module, blocks)
        self.order, self._read_late = self.layers, list[Layer]()
        self._is_known = False
        self._pass = threading.local()  # ``called``: the modules called in a pass that determines the order

    def hook(self, begin: Callable[[], None], arrive: Callable[[Sequence[Layer]], None]) -> Iterator[Any]:
        """Yield hooks that call ``begin`` when a forward pass starts, and ``arrive`` when it needs layers."""
        yield self.module.register_forward_pre_hook(lambda *_: self._enter(begin, arrive))
        yield self.module.register_forward_hook(lambda *_: self._leave())
        for module in {reader: None for layer in self.layers for reader in layer.readers}:
            read = [each for each in self.layers if module in each.readers]
            yield module.register_forward_pre_hook(
                lambda module, _, read=read: self._reach(module, read, arrive)
            )
            yield _ArrivingParameters(module, partial(arrive, read))

    def _enter(self, begin: Callable[[], None], arrive: Callable[[Sequence[Layer]], None]) -> None:
        """Begin a forward pass. The first pass waits for all weights, and records the called modules."""
        begin()
        self._pass.called = None if self._is_known else []
        arrive(self._read_late if self._is_known else self.layers)

    def _reach(
        self, module: nn.Module, read: Sequence[Layer], arrive: Callable[[Sequence[Layer]], None]
    ) -> None:
        if (called := getattr(self._pass, "called", None)) is not None:
            called.append(module)
        else:
            arrive(read)

    def _leave(self) -> None:
        """End a forward pass. A layer whose module isn't called is needed at the start by another module."""
        called, self._pass.called = self._pass.called, None
        if called is None or self._is_known:
            return
        place = {module: number for number, module in reversed([*enumerate(called)])}
        first = {layer: min(place.get(reader, -1) for reader in layer.readers) for layer in self.layers}
        self._read_late = [each for each in self.layers if first[each] < 0]
        self.order = sorted(self.layers, key=first.__getitem__)
        self._is_known = True


def replicas_of(
    model: nn.Module, device: DeviceLike | Sequence[DeviceLike] | None, blocks: Sequence[str]
) -> list[Replica]:
    """Make a replica of the model on each device. Raises ``SpecError`` and ``DeviceError``."""
    if device is None or isinstance(device, (torch.device, str, Device)):
        return [Replica(model, device, blocks)]
    names = {id(each) if isinstance(each, Device) else str(each) for each in device}
    if not device or len(names) < len(device):
        refuse("one device, or a list of different devices", device, "list each device once")
    return [Replica(model, each, blocks) for each in device]


def _replicate(model: nn.Module, device: DeviceLike | None) -> tuple[nn.Module, Device]:
    replica = copy.deepcopy(model)
    for each in replica.parameters():
        each.grad = None
    try:
        if isinstance(device, Device):
            return device.adopt(replica), device
        if device is None and torch.accelerator.is_available():
            device = torch.accelerator.current_accelerator()
        replica.to(torch.device("cpu" if device is None else device))
    except torch.OutOfMemoryError as error:
        nbytes = sum(each.nbytes for each in model.parameters())
        raise DeviceError(
            f"the replica's weights of {nbytes} bytes do not fit in the memory of {device}; choose a "
            "device with more memory, or a smaller model (the master weights are unchanged)"
        ) from error
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SpecError(
            f"the replica cannot be moved to the device {shown(device)}: {error}; choose a device that "
            "PyTorch supports on this machine"
        ) from error
    return replica, device_of(next(replica.parameters()))


# Layers that stay on the device, with their masters and their optimizer state.


def split_layers(layers: Sequence[Layer], fraction: float) -> tuple[list[Layer], list[Layer]]:
    """Split layers into those with masters on the host, and those with masters on the device.

    In the order of the model, each layer stays on the device if its bytes still fit into ``1 - fraction`` of
    all bytes: forward needs the first layers' weights first, and backward returns their gradients last.
    """
    if not is_real(fraction, 0.0, 1.0):
        refuse("a number from 0 to 1 for fraction", fraction, "omit fraction to keep all layers on the host")
    room = (1 - fraction) * sum(each.count for each in layers)
    hosts, residents = list[Layer](), list[Layer]()
    for each in layers:
        fits = each.count <= room
        (residents if fits else hosts).append(each)
        room -= each.count if fits else 0
    return hosts, residents


class Residents:
    """The layers that stay on the device until ``close``. The replica reads these layers' masters directly.

    The masters use the memory of the replica's weights. Their optimizer state is moved to the device, too,
    and again after the optimizer has loaded a state.
    """

    def __init__(self, layers: Sequence[Layer], optimizer: torch.optim.Optimizer, device: Device) -> None:
        self._layers, self._optimizer, self._device = layers, optimizer, device
        self._move_state(self._to_device)
        for each in layers:
            for master, replica in zip(each.masters, each.replicas, strict=True):
                master.data, master.grad = replica.data, None
                _exchange(each, replica, master)
        self._hook = optimizer.register_load_state_dict_post_hook(
            lambda *_: self._move_state(self._to_device)
        )

    def close(self) -> None:
        """Move the masters and their optimizer state back to the host."""
        self._hook.remove()
        self._move_state(on_host)
        for each in self._layers:
            for master, replica in zip(each.masters, each.replicas, strict=True):
                gradient, master.grad = master.grad, None
                master.data = on_host(master).clone()
                master.grad = None if gradient is None else on_host(gradient)
                _exchange(each, master, replica)

    def _move_state(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Move the optimizer's tensors except scalars, such as step counts, which stay on the host."""
        masters = (master for each in self._layers for master in each.masters)
        states = [self._optimizer.state[each] for each in masters if each in self._optimizer.state]
        moved = [
            {n: move(each) for n, each in state.items() if isinstance(each, torch.Tensor) and each.dim()}
            for state in states
        ]
        for state, new in zip(states, moved, strict=True):
            state.update(new)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._device.is_named_by_itself:
            return self._device.own(on_host(tensor).clone())
        return tensor.to(self._layers[0].replicas[0].device)


def _exchange(layer: Layer, old: nn.Parameter, new: nn.Parameter) -> None:
    for module in layer.readers:
        for name in [name for name, each in module.named_parameters(recurse=False) if each is old]:
            setattr(module, name, new)
