"""A replica: a copy of the model on one device, whose forward passes wait for its layers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from gradwire.devices import Device, Simulated, device_of
from gradwire.errors import DeviceError, SpecError, shown
from gradwire.training.offload.layers import Layer, layers_of

Wanted: TypeAlias = "torch.device | str | Simulated"
"""A device as users name it."""


class _Pass(threading.local):
    """A thread's forward pass."""

    called: list[nn.Module] | None = None
    """The modules that it has called so far, if that isn't known yet."""


class Replica:
    """One replica, and the order in which its forward passes read its layers.

    Parameters
    ----------
    model
        What is copied.
    device
        Where to.
    blocks
        As ``layers_of`` takes them.

    Attributes
    ----------
    module, device, layers
        The copy, where it is, and its layers.
    order
        The layers in the order in which they are needed: the first forward pass shows it.
    """

    def __init__(self, model: nn.Module, device: Wanted | None, blocks: Sequence[str]) -> None:
        self.module, self.device = _replicate(model, device)
        self.layers = layers_of(model, self.module, blocks)
        self.order, self._read_late = self.layers, list[Layer]()
        self._is_known, self._pass = False, _Pass()

    def hook(self, begin: Callable[[], None], arrive: Callable[[Sequence[Layer]], None]) -> Iterator[Any]:
        """Call ``begin`` at the start of each forward pass, and ``arrive`` with layers that are needed."""
        yield self.module.register_forward_pre_hook(lambda *_: self._enter(begin, arrive))
        yield self.module.register_forward_hook(lambda *_: self._leave())
        for module in {reader: None for layer in self.layers for reader in layer.readers}:
            read = [each for each in self.layers if module in each.readers]
            yield module.register_forward_pre_hook(
                lambda module, _, read=read: self._reach(module, read, arrive)
            )

    def _enter(self, begin: Callable[[], None], arrive: Callable[[Sequence[Layer]], None]) -> None:
        """Begin a forward pass; the first one waits for all weights, and sees which modules are called."""
        begin()
        self._pass.called = None if self._is_known else []
        arrive(self._read_late if self._is_known else self.layers)

    def _reach(
        self, module: nn.Module, read: Sequence[Layer], arrive: Callable[[Sequence[Layer]], None]
    ) -> None:
        if self._pass.called is not None:
            self._pass.called.append(module)
        else:
            arrive(read)

    def _leave(self) -> None:
        """End the first forward pass: from now on layers travel in the order in which they are needed.

        A layer with a module that isn't called, whose parameters another one reads, is needed at the start.
        """
        called, self._pass.called = self._pass.called, None
        if called is None or self._is_known:
            return
        place = {module: number for number, module in reversed([*enumerate(called)])}
        self._read_late = [
            each for each in self.layers if not all(reader in place for reader in each.readers)
        ]
        first = {
            id(each): -1 if each in self._read_late else min(place[reader] for reader in each.readers)
            for each in self.layers
        }
        self.order = sorted(self.layers, key=lambda each: first[id(each)])
        self._is_known = True


def replicas_of(
    model: nn.Module, device: Wanted | Sequence[Wanted] | None, blocks: Sequence[str]
) -> list[Replica]:
    """Return a replica for each device. Raises ``SpecError`` and ``DeviceError``."""
    if device is None or isinstance(device, (torch.device, str, Simulated)):
        return [Replica(model, device, blocks)]
    names = {id(each) if isinstance(each, Simulated) else str(each) for each in device}
    if not device or len(names) < len(device):
        raise SpecError(f"device must be a device, or different ones in a list, but is {shown(device)}")
    return [Replica(model, each, blocks) for each in device]


def _replicate(model: nn.Module, device: Wanted | None) -> tuple[nn.Module, Device]:
    replica = copy.deepcopy(model)
    for each in replica.parameters():
        each.grad = None
    try:
        if isinstance(device, Simulated):
            return device.adopt(replica), device
        replica.to(_accelerator() if device is None else torch.device(device))
    except torch.OutOfMemoryError as error:
        nbytes = sum(each.nbytes for each in model.parameters())
        raise DeviceError(
            f"the replica, with weights of {nbytes} bytes, does not fit into the memory of {device}; "
            "the masters are as before, so choose a device with more memory, or a smaller model"
        ) from error
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SpecError(f"the replica can't live on the device {shown(device)}: {error}") from error
    return replica, device_of(next(replica.parameters()))


def _accelerator() -> torch.device:
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")
